"""From attention outputs back to the residual copies: grouped low-rank projection, wo_b, expand."""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from .common import Scratch
from .gpu.attention_out import attention_out
from .hyper import expand
from .layout import EXACT, THREADS
from .output_parts import lower_groups, raise_rows


@compiler.register("sd_attention_out")
struct AttentionOut:
    """Gives h_out [T, C, D] and the sublayer's output y [T, D].

    o [T, H K] in G groups; wo_a [G R, H K / G] and wo_b [D, G R] FP8. The input of wo_a is not quantised: the
    reference keeps that weight in bf16.
    """

    @staticmethod
    def execute[target: StaticString](
        h_out: OutputTensor[dtype=DType.float32, rank=3, ...],
        y: OutputTensor[dtype=DType.float32, rank=2, ...],
        o: InputTensor[dtype=DType.float32, rank=2, ...],
        h: InputTensor[dtype=DType.float32, rank=3, ...],
        mix: InputTensor[dtype=DType.float32, rank=2, ...],
        wo_a: InputTensor[dtype=DType.uint8, rank=2, ...],
        wo_a_scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        wo_b: InputTensor[dtype=DType.uint8, rank=2, ...],
        wo_b_scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            attention_out(
                ctx, h_out.unsafe_ptr(), y.unsafe_ptr(), o.unsafe_ptr(), h.unsafe_ptr(), mix.unsafe_ptr(),
                wo_a.unsafe_ptr(), wo_a_scale.unsafe_ptr(), wo_b.unsafe_ptr(), wo_b_scale.unsafe_ptr(), mode.unsafe_ptr(),
                o.dim_size(0), o.dim_size(1), h.dim_size(1), h.dim_size(2), mix.dim_size(1), wo_a.dim_size(0),
                wo_a.dim_size(1),
            )
            return
        var t = o.dim_size(0)
        var c = h.dim_size(1)
        var d = h.dim_size(2)
        var m = mix.dim_size(1)
        var na = wo_a.dim_size(0)
        var exact = mode.unsafe_ptr()[unsafe_offset=EXACT] != 0
        var threads = Int(mode.unsafe_ptr()[unsafe_offset=THREADS])
        var memory = Scratch(t * na)
        var a = memory.ptr()
        lower_groups(
            a, o.unsafe_ptr(), wo_a.unsafe_ptr(), wo_a_scale.unsafe_ptr(), t, na, wo_a.dim_size(1), o.dim_size(1), exact,
            threads,
        )
        raise_rows(y.unsafe_ptr(), a, wo_b.unsafe_ptr(), wo_b_scale.unsafe_ptr(), t, d, na, exact, threads)
        for r in range(t):
            expand(
                h_out.unsafe_ptr().unsafe_offset(r * c * d), y.unsafe_ptr().unsafe_offset(r * d),
                h.unsafe_ptr().unsafe_offset(r * c * d), mix.unsafe_ptr().unsafe_offset(r * m), c, d, exact,
            )
        _ = memory^
