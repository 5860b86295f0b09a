"""The indexer's scores on the GPU: every query against every key that it may choose.

A warp holds sixteen keys as bfloat16 and meets them with several rows of one sequence, whose keys are the same. A
score is one chain of MMAs and one tree over the heads, so neighbours in a batch change nothing.

Legend: g = lane / 4, c = lane % 4, m a tile of sixteen heads. Scores leave as order keys (see select.mojo).
"""

from std.collections import Array
from std.math import fma
from std.memory import bitcast
from std.utils import StaticTuple
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, lane_id, thread_idx, warp_id
from max.gpu.compute.mma import mma
from max.gpu.primitives.warp import shuffle_xor, vote
from ..common import F32P, I32P, U32P, at, bf16
from ..indexer import order_key
from ..layout import CANDIDATES, CANDIDATE_BLOCK, KEY_OFFSET, Leaf, PAGE_SIZE, RATIO
from .base import BLOCK_THREADS, WARPS, is_exact
from .keys import key_at, load_key
from .matmul import Acc
from .select import GROUP
from .vectors import Four, load4, round4

comptime SCORE_KEYS = WARPS * GROUP  # of a block
comptime SCORE_ROWS = 8  # rows that a block meets its keys with
comptime MAX_DIM = 128
comptime STEPS = MAX_DIM // 16


