"""Attention of every query over its own keys: window rows, chosen compressed rows, and a draft block's own rows.

One key is also its value, shared by all heads. Keys are taken in ascending position, window first, in blocks of 64
with an online softmax; a sink joins the denominator. The probabilities are rounded like the values they weigh.
"""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from extensibility import _MutableInputTensor as MutableTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from std.collections import Array
from std.math import exp, fma, sqrt
from .common import F32P, I32P, Scratch, Vec, W, at, bf16_row, bf16v, dots8, ld, parallel, rope, rope_table, st
from .gpu.attention import attend as attend_gpu
from .layout import EXACT, THREADS, BLOCK, KV_OFFSET, LAYER, Leaf, PAGE_SIZE, RATIO, WINDOW

comptime KEYS = 64  # keys per softmax block
comptime HEADS = 4  # heads per work item of a single row
comptime Key = Pointer[Float32, MutUntrackedOrigin]


@always_inline
def weigh[V: Int](dst: F32P, keys: List[Key], first: Int, n: Int, z: F32P, i: Int, fade: Float32):
    """Values i … i + 8 V - 1 of dst := fade dst + sum over the block's n keys of z[j] key[j]."""
    var acc = Array[Vec, V](fill=Vec(0.0))
    comptime for q in range(V):
        acc[q] = ld(dst, i + q * W) * fade
    for j in range(n):
        var p = Vec(at(z, j))
        var key = keys[first + j].unsafe_origin_cast[MutAnyOrigin]()
        comptime for q in range(V):
            acc[q] = fma(p, ld(key, i + q * W), acc[q])
    comptime for q in range(V):
        st(dst, i + q * W, acc[q])


