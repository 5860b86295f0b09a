"""Feeding a layer from outside, to compare layers one at a time with a reference."""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext


@compiler.register("sd_inject")
struct Inject:
    """Passes h and mix, or where flags[layer] is set the given streams [L, T, C, D] and pre [L, T, C] instead."""

    @staticmethod
    def execute[target: StaticString](
        h_out: OutputTensor[dtype=DType.float32, rank=3, ...],
        mix_out: OutputTensor[dtype=DType.float32, rank=2, ...],
        h: InputTensor[dtype=DType.float32, rank=3, ...],
        mix: InputTensor[dtype=DType.float32, rank=2, ...],
        streams: InputTensor[dtype=DType.float32, rank=4, ...],
        pre: InputTensor[dtype=DType.float32, rank=3, ...],
        flags: InputTensor[dtype=DType.int32, rank=1, ...],
        layer: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        var i = Int(layer.unsafe_ptr()[unsafe_offset=0])
        var given = flags.unsafe_ptr()[unsafe_offset=i] != 0
        var n = h.size()
        var c = pre.dim_size(2)
        var m = mix.dim_size(1)
        for j in range(n):
            h_out.unsafe_ptr()[unsafe_offset=j] = (
                streams.unsafe_ptr()[unsafe_offset=i * n + j] if given else h.unsafe_ptr()[unsafe_offset=j]
            )
        for r in range(mix.dim_size(0)):
            for j in range(m):
                var v = mix.unsafe_ptr()[unsafe_offset=r * m + j]
                if given and j < c:
                    v = pre.unsafe_ptr()[unsafe_offset=(i * mix.dim_size(0) + r) * c + j]
                mix_out.unsafe_ptr()[unsafe_offset=r * m + j] = v
