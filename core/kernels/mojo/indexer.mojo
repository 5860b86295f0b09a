"""The indexer: which compressed rows every query attends to.

Score of row j for query t: sum over heads of weight_h relu(q_h · k_j). The TOP_K best visible rows, ties to the lower
position, come out ascending with -1 after them. A candidate source also publishes the best blocks of rows; a later
index source scores only rows of those blocks (DeepSeek-V4.1's two-level selection).
"""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from extensibility import _MutableInputTensor as MutableTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from std.collections import Array
from std.math import sqrt
from std.memory import bitcast
from .attention_in import CHUNK
from .common import F32P, I32P, Rows, Scratch, U8P, Vec, W, at, bf16, bf16_row, bf16v, dots8, parallel, rope, rope_table
from .common import st
from .gpu.indexer import index
from .layout import EXACT, THREADS, CANDIDATES, CANDIDATE_BLOCK, KEY_OFFSET, Leaf, PAGE_SIZE, RATIO
from .linear import linear
from .quant import BF16, E4M3, qdq_fp8, qdq_mxfp4


@always_inline
def order_key(x: Float32) -> UInt32:
    """Maps floats to integers of the same order (and -0 to +0)."""
    var bits = bitcast[DType.uint32](x + 0.0)
    return ~bits if (bits >> 31) != 0 else bits | 0x80000000


def select_top(out_ids: I32P, want: Int, scores: F32P, ids: I32P, n: Int):
    """The `want` best of n scores as ids, in the given order, padded with -1; ties go to the earlier entry."""
    var keep_from = UInt32(0)
    var ties = n
    if n > want:
        # Radix selection of the want-th best key, one byte at a time.
        var prefix = UInt32(0)
        var left = want
        for step in range(4):
            var shift = UInt32(24 - 8 * step)
            var counts = List[Int](length=256, fill=0)
            for i in range(n):
                var key = order_key(at(scores, i))
                if step == 0 or (key >> (shift + 8)) == (prefix >> (shift + 8)):
                    counts[Int((key >> shift) & 255)] += 1
            var byte = 255
            while counts[byte] < left:
                left -= counts[byte]
                byte -= 1
            prefix |= UInt32(byte) << shift
        keep_from = prefix
        ties = left
    var filled = 0
    for i in range(n):
        var key = order_key(at(scores, i))
        if key < keep_from:
            continue
        if key == keep_from and n > want:
            if ties == 0:
                continue
            ties -= 1
        out_ids[unsafe_offset=filled] = ids[unsafe_offset=i]
        filled += 1
    for i in range(filled, want):
        out_ids[unsafe_offset=i] = -1


def score8(q: F32P, keys: Array[F32P, W], weights: F32P, heads: Int, dim: Int, exact: Bool) -> Vec:
    """Scores of one query for eight keys."""
    var total = Vec(0.0)
    for h in range(heads):
        var dot = bf16v(dots8(q.unsafe_offset(h * dim), keys, dim), exact)
        total += bf16v(max(dot, Vec(0.0)) * at(weights, h), exact)
    return bf16v(total, exact)