def attend(dst: F32P, q: F32P, keys: List[Key], z: F32P, k: Int, scale: Float32, sink: Float32, exact: Bool):
    """One head of one row: dst = softmax(q · keys, sink) keys, bf16; z holds KEYS logits."""
    var top = Float32.MIN
    var total = Float32(0)
    for i in range(0, k, W):
        st(dst, i, Vec(0.0))
    for first in range(0, len(keys), KEYS):
        var n = min(KEYS, len(keys) - first)
        var tops = Vec(top)
        for j in range(0, n, W):
            var some = Array[F32P, W](fill=keys[first].unsafe_origin_cast[MutAnyOrigin]())
            comptime for i in range(W):
                some[i] = keys[first + min(j + i, n - 1)].unsafe_origin_cast[MutAnyOrigin]()
            # A repeated last key fills the lanes past n; they are -inf before anyone sums them.
            var logits = dots8(q, some, k) * scale
            tops = max(tops, logits)
            st(z, j, logits)
        for j in range(n, (n + W - 1) // W * W):
            z[unsafe_offset=j] = Float32.MIN
        var block_top = tops.reduce_max()
        var fade = exp(top - block_top)
        top = block_top
        var mass = Vec(0.0)
        for j in range(0, n, W):
            var p = exp(ld(z, j) - top)
            mass += p
            st(z, j, bf16v(p, exact))
        total = total * fade + mass.reduce_add()
        var i = 0
        while i + 8 * W <= k:
            weigh[8](dst, keys, first, n, z, i, fade)
            i += 8 * W
        while i < k:
            weigh[4](dst, keys, first, n, z, i, fade)
            i += 4 * W
    var inverse = 1 / (total + exp(sink - top))
    for i in range(0, k, W):
        st(dst, i, ld(dst, i) * inverse)
    bf16_row(dst, k, exact)


@compiler.register("sd_attend")
struct Attend:
    """Outputs o [T, H K], turned back to position 0.

    q [T, H K]; last [T] the newest window position a row may see; chosen [T, N] compressed rows (-1: none);
    block_rows [T, K] the rows of a draft block, all of which every row of the block sees; sink [H].
    """

    @staticmethod
    def execute[target: StaticString](
        o: OutputTensor[dtype=DType.float32, rank=2, ...],
        window: MutableTensor[dtype=DType.float32, rank=6, ...],
        rows_leaf: MutableTensor[dtype=DType.float32, rank=6, ...],
        q: InputTensor[dtype=DType.float32, rank=2, ...],
        chosen: InputTensor[dtype=DType.int32, rank=2, ...],
        block_rows: InputTensor[dtype=DType.float32, rank=2, ...],
        seq: InputTensor[dtype=DType.int32, rank=1, ...],
        pos: InputTensor[dtype=DType.int32, rank=1, ...],
        last: InputTensor[dtype=DType.int32, rank=1, ...],
        table: InputTensor[dtype=DType.uint32, rank=2, ...],
        sink: InputTensor[dtype=DType.float32, rank=1, ...],
        inv_freq: InputTensor[dtype=DType.float32, rank=1, ...],
        layer: InputTensor[dtype=DType.int32, rank=1, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            attend_gpu(
                ctx, o.unsafe_ptr(), window.unsafe_ptr(), rows_leaf.unsafe_ptr(), q.unsafe_ptr(), chosen.unsafe_ptr(),
                block_rows.unsafe_ptr(), seq.unsafe_ptr(), pos.unsafe_ptr(), last.unsafe_ptr(), table.unsafe_ptr(),
                sink.unsafe_ptr(), inv_freq.unsafe_ptr(), layer.unsafe_ptr(), mode.unsafe_ptr(), q.dim_size(0),
                sink.dim_size(0), q.dim_size(1) // sink.dim_size(0), inv_freq.dim_size(0), chosen.dim_size(1),
                window.dim_size(2), window.dim_size(3), rows_leaf.dim_size(3), table.dim_size(1),
            )
            return
        var t = q.dim_size(0)
        var hk = q.dim_size(1)
        var heads = sink.dim_size(0)
        var k = hk // heads
        var half = inv_freq.dim_size(0)
        var n_chosen = chosen.dim_size(1)
        var exact = mode.unsafe_ptr()[unsafe_offset=EXACT] != 0
        var threads = Int(mode.unsafe_ptr()[unsafe_offset=THREADS])
        var settings: I32P = layer.unsafe_ptr()
        var index = Int(settings[unsafe_offset=LAYER])
        var ratio = Int(settings[unsafe_offset=RATIO])
        var kv_offset = Int(settings[unsafe_offset=KV_OFFSET])
        var span = Int(settings[unsafe_offset=WINDOW])
        var block = Int(settings[unsafe_offset=BLOCK])
        var page_size = Int(settings[unsafe_offset=PAGE_SIZE])
        var pages: Pointer[UInt32, MutAnyOrigin] = table.unsafe_ptr()
        var leaf = Leaf(
            window.unsafe_ptr(), window.dim_size(2), window.dim_size(3), k, pages, table.dim_size(1), page_size
        )
        var compressed = Leaf(
            rows_leaf.unsafe_ptr(), 1, rows_leaf.dim_size(3), k, pages, table.dim_size(1), page_size
        )
        var po: F32P = o.unsafe_ptr()
        var pq: F32P = q.unsafe_ptr()
        var pc: I32P = chosen.unsafe_ptr()
        var pb: F32P = block_rows.unsafe_ptr()
        var pseq: I32P = seq.unsafe_ptr()
        var ppos: I32P = pos.unsafe_ptr()
        var plast: I32P = last.unsafe_ptr()
        var psink: F32P = sink.unsafe_ptr()
        var freq: F32P = inv_freq.unsafe_ptr()
        var scale = 1 / sqrt(Float32(k))
        var share = HEADS if t == 1 else heads  # of several rows, each gathers its keys once
        var parts = (heads + share - 1) // share

        def item(i: Int) {imm}:
            var r = i // parts
            var h0 = (i % parts) * share
            var h1 = min(h0 + share, heads)
            var p = Int(ppos[unsafe_offset=r])
            if p < 0:
                for j in range(r * hk + h0 * k, r * hk + h1 * k):
                    po[unsafe_offset=j] = 0
                return
            var s = Int(pseq[unsafe_offset=r])
            var newest = Int(plast[unsafe_offset=r])
            var keys = List[Key](capacity=span + n_chosen + block)
            var position = max(0, newest - span + 1)
            while position <= newest:
                var row = leaf.window(s, index, position)
                for slot in range(min(newest + 1 - position, page_size - position % page_size)):
                    keys.append(row.unsafe_offset(slot * k).unsafe_origin_cast[MutUntrackedOrigin]())
                position += page_size - position % page_size
            if ratio > 0:
                for j in range(n_chosen):
                    var row = Int(pc[unsafe_offset=r * n_chosen + j])
                    if row >= 0:
                        var key = compressed.compressed(s, kv_offset, ratio, row)
                        keys.append(key.unsafe_origin_cast[MutUntrackedOrigin]())
            if block > 0:
                for j in range(block):
                    var row = pb.unsafe_offset((r // block * block + j) * k)
                    keys.append(row.unsafe_origin_cast[MutUntrackedOrigin]())
            var memory = Scratch(KEYS + 2 * half)
            var turn = memory.ptr().unsafe_offset(KEYS)
            rope_table(turn, freq, p, half)
            for h in range(h0, h1):
                var dst = po.unsafe_offset(r * hk + h * k)
                attend(
                    dst, pq.unsafe_offset(r * hk + h * k), keys, memory.ptr(), k, scale, at(psink, h), exact
                )
                rope(dst.unsafe_offset(k - 2 * half), turn, half, -1, exact)
            _ = memory^

        parallel(item, t * parts, t * hk * (span + (n_chosen if ratio > 0 else 0)) * 2, threads)
