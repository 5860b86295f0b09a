"""The target's head, the taps, and the drafter's features."""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from .attention_in import CHUNK, copy
from .common import F32P, Rows, Scratch, U8P, W, bf16_row, bf16v, ld, parallel, rms_norm, st
from .gpu.heads import features_gpu, head_gpu, tap_gpu
from .hyper import collapse
from .layout import EXACT, THREADS, RMS_EPS
from .linear import linear
from .quant import BF16, E4M3, qdq_fp8

comptime VOCAB_CHUNK = 128


@compiler.register("sd_head")
struct Head:
    """Logits [R, V] of the given rows: final collapse, norm, head (float32 accumulation, bf16 weights)."""

    @staticmethod
    def execute[target: StaticString](
        logits: OutputTensor[dtype=DType.float32, rank=2, ...],
        h: InputTensor[dtype=DType.float32, rank=3, ...],
        mix: InputTensor[dtype=DType.float32, rank=2, ...],
        rows: InputTensor[dtype=DType.int32, rank=1, ...],
        norm: InputTensor[dtype=DType.float32, rank=1, ...],
        head: InputTensor[dtype=DType.bfloat16, rank=2, ...],
        model: InputTensor[dtype=DType.float32, rank=1, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            head_gpu(
                ctx, logits.unsafe_ptr(), h.unsafe_ptr(), mix.unsafe_ptr(), rows.unsafe_ptr(), norm.unsafe_ptr(),
                head.unsafe_ptr().unsafe_bitcast[UInt8](), rows.dim_size(0), h.dim_size(0), h.dim_size(1),
                h.dim_size(2), mix.dim_size(1), logits.dim_size(1), model.unsafe_ptr(), mode.unsafe_ptr(),
            )
            return
        var n = rows.dim_size(0)
        var c = h.dim_size(1)
        var d = h.dim_size(2)
        var m = mix.dim_size(1)
        var v = logits.dim_size(1)
        var exact = mode.unsafe_ptr()[unsafe_offset=EXACT] != 0
        var threads = Int(mode.unsafe_ptr()[unsafe_offset=THREADS])
        var eps = model.unsafe_ptr()[unsafe_offset=RMS_EPS]
        var identity_ = Rows(n)
        var identity = identity_.ptr()
        var memory = Scratch(n * d)
        var x = memory.ptr()
        var pl: F32P = logits.unsafe_ptr()
        var w: U8P = head.unsafe_ptr().unsafe_bitcast[UInt8]()
        for i in range(n):
            var r = Int(rows.unsafe_ptr()[unsafe_offset=i])
            var row = x.unsafe_offset(i * d)
            collapse(
                row, h.unsafe_ptr().unsafe_offset(r * c * d), mix.unsafe_ptr().unsafe_offset(r * m), c, d, exact
            )
            rms_norm(row, row, norm.unsafe_ptr(), d, eps, exact)

        def project(item: Int) {imm}:
            var n0 = item * VOCAB_CHUNK
            linear[BF16](pl, v, x, d, identity, n, w, w, n0, min(n0 + VOCAB_CHUNK, v), d)

        parallel(project, (v + VOCAB_CHUNK - 1) // VOCAB_CHUNK, n * v * d, threads)
        _ = identity_^
        _ = memory^


@compiler.register("sd_tap")
struct Tap:
    """Appends the mean over a layer's input copies: taps [T, P + D] = [before[:, :P] | bf16(mean h)]."""

    @staticmethod
    def execute[target: StaticString](
        taps: OutputTensor[dtype=DType.float32, rank=2, ...],
        before: InputTensor[dtype=DType.float32, rank=2, ...],
        h: InputTensor[dtype=DType.float32, rank=3, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            tap_gpu(
                ctx, taps.unsafe_ptr(), before.unsafe_ptr(), h.unsafe_ptr(), h.dim_size(0), taps.dim_size(1),
                before.dim_size(1), h.dim_size(1), h.dim_size(2), mode.unsafe_ptr(),
            )
            return
        var c = h.dim_size(1)
        var d = h.dim_size(2)
        var width = taps.dim_size(1)
        var kept = width - d
        var exact = mode.unsafe_ptr()[unsafe_offset=EXACT] != 0
        var threads = Int(mode.unsafe_ptr()[unsafe_offset=THREADS])
        for r in range(h.dim_size(0)):
            var dst: F32P = taps.unsafe_ptr().unsafe_offset(r * width)
            copy(dst, before.unsafe_ptr().unsafe_offset(r * before.dim_size(1)), kept)
            var row: F32P = h.unsafe_ptr().unsafe_offset(r * c * d)
            for i in range(0, d, W):
                var acc = ld(row, i)
                for k in range(1, c):
                    acc += ld(row, k * d + i)
                st(dst, kept + i, bf16v(acc / Float32(c), exact))


@compiler.register("sd_features")
struct Features:
    """The drafter's context features m [T, D] = norm(main_proj taps), taps [T, n D], main_proj FP8; unset without slots."""

    @staticmethod
    def execute[target: StaticString](
        m: OutputTensor[dtype=DType.float32, rank=2, ...],
        taps: InputTensor[dtype=DType.float32, rank=2, ...],
        slots: InputTensor[dtype=DType.int32, rank=1, ...],
        proj: InputTensor[dtype=DType.uint8, rank=2, ...],
        scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        norm: InputTensor[dtype=DType.float32, rank=1, ...],
        model: InputTensor[dtype=DType.float32, rank=1, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            if slots.dim_size(0) > 0:  # nobody drafts: the drafter costs nothing
                features_gpu(
                    ctx, m.unsafe_ptr(), taps.unsafe_ptr(), proj.unsafe_ptr(), scale.unsafe_ptr(), norm.unsafe_ptr(),
                    taps.dim_size(0), taps.dim_size(1), m.dim_size(1), model.unsafe_ptr(), mode.unsafe_ptr(),
                )
            return
        if slots.dim_size(0) == 0:  # nobody drafts: the drafter costs nothing
            return
        var t = taps.dim_size(0)
        var k = taps.dim_size(1)
        var d = m.dim_size(1)
        var exact = mode.unsafe_ptr()[unsafe_offset=EXACT] != 0
        var threads = Int(mode.unsafe_ptr()[unsafe_offset=THREADS])
        var eps = model.unsafe_ptr()[unsafe_offset=RMS_EPS]
        var identity_ = Rows(t)
        var identity = identity_.ptr()
        var memory = Scratch(t * k)
        var x = memory.ptr()
        var pm: F32P = m.unsafe_ptr()
        var w: U8P = proj.unsafe_ptr()
        var s: U8P = scale.unsafe_ptr()
        for r in range(t):
            qdq_fp8(x.unsafe_offset(r * k), taps.unsafe_ptr().unsafe_offset(r * k), k, exact)

        def project(item: Int) {imm}:
            var n0 = item * CHUNK
            linear[E4M3](pm, d, x, k, identity, t, w, s, n0, min(n0 + CHUNK, d), k)

        parallel(project, (d + CHUNK - 1) // CHUNK, t * d * k, threads)
        for r in range(t):
            var row = pm.unsafe_offset(r * d)
            bf16_row(row, d, exact)
            rms_norm(row, row, norm.unsafe_ptr(), d, eps, exact)
        _ = identity_^
        _ = memory^