def best_blocks(out_ids: I32P, want: Int, scores: F32P, n: Int, size: Int, newest: Int):
    """The `want` blocks of `size` rows with the best row; the block of the newest row always stays."""
    var blocks = (n + size - 1) // size
    var best = Scratch(blocks)
    var ids = Rows(blocks)
    var pb = best.ptr()
    for b in range(blocks):
        var top = at(scores, b * size)
        for i in range(b * size + 1, min(n, (b + 1) * size)):
            top = max(top, at(scores, i))
        pb[unsafe_offset=b] = top
    if newest >= 0:
        pb[unsafe_offset=newest // size] = Float32.MAX
    select_top(out_ids, want, pb, ids.ptr(), blocks)
    _ = best^
    _ = ids^


@compiler.register("sd_index")
struct Index:
    """Publishes chosen [T, TOP_K] compressed rows, and blocks [T, B] candidate blocks (only by a candidate source).

    x [T, D], latent [T, Q]; wq_b [I heads, Q] FP8, weights_proj [heads, D] bf16; candidates [T, B] as published.
    """

    @staticmethod
    def execute[target: StaticString](
        chosen: OutputTensor[dtype=DType.int32, rank=2, ...],
        blocks: OutputTensor[dtype=DType.int32, rank=2, ...],
        keys_leaf: MutableTensor[dtype=DType.float32, rank=6, ...],
        x: InputTensor[dtype=DType.float32, rank=2, ...],
        latent: InputTensor[dtype=DType.float32, rank=2, ...],
        candidates: InputTensor[dtype=DType.int32, rank=2, ...],
        seq: InputTensor[dtype=DType.int32, rank=1, ...],
        pos: InputTensor[dtype=DType.int32, rank=1, ...],
        table: InputTensor[dtype=DType.uint32, rank=2, ...],
        wq_b: InputTensor[dtype=DType.uint8, rank=2, ...],
        wq_b_scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        weights_proj: InputTensor[dtype=DType.bfloat16, rank=2, ...],
        inv_freq: InputTensor[dtype=DType.float32, rank=1, ...],
        layer: InputTensor[dtype=DType.int32, rank=1, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            # No request has more keys of one source than its pages hold of all sources.
            index(
                ctx, chosen.unsafe_ptr(), blocks.unsafe_ptr(), keys_leaf.unsafe_ptr(), x.unsafe_ptr(), latent.unsafe_ptr(),
                candidates.unsafe_ptr(), seq.unsafe_ptr(), pos.unsafe_ptr(), table.unsafe_ptr(), wq_b.unsafe_ptr(),
                wq_b_scale.unsafe_ptr(), weights_proj.unsafe_ptr().unsafe_bitcast[UInt8](), inv_freq.unsafe_ptr(),
                layer.unsafe_ptr(), mode.unsafe_ptr(), x.dim_size(0), x.dim_size(1), latent.dim_size(1),
                weights_proj.dim_size(0), wq_b.dim_size(0) // weights_proj.dim_size(0), inv_freq.dim_size(0),
                chosen.dim_size(1), blocks.dim_size(1), keys_leaf.dim_size(3), table.dim_size(1),
                table.dim_size(1) * keys_leaf.dim_size(3),
            )
            return
        var t = x.dim_size(0)
        var d = x.dim_size(1)
        var nq = latent.dim_size(1)
        var heads = weights_proj.dim_size(0)
        var width = wq_b.dim_size(0)
        var dim = width // heads
        var half = inv_freq.dim_size(0)
        var top_k = chosen.dim_size(1)
        var nb = blocks.dim_size(1)
        var exact = mode.unsafe_ptr()[unsafe_offset=EXACT] != 0
        var threads = Int(mode.unsafe_ptr()[unsafe_offset=THREADS])
        var settings: I32P = layer.unsafe_ptr()
        var ratio = Int(settings[unsafe_offset=RATIO])
        var role = Int(settings[unsafe_offset=CANDIDATES])
        var size = Int(settings[unsafe_offset=CANDIDATE_BLOCK])
        var offset = Int(settings[unsafe_offset=KEY_OFFSET])
        var leaf = Leaf(
            keys_leaf.unsafe_ptr(), 1, keys_leaf.dim_size(3), dim, table.unsafe_ptr(), table.dim_size(1),
            Int(settings[unsafe_offset=PAGE_SIZE]),
        )
        var ids = Rows(t)
        var rows = ids.ptr()
        var memory = Scratch(t * (nq + width + heads))
        var lq = memory.ptr()
        var q = lq.unsafe_offset(t * nq)
        var weights = q.unsafe_offset(t * width)
        var px: F32P = x.unsafe_ptr()
        var pl: F32P = latent.unsafe_ptr()
        var pc: I32P = candidates.unsafe_ptr()
        var pout: I32P = chosen.unsafe_ptr()
        var pblocks: I32P = blocks.unsafe_ptr()
        var pseq: I32P = seq.unsafe_ptr()
        var ppos: I32P = pos.unsafe_ptr()
        var freq: F32P = inv_freq.unsafe_ptr()
        var wb: U8P = wq_b.unsafe_ptr()
        var sb: U8P = wq_b_scale.unsafe_ptr()
        var wp: U8P = weights_proj.unsafe_ptr().unsafe_bitcast[UInt8]()
        var head_scale = 1 / sqrt(Float32(dim)) / sqrt(Float32(heads))
        for r in range(t):
            qdq_fp8(lq.unsafe_offset(r * nq), pl.unsafe_offset(r * nq), nq, exact)
        linear[BF16](weights, heads, px, d, rows, t, wp, wp, 0, heads, d)
        var longest = 0
        for r in range(t):
            longest = max(longest, (Int(ppos[unsafe_offset=r]) + 1) // ratio)
            for h in range(heads):
                var w = bf16(at(weights, r * heads + h), exact)
                weights[unsafe_offset=r * heads + h] = bf16(w * head_scale, exact)

        def project(item: Int) {imm}:
            var n = item * CHUNK
            linear[E4M3](q, width, lq, nq, rows, t, wb, sb, n, min(n + CHUNK, width), nq)

        parallel(project, (width + CHUNK - 1) // CHUNK, t * width * nq, threads)

        def choose(r: Int) {imm}:
            var p = Int(ppos[unsafe_offset=r])
            var s = Int(pseq[unsafe_offset=r])
            var visible = (p + 1) // ratio
            var query = q.unsafe_offset(r * width)
            var turn = Scratch(2 * half)
            rope_table(turn.ptr(), freq, p, half)
            for h in range(heads):
                var head = query.unsafe_offset(h * dim)
                bf16_row(head, dim, exact)
                rope(head.unsafe_offset(dim - 2 * half), turn.ptr(), half, 1, exact)
                qdq_mxfp4(head, dim, exact)
            _ = turn^
            var scores = Scratch(visible + W)
            var which = Rows(visible)
            var ps = scores.ptr()
            var pw = which.ptr()
            var n = 0
            var spans = nb if role == 2 else 1
            for i in range(spans):
                var first = 0
                var last = visible
                if role == 2:
                    var block = Int(pc[unsafe_offset=r * nb + i])
                    if block < 0:
                        break
                    first = block * size
                    last = min(visible, first + size)
                for j in range(first, last):
                    pw[unsafe_offset=n] = Int32(j)
                    n += 1
            for i in range(0, n, W):
                var some = Array[F32P, W](fill=query)
                comptime for lane in range(W):
                    var row = Int(pw[unsafe_offset=min(i + lane, n - 1)])
                    some[lane] = leaf.compressed(s, offset, ratio, row)
                st(ps, i, score8(query, some, weights.unsafe_offset(r * heads), heads, dim, exact))
            select_top(pout.unsafe_offset(r * top_k), top_k, ps, pw, n)
            if role == 1:
                best_blocks(pblocks.unsafe_offset(r * nb), nb, ps, n, size, visible - 1)
            else:
                for i in range(nb):
                    pblocks[unsafe_offset=r * nb + i] = pc[unsafe_offset=r * nb + i]
            _ = scores^
            _ = which^

        parallel(choose, t, t * longest * width, threads)
        _ = ids^
        _ = memory^
