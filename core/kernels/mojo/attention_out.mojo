"""From attention outputs back to the residual copies: grouped low-rank projection, wo_b, expand."""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from .attention_in import CHUNK
from .common import F32P, I32P, Rows, Scratch, U8P, bf16_row, parallel
from .gpu.attention_out import attention_out
from .hyper import expand
from .layout import EXACT, THREADS
from .linear import linear
from .quant import E4M3, qdq_fp8


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
        var hk = o.dim_size(1)
        var c = h.dim_size(1)
        var d = h.dim_size(2)
        var m = mix.dim_size(1)
        var na = wo_a.dim_size(0)
        var ka = wo_a.dim_size(1)
        var rank = na // (hk // ka)
        var exact = mode.unsafe_ptr()[unsafe_offset=EXACT] != 0
        var threads = Int(mode.unsafe_ptr()[unsafe_offset=THREADS])
        var ids = Rows(t)
        var rows = ids.ptr()
        var memory = Scratch(t * na)
        var a = memory.ptr()
        var ph_out: F32P = h_out.unsafe_ptr()
        var py: F32P = y.unsafe_ptr()
        var po: F32P = o.unsafe_ptr()
        var ph: F32P = h.unsafe_ptr()
        var pm: F32P = mix.unsafe_ptr()
        var wa: U8P = wo_a.unsafe_ptr()
        var sa: U8P = wo_a_scale.unsafe_ptr()
        var wb: U8P = wo_b.unsafe_ptr()
        var sb: U8P = wo_b_scale.unsafe_ptr()
        var chunk = CHUNK if rank % CHUNK == 0 else rank  # a chunk stays within one group

        def lower(item: Int) {imm}:
            var n = item * chunk
            linear[E4M3](a, na, po.unsafe_offset(n // rank * ka), hk, rows, t, wa, sa, n, n + chunk, ka)

        parallel(lower, na // chunk, t * na * ka, threads)
        for r in range(t):
            var row = a.unsafe_offset(r * na)
            bf16_row(row, na, exact)
            qdq_fp8(row, row, na, exact)

        def raise_(item: Int) {imm}:
            var n = item * CHUNK
            linear[E4M3](py, d, a, na, rows, t, wb, sb, n, min(n + CHUNK, d), na)

        parallel(raise_, (d + CHUNK - 1) // CHUNK, t * d * na, threads)
        for r in range(t):
            var row = py.unsafe_offset(r * d)
            bf16_row(row, d, exact)
            expand(
                ph_out.unsafe_offset(r * c * d), row, ph.unsafe_offset(r * c * d), pm.unsafe_offset(r * m), c, d, exact
            )
        _ = ids^
        _ = memory^