@always_inline
def visible_to(r: Int, pos: I32P, layer: I32P) -> Int:
    """Rows that the query may see."""
    return Int(UInt32(Int(pos[unsafe_offset=r]) + 1) // UInt32(max(layer[unsafe_offset=RATIO], Int32(1))))


@always_inline
def row_of_entry(entry: Int, visible: Int, blocks: I32P, nb: Int, size: Int) -> Int:
    """The row that an entry stands for, or -1; size > 0: entries run through the rows of the candidate blocks."""
    var row = entry
    if size > 0:
        var i = Int(UInt32(entry) // UInt32(size))
        var block = Int(blocks[unsafe_offset=min(i, nb - 1)])
        row = block * size + entry - i * size if block >= 0 and i < nb else -1
    return row if row < visible else -1


@always_inline
def keep_keys(key0: Int, key1: Int, dim: Int) -> Array[SIMD[DType.bfloat16, 4], 2 * STEPS]:
    """This lane's columns of the keys in slots g and g + 8, zero beyond `dim`."""
    var v = Array[Four, 2 * STEPS](fill=Four(0))
    comptime for s in range(STEPS):
        var column = min(s * 16 + 4 * (Int(lane_id()) & 3), dim - 4)
        v[2 * s] = load_key(key_at(key0), column)
        v[2 * s + 1] = load_key(key_at(key1), column)
    var kept = Array[SIMD[DType.bfloat16, 4], 2 * STEPS](fill=0)
    comptime for s in range(STEPS):
        kept[2 * s] = (v[2 * s] if s * 16 < dim else Four(0)).cast[DType.bfloat16]()
        kept[2 * s + 1] = (v[2 * s + 1] if s * 16 < dim else Four(0)).cast[DType.bfloat16]()
    return kept^


@always_inline
def weighed(dots: Acc, low: Float32, high: Float32) -> SIMD[DType.float32, 2]:
    """What heads g and g + 8 add to the scores of two keys."""
    var x = round4(dots, True)
    comptime for i in range(4):
        x[i] = max(x[i], Float32(0)) * (low if i < 2 else high)
    x = round4(x, True)
    return SIMD[DType.float32, 2](x[0], x[1]) + SIMD[DType.float32, 2](x[2], x[3])


@always_inline
def scores_of(
    kept: Array[SIMD[DType.bfloat16, 4], 2 * STEPS], fragments: F32P, weights: F32P, tiles: Int, steps: Int
) -> Four:
    """Sums over the heads for keys 2 c, 2 c + 1, 2 c + 8, 2 c + 9, the same in all lanes with this c."""
    var lane = Int(lane_id())
    var total = Four(0)
    for m in range(tiles):
        var a = Array[Four, STEPS](fill=Four(0))
        comptime for s in range(STEPS):
            a[s] = load4(fragments, ((m * steps + min(s, steps - 1)) * 32 + lane) * 4)
        var low = at(weights, m * 16 + (lane >> 2))
        var high = at(weights, m * 16 + (lane >> 2) + 8)
        var d0 = Acc(0)
        var d1 = Acc(0)
        comptime for s in range(STEPS):
            var e0 = d0
            var e1 = d1
            mma(e0, bitcast[DType.bfloat16, 8](a[s]), kept[2 * s], d0)
            mma(e1, bitcast[DType.bfloat16, 8](a[s]), kept[2 * s + 1], d1)
            d0 = e0
            d1 = e1
        total += weighed(d0, low, high).join(weighed(d1, low, high))
    comptime for i in range(4):
        comptime for step in range(3):
            total[i] += shuffle_xor(total[i], UInt32(4 << step))
    return round4(total, True)


@always_inline
def plain_score(q: F32P, key: F32P, weights: F32P, heads: Int, dim: Int) -> Float32:
    """One score in plain float32."""
    var total = Float32(0)
    for h in range(heads):
        var acc = Four(0)
        for i in range(0, dim, 4):
            acc = fma(load4(q, h * dim + i), load4(key, i), acc)
        total = fma(max((acc[0] + acc[1]) + (acc[2] + acc[3]), Float32(0)), at(weights, h), total)
    return total


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(BLOCK_THREADS)), `nvvm.minctasm`=SIMDLength(2)
)
def score_kernel(
    scores: U32P, tops: U32P, q: F32P, fragments: F32P, weights: F32P, keys: F32P, candidates: I32P, seq: I32P,
    pos: I32P, table: U32P, t: Int32, heads_: Int32, dim_: Int32, nb_: Int32, capacity: Int32, slots: Int32,
    width: Int32, layer: I32P, mode: I32P,
):
    """Gives scores [T, capacity], tops [T, capacity / GROUP]: 32 bits a place, of which bfloat16 fills the first half.

    weights [T, m 16]; fragments [T, m, steps, lane, 4 words]. Grid (capacity / SCORE_KEYS, T / SCORE_ROWS).
    """
    var first = Int(block_idx.x) * SCORE_KEYS
    var heads = Int(heads_)
    var dim = Int(dim_)
    var nb = Int(nb_)
    var cap = Int(capacity)
    var steps = dim >> 4
    var tiles = (heads + 15) >> 4
    var lane = Int(lane_id())
    var exact = is_exact(mode)
    var ratio = max(Int(layer[unsafe_offset=RATIO]), 1)
    var offset = Int(layer[unsafe_offset=KEY_OFFSET])
    var size = Int(layer[unsafe_offset=CANDIDATE_BLOCK]) if layer[unsafe_offset=CANDIDATES] == 2 else 0
    var leaf = Leaf(keys, 1, Int(slots), dim, table, Int(width), Int(layer[unsafe_offset=PAGE_SIZE]))
    var kept = Array[SIMD[DType.bfloat16, 4], 2 * STEPS](fill=0)
    var held = -1
    var held_end = 0
    for r in range(Int(block_idx.y) * SCORE_ROWS, min((Int(block_idx.y) + 1) * SCORE_ROWS, Int(t))):
        var visible = visible_to(r, pos, layer)
        var mine = candidates.unsafe_offset(r * nb)
        # Places without a key come last.
        if visible == 0 or row_of_entry(first, visible, mine, nb, size) < 0:
            continue
        var s = Int(seq[unsafe_offset=r])
        if not exact:
            if Int(thread_idx.x) < SCORE_KEYS:
                var row = row_of_entry(first + Int(thread_idx.x), visible, mine, nb, size)
                var key = leaf.compressed(s, offset, ratio, max(row, 0))
                var score = plain_score(
                    q.unsafe_offset(r * heads * dim), key, weights.unsafe_offset(r * tiles * 16), heads, dim
                )
                var place = order_key(score) if row >= 0 else UInt32(0)
                var top = place
                comptime for i in range(4):
                    top = max(top, shuffle_xor(top, UInt32(1 << i)))
                scores[unsafe_offset=r * cap + first + Int(thread_idx.x)] = place
                if lane % GROUP == 0:
                    tops[unsafe_offset=(r * cap + first + Int(thread_idx.x)) // GROUP] = top
            continue
        var entry = first + Int(warp_id()) * GROUP
        var row0 = row_of_entry(entry + (lane >> 2), visible, mine, nb, size)
        var row1 = row_of_entry(entry + (lane >> 2) + 8, visible, mine, nb, size)
        if s != held or size > 0 or visible > held_end and first + SCORE_KEYS > held_end:
            # An absent key reads as the first one.
            var key0 = Int(leaf.compressed(s, offset, ratio, max(row0, 0)))
            var key1 = Int(leaf.compressed(s, offset, ratio, max(row1, 0)))
            kept = keep_keys(key0, key1, dim)
            held = s
            held_end = visible
        var there0 = vote[DType.uint32](row0 >= 0) >> UInt32(8 * (lane & 3))
        var there1 = vote[DType.uint32](row1 >= 0) >> UInt32(8 * (lane & 3))
        var total = scores_of(
            kept, fragments.unsafe_offset(r * tiles * steps * 128), weights.unsafe_offset(r * tiles * 16), tiles, steps
        )
        var place = SIMD[DType.uint32, 4](0)
        comptime for i in range(4):
            var there = (there0 if i < 2 else there1) >> UInt32(4 * (i % 2)) & 1
            place[i] = order_key(total[i]) >> 16 if there != 0 else UInt32(0)
        var top = max(max(place[0], place[1]), max(place[2], place[3]))
        top = max(top, shuffle_xor(top, UInt32(1)))
        top = max(top, shuffle_xor(top, UInt32(2)))
        if lane < 4:
            # Two keys a word: key 2 c is the lower half.
            var home = scores.unsafe_offset(r * cap + entry // 2 + lane)
            home[] = place[0] | (place[1] << 16)
            home[unsafe_offset=4] = place[2] | (place[3] << 16)
        if lane == 0:
            var home = tops.unsafe_offset(r * (cap // GROUP)).unsafe_bitcast[UInt16]()
            home[unsafe_offset=entry // GROUP] = UInt16(top)
