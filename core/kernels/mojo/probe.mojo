"""For comparison with a reference: a layer fed from outside, and single kernels' inner parts."""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from .attention_in import copy
from .common import F32P, Rows, Scratch
from .gpu.probe import gates_gpu, inject_gpu, project_gpu, qdq_gpu
from .hyper import gates
from .layout import HC_EPS
from .linear import linear
from .quant import E2M1, E4M3, evens_first, qdq_fp8, qdq_mxfp4, qdq_nvfp4


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
        comptime if is_gpu[target]():
            inject_gpu(
                ctx, h_out.unsafe_ptr(), mix_out.unsafe_ptr(), h.unsafe_ptr(), mix.unsafe_ptr(), streams.unsafe_ptr(),
                pre.unsafe_ptr(), flags.unsafe_ptr(), layer.unsafe_ptr(), h.size(), mix.dim_size(0), mix.dim_size(1),
                pre.dim_size(2),
            )
            return
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


@compiler.register("sd_qdq")
struct Qdq:
    """One quantiser over rows x [T, D]: kind 0 FP8 (32-groups), 1 FP4 (32-groups, UE8M0), 2 FP4 (16-groups, e4m3)."""

    @staticmethod
    def execute[target: StaticString](
        y: OutputTensor[dtype=DType.float32, rank=2, ...],
        x: InputTensor[dtype=DType.float32, rank=2, ...],
        kind: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            qdq_gpu(ctx, y.unsafe_ptr(), x.unsafe_ptr(), kind.unsafe_ptr(), x.dim_size(0), x.dim_size(1))
            return
        var d = x.dim_size(1)
        var which = kind.unsafe_ptr()[unsafe_offset=0]
        for r in range(x.dim_size(0)):
            var dst: F32P = y.unsafe_ptr().unsafe_offset(r * d)
            copy(dst, x.unsafe_ptr().unsafe_offset(r * d), d)
            if which == 0:
                qdq_fp8(dst, dst, d, True)
            elif which == 1:
                qdq_mxfp4(dst, d, True)
            else:
                qdq_nvfp4(dst, d, True)


@compiler.register("sd_project")
struct Project:
    """Rows x [T, K] times a stored weight: FP8 [N, K] with [N/32, K/32] scales, or FP4 [N, K/2] with [N, K/32]."""

    @staticmethod
    def execute[target: StaticString](
        y: OutputTensor[dtype=DType.float32, rank=2, ...],
        x: InputTensor[dtype=DType.float32, rank=2, ...],
        w: InputTensor[dtype=DType.uint8, rank=2, ...],
        scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            project_gpu(
                ctx, y.unsafe_ptr(), x.unsafe_ptr(), w.unsafe_ptr(), scale.unsafe_ptr(), x.dim_size(0), x.dim_size(1),
                w.dim_size(0), w.dim_size(1),
            )
            return
        var t = x.dim_size(0)
        var k = x.dim_size(1)
        var n = w.dim_size(0)
        var identity = Rows(t)
        var memory = Scratch(t * k)
        for r in range(t):
            evens_first(memory.ptr().unsafe_offset(r * k), x.unsafe_ptr().unsafe_offset(r * k), k)
        if w.dim_size(1) == k:
            linear[E4M3](y.unsafe_ptr(), n, x.unsafe_ptr(), k, identity.ptr(), t, w.unsafe_ptr(), scale.unsafe_ptr(), 0, n, k)
        else:
            linear[E2M1](y.unsafe_ptr(), n, memory.ptr(), k, identity.ptr(), t, w.unsafe_ptr(), scale.unsafe_ptr(), 0, n, k)
        _ = identity^
        _ = memory^


@compiler.register("sd_gates")
struct Gates:
    """Hyper-connection gates of raw mixes [T, C(C+2)]; settings: float32 hc_eps at its place, int32 copies, rounds."""

    @staticmethod
    def execute[target: StaticString](
        y: OutputTensor[dtype=DType.float32, rank=2, ...],
        mixes: InputTensor[dtype=DType.float32, rank=2, ...],
        scale: InputTensor[dtype=DType.float32, rank=1, ...],
        base: InputTensor[dtype=DType.float32, rank=1, ...],
        rounds: InputTensor[dtype=DType.int32, rank=1, ...],
        model: InputTensor[dtype=DType.float32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            gates_gpu(
                ctx, y.unsafe_ptr(), mixes.unsafe_ptr(), scale.unsafe_ptr(), base.unsafe_ptr(), rounds.unsafe_ptr(),
                mixes.dim_size(0), mixes.dim_size(1), model.unsafe_ptr(),
            )
            return
        var m = mixes.dim_size(1)
        for r in range(mixes.dim_size(0)):
            var row: F32P = y.unsafe_ptr().unsafe_offset(r * m)
            copy(row, mixes.unsafe_ptr().unsafe_offset(r * m), m)
            gates(
                row, scale.unsafe_ptr(), base.unsafe_ptr(), Int(rounds.unsafe_ptr()[unsafe_offset=0]),
                Int(rounds.unsafe_ptr()[unsafe_offset=1]), model.unsafe_ptr()[unsafe_offset=HC_EPS],
            )
