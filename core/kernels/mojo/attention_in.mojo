"""From a normed sublayer input to roped queries and a window row."""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from extensibility import _MutableInputTensor as MutableTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from .common import F32P, I32P, Rows, Scratch, U8P, bf16_row, parallel, rms_norm, rope, rope_table
from .gpu.attention_in import attention_in, context_rows
from .layout import EXACT, THREADS, BLOCK, LAYER, Leaf, PAGE_SIZE, RMS_EPS
from .linear import linear
from .quant import E4M3, qdq_fp8

comptime CHUNK = 32  # output channels per work item


@compiler.register("sd_attention_in")
struct AttentionIn:
    """Queries [T, H K], the query latent [T, Q] that the indexer shares, and window rows [T, K].

    x [T, D]; wq_a [Q, D], wq_b [H K, Q], wkv [K, D] FP8; seq, pos [T] (pos -1: no row). A target layer
    also stores its window rows in the window leaf; a draft block (BLOCK > 0) keeps them to itself.
    """

    @staticmethod
    def execute[target: StaticString](
        q: OutputTensor[dtype=DType.float32, rank=2, ...],
        latent: OutputTensor[dtype=DType.float32, rank=2, ...],
        kv: OutputTensor[dtype=DType.float32, rank=2, ...],
        window: MutableTensor[dtype=DType.float32, rank=6, ...],
        x: InputTensor[dtype=DType.float32, rank=2, ...],
        seq: InputTensor[dtype=DType.int32, rank=1, ...],
        pos: InputTensor[dtype=DType.int32, rank=1, ...],
        table: InputTensor[dtype=DType.uint32, rank=2, ...],
        wq_a: InputTensor[dtype=DType.uint8, rank=2, ...],
        wq_a_scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        q_norm: InputTensor[dtype=DType.float32, rank=1, ...],
        wq_b: InputTensor[dtype=DType.uint8, rank=2, ...],
        wq_b_scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        wkv: InputTensor[dtype=DType.uint8, rank=2, ...],
        wkv_scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        kv_norm: InputTensor[dtype=DType.float32, rank=1, ...],
        inv_freq: InputTensor[dtype=DType.float32, rank=1, ...],
        layer: InputTensor[dtype=DType.int32, rank=1, ...],
        model: InputTensor[dtype=DType.float32, rank=1, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            attention_in(
                ctx, q.unsafe_ptr(), latent.unsafe_ptr(), kv.unsafe_ptr(), window.unsafe_ptr(), x.unsafe_ptr(),
                seq.unsafe_ptr(), pos.unsafe_ptr(), table.unsafe_ptr(), wq_a.unsafe_ptr(), wq_a_scale.unsafe_ptr(),
                q_norm.unsafe_ptr(), wq_b.unsafe_ptr(), wq_b_scale.unsafe_ptr(), wkv.unsafe_ptr(), wkv_scale.unsafe_ptr(),
                kv_norm.unsafe_ptr(), inv_freq.unsafe_ptr(), layer.unsafe_ptr(), model.unsafe_ptr(), mode.unsafe_ptr(),
                x.dim_size(0), x.dim_size(1), latent.dim_size(1), kv.dim_size(1), q.dim_size(1), inv_freq.dim_size(0),
                window.dim_size(2), window.dim_size(3), table.dim_size(1),
            )
            return
        var t = x.dim_size(0)
        var d = x.dim_size(1)
        var nq = latent.dim_size(1)
        var k = kv.dim_size(1)
        var hk = q.dim_size(1)
        var half = inv_freq.dim_size(0)
        var exact = mode.unsafe_ptr()[unsafe_offset=EXACT] != 0
        var threads = Int(mode.unsafe_ptr()[unsafe_offset=THREADS])
        var settings: I32P = layer.unsafe_ptr()
        var store = settings[unsafe_offset=BLOCK] == 0
        var index = Int(settings[unsafe_offset=LAYER])
        var eps = model.unsafe_ptr()[unsafe_offset=RMS_EPS]
        var leaf = Leaf(
            window.unsafe_ptr(), window.dim_size(2), window.dim_size(3), k, table.unsafe_ptr(), table.dim_size(1),
            Int(settings[unsafe_offset=PAGE_SIZE]),
        )
        var ids = Rows(t)
        var rows = ids.ptr()
        var inputs = Scratch(t * (d + nq + 2 * half))
        var xq = inputs.ptr()
        var lq = xq.unsafe_offset(t * d)
        var turns = lq.unsafe_offset(t * nq)
        var px: F32P = x.unsafe_ptr()
        var pq: F32P = q.unsafe_ptr()
        var pl: F32P = latent.unsafe_ptr()
        var pkv: F32P = kv.unsafe_ptr()
        var pseq: I32P = seq.unsafe_ptr()
        var ppos: I32P = pos.unsafe_ptr()
        var freq: F32P = inv_freq.unsafe_ptr()
        var pqn: F32P = q_norm.unsafe_ptr()
        var pkn: F32P = kv_norm.unsafe_ptr()
        var wa: U8P = wq_a.unsafe_ptr()
        var sa: U8P = wq_a_scale.unsafe_ptr()
        var wb: U8P = wq_b.unsafe_ptr()
        var sb: U8P = wq_b_scale.unsafe_ptr()
        var wk: U8P = wkv.unsafe_ptr()
        var sk: U8P = wkv_scale.unsafe_ptr()

        for r in range(t):
            qdq_fp8(xq.unsafe_offset(r * d), px.unsafe_offset(r * d), d, exact)
            rope_table(turns.unsafe_offset(r * 2 * half), freq, Int(ppos[unsafe_offset=r]), half)
        var a_chunks = (nq + CHUNK - 1) // CHUNK
        var k_chunks = (k + CHUNK - 1) // CHUNK

        def project(item: Int) {imm}:
            if item < a_chunks:
                var n = item * CHUNK
                linear[E4M3](pl, nq, xq, d, rows, t, wa, sa, n, min(n + CHUNK, nq), d)
            else:
                var n = (item - a_chunks) * CHUNK
                linear[E4M3](pkv, k, xq, d, rows, t, wk, sk, n, min(n + CHUNK, k), d)

        parallel(project, a_chunks + k_chunks, t * d * (nq + k), threads)
        for r in range(t):
            var ql = pl.unsafe_offset(r * nq)
            bf16_row(ql, nq, exact)
            rms_norm(ql, ql, pqn, nq, eps, exact)
            qdq_fp8(lq.unsafe_offset(r * nq), ql, nq, exact)
            var row = pkv.unsafe_offset(r * k)
            window_row(row, k, pkn, turns.unsafe_offset(r * 2 * half), half, eps, exact)
            var p = Int(ppos[unsafe_offset=r])
            if store and p >= 0:
                copy(leaf.window(Int(pseq[unsafe_offset=r]), index, p), row, k)

        def queries(item: Int) {imm}:
            var n = item * k
            linear[E4M3](pq, hk, lq, nq, rows, t, wb, sb, n, n + k, nq)
            for r in range(t):
                var head = pq.unsafe_offset(r * hk + n)
                bf16_row(head, k, exact)
                rope(head.unsafe_offset(k - 2 * half), turns.unsafe_offset(r * 2 * half), half, 1, exact)

        parallel(queries, hk // k, t * nq * hk, threads)
        _ = ids^
        _ = inputs^


def window_row(row: F32P, k: Int, norm: F32P, turn: F32P, half: Int, eps: Float32, exact: Bool):
    """One projected row made a key: bf16, normed, turned (its last 2 * half values), FP8."""
    bf16_row(row, k, exact)
    rms_norm(row, row, norm, k, eps, exact)
    rope(row.unsafe_offset(k - 2 * half), turn, half, 1, exact)
    qdq_fp8(row, row, k, exact)


def copy(dst: F32P, src: F32P, n: Int):
    """Copies n values."""
    for i in range(n):
        dst[unsafe_offset=i] = src[unsafe_offset=i]


@compiler.register("sd_context_rows")
struct ContextRows:
    """A draft stage's context keys from the drafter's features m [T, D], stored as layer LAYER of the window leaf.

    Nothing is stored in a step without draft slots. Else every row with a position is: a rejected one is overwritten before a draft reads that far.
    """

    @staticmethod
    def execute[target: StaticString](
        kv: OutputTensor[dtype=DType.float32, rank=2, ...],
        window: MutableTensor[dtype=DType.float32, rank=6, ...],
        m: InputTensor[dtype=DType.float32, rank=2, ...],
        slots: InputTensor[dtype=DType.int32, rank=1, ...],
        seq: InputTensor[dtype=DType.int32, rank=1, ...],
        pos: InputTensor[dtype=DType.int32, rank=1, ...],
        table: InputTensor[dtype=DType.uint32, rank=2, ...],
        wkv: InputTensor[dtype=DType.uint8, rank=2, ...],
        wkv_scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        kv_norm: InputTensor[dtype=DType.float32, rank=1, ...],
        inv_freq: InputTensor[dtype=DType.float32, rank=1, ...],
        layer: InputTensor[dtype=DType.int32, rank=1, ...],
        model: InputTensor[dtype=DType.float32, rank=1, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            if slots.dim_size(0) > 0:
                context_rows(
                    ctx, kv.unsafe_ptr(), window.unsafe_ptr(), m.unsafe_ptr(), seq.unsafe_ptr(), pos.unsafe_ptr(),
                    table.unsafe_ptr(), wkv.unsafe_ptr(), wkv_scale.unsafe_ptr(), kv_norm.unsafe_ptr(),
                    inv_freq.unsafe_ptr(), layer.unsafe_ptr(), model.unsafe_ptr(), mode.unsafe_ptr(), m.dim_size(0),
                    m.dim_size(1), kv.dim_size(1), inv_freq.dim_size(0), window.dim_size(2), window.dim_size(3),
                    table.dim_size(1),
                )
            return
        if slots.dim_size(0) == 0:  # nobody drafts: the drafter costs nothing
            return
        var t = m.dim_size(0)
        var d = m.dim_size(1)
        var k = kv.dim_size(1)
        var half = inv_freq.dim_size(0)
        var exact = mode.unsafe_ptr()[unsafe_offset=EXACT] != 0
        var threads = Int(mode.unsafe_ptr()[unsafe_offset=THREADS])
        var settings: I32P = layer.unsafe_ptr()
        var index = Int(settings[unsafe_offset=LAYER])
        var eps = model.unsafe_ptr()[unsafe_offset=RMS_EPS]
        var leaf = Leaf(
            window.unsafe_ptr(), window.dim_size(2), window.dim_size(3), k, table.unsafe_ptr(), table.dim_size(1),
            Int(settings[unsafe_offset=PAGE_SIZE]),
        )
        var ids = Rows(t)
        var rows = ids.ptr()
        var inputs = Scratch(t * (d + 2 * half))
        var xq = inputs.ptr()
        var turns = xq.unsafe_offset(t * d)
        var pm: F32P = m.unsafe_ptr()
        var pkv: F32P = kv.unsafe_ptr()
        var pseq: I32P = seq.unsafe_ptr()
        var ppos: I32P = pos.unsafe_ptr()
        var pn: F32P = kv_norm.unsafe_ptr()
        var w: U8P = wkv.unsafe_ptr()
        var s: U8P = wkv_scale.unsafe_ptr()
        for r in range(t):
            qdq_fp8(xq.unsafe_offset(r * d), pm.unsafe_offset(r * d), d, exact)
            rope_table(turns.unsafe_offset(r * 2 * half), inv_freq.unsafe_ptr(), Int(ppos[unsafe_offset=r]), half)

        def project(item: Int) {imm}:
            var n = item * CHUNK
            linear[E4M3](pkv, k, xq, d, rows, t, w, s, n, min(n + CHUNK, k), d)

        parallel(project, (k + CHUNK - 1) // CHUNK, t * d * k, threads)
        for r in range(t):
            var row = pkv.unsafe_offset(r * k)
            window_row(row, k, pn, turns.unsafe_offset(r * 2 * half), half, eps, exact)
            var p = Int(ppos[unsafe_offset=r])
            if p >= 0:
                copy(leaf.window(Int(pseq[unsafe_offset=r]), index, p), row, k)
        _ = ids^
        _ = inputs^
