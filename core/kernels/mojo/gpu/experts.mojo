"""The two matmuls of the experts: packed FP4 for routed ones, FP8 for the shared one, over the slots of each."""

from std.collections import Array
from max.gpu import barrier, block_idx, lane_id, warp_id
from ..common import F32P, I32P, U8P, at, bf16, sigmoid
from ..layout import SWIGLU_LIMIT
from ..quant import E2M1, E4M3
from .base import BF16P, Shared, WARPS, is_exact, parts_of, shared
from .linear import store_tile
from .matmul import Acc, chunk_columns, span
from .staged import fp8_in_warp, put

comptime TILES = 4  # row tiles of eight that one pass over the weights serves
comptime FIRST_SPLIT = 4
comptime SECOND_SPLIT = 2


@always_inline
def expert_of(place: Int, active: I32P, starts: I32P, experts: Int, slots: Int, t: Int) -> Tuple[Int, Int, Int]:
    """Expert, first slot and number of slots of a block row: 0 is the shared expert; no slots: nothing to do."""
    if place == 0:
        return (experts, slots, t)
    if place > Int(active[unsafe_offset=experts]):
        return (0, 0, 0)
    var e = Int(active[unsafe_offset=place - 1])
    var begin = Int(starts[unsafe_offset=e])
    return (e, begin, Int(starts[unsafe_offset=e + 1]) - begin)


@always_inline
def bounds_of[fmt: Int](k: Int, split: Int, part: Int) -> Tuple[Int, Int]:
    """First and end column of a span, whole chunks each."""
    comptime chunk = chunk_columns[fmt]()
    var length = (k + chunk * split - 1) // (chunk * split) * chunk
    var begin = min(part * length, k)
    return (begin, min(begin + length, k))


@always_inline
def both[fmt: Int, NT: Int](
    home: Shared, w1: U8P, q1: U8P, w3: U8P, q3: U8P, n0: Int, inner: Int, d: Int, part: Int, x: BF16P,
    offsets: Array[Int, NT], plane: Int, parts: Int,
):
    """One warp's spans of gate and up for 16 outputs, stored one behind the other."""
    var bounds = bounds_of[fmt](d, FIRST_SPLIT, part)
    var acc = Array[Acc, NT](fill=Acc(0))
    span[fmt, NT](acc, w1, q1, n0, inner, d, bounds[0], bounds[1], x, offsets, plane, parts)
    store_tile[NT](home, acc)
    comptime for i in range(NT):
        acc[i] = Acc(0)
    span[fmt, NT](acc, w3, q3, n0, inner, d, bounds[0], bounds[1], x, offsets, plane, parts)
    store_tile[NT](home.unsafe_offset(NT * 128), acc)


@always_inline
def first_tiles[fmt: Int, NT: Int](
    hidden: BF16P, x: BF16P, weights: F32P, slot_pairs: I32P, w1: U8P, q1: U8P, w3: U8P, q3: U8P, sums: Shared,
    begin: Int, done: Int, count: Int, t: Int, d: Int, inner: Int, k: Int, shared_expert: Bool, model: F32P,
    exact: Bool,
):
    """Slots done … done + 8 NT - 1 of an expert: hidden = FP8(weight silu(gate) up) for 32 inner columns."""
    var warp = Int(warp_id())
    var lane = Int(lane_id())
    var slots = t * k
    var n0 = Int(block_idx.x) * 32 + warp // FIRST_SPLIT * 16
    var offsets = Array[Int, NT](fill=0)
    comptime for i in range(NT):
        var slot = min(done + i * 8 + lane // 4, count - 1)
        var row = slot if shared_expert else Int(slot_pairs[unsafe_offset=begin + slot]) // k
        offsets[i] = row * d
    if n0 < inner:
        both[fmt, NT](
            sums.unsafe_offset(warp * 2 * NT * 128), w1, q1, w3, q3, n0, inner, d, warp % FIRST_SPLIT, x, offsets,
            t * d, parts_of(exact),
        )
    barrier()
    var limit = at(model, SWIGLU_LIMIT)
    var column = Int(block_idx.x) * 32 + lane
    for j in range(warp, min(8 * NT, count - done), WARPS):
        var home = sums.unsafe_offset(lane // 16 * FIRST_SPLIT * 2 * NT * 128 + j * 16 + lane % 16)
        var gate = Float32(0)
        var up = Float32(0)
        comptime for part in range(FIRST_SPLIT):
            gate += home[unsafe_offset=part * 2 * NT * 128]
            up += home[unsafe_offset=(part * 2 + 1) * NT * 128]
        gate = bf16(gate, exact)
        up = bf16(up, exact)
        gate = limit if gate > limit else gate
        up = limit if up > limit else (-limit if up < -limit else up)
        var weight = Float32(1)
        if not shared_expert:
            weight = at(weights, Int(slot_pairs[unsafe_offset=begin + done + j]))
        var v = bf16(weight * (gate * sigmoid(gate) * up), exact)
        if column >= inner:
            v = 0
        v = fp8_in_warp(v, exact)
        if column < inner:
            put(hidden, (slots + t) * inner, (begin + done + j) * inner + column, v, exact)
    barrier()


def first_kernel(
    hidden: BF16P, x: BF16P, weights: F32P, active: I32P, starts: I32P, slot_pairs: I32P, w1: U8P, q1: U8P, w3: U8P,
    q3: U8P, s1: U8P, sq1: U8P, s3: U8P, sq3: U8P, t_: Int32, d_: Int32, inner_: Int32, k_: Int32, experts_: Int32,
    model: F32P, mode: I32P,
):
    """Gives hidden planes [3, T k + T, I]; grid (I / 32, most active experts + 1)."""
    var t = Int(t_)
    var d = Int(d_)
    var inner = Int(inner_)
    var k = Int(k_)
    var experts = Int(experts_)
    var exact = is_exact(mode)
    var own = expert_of(Int(block_idx.y), active, starts, experts, t * k, t)
    var sums = shared[WARPS * 2 * TILES * 128]()
    var e = own[0]
    var w = e * inner * (d // 2)
    var s = e * inner * (d // 32)
    var done = 0
    while done < own[2]:
        var few = own[2] - done <= 8
        if e == experts and few:
            first_tiles[E4M3, 1](
                hidden, x, weights, slot_pairs, s1, sq1, s3, sq3, sums, own[1], done, own[2], t, d, inner, k, True,
                model, exact,
            )
        elif e == experts:
            first_tiles[E4M3, TILES](
                hidden, x, weights, slot_pairs, s1, sq1, s3, sq3, sums, own[1], done, own[2], t, d, inner, k, True,
                model, exact,
            )
        elif few:
            first_tiles[E2M1, 1](
                hidden, x, weights, slot_pairs, w1.unsafe_offset(w), q1.unsafe_offset(s), w3.unsafe_offset(w),
                q3.unsafe_offset(s), sums, own[1], done, own[2], t, d, inner, k, False, model, exact,
            )
        else:
            first_tiles[E2M1, TILES](
                hidden, x, weights, slot_pairs, w1.unsafe_offset(w), q1.unsafe_offset(s), w3.unsafe_offset(w),
                q3.unsafe_offset(s), sums, own[1], done, own[2], t, d, inner, k, False, model, exact,
            )
        done += 8 if few else 8 * TILES


@always_inline
def second_tiles[fmt: Int, NT: Int](
    results: F32P, hidden: BF16P, w: U8P, s: U8P, sums: Shared, begin: Int, done: Int, count: Int, d: Int, inner: Int,
    plane: Int, exact: Bool,
):
    """Slots done … done + 8 NT - 1 of an expert: 64 output columns, rounded."""
    var warp = Int(warp_id())
    var lane = Int(lane_id())
    var n0 = Int(block_idx.x) * 64 + warp // SECOND_SPLIT * 16
    var offsets = Array[Int, NT](fill=0)
    comptime for i in range(NT):
        offsets[i] = (begin + min(done + i * 8 + lane // 4, count - 1)) * inner
    if n0 < d:
        var bounds = bounds_of[fmt](inner, SECOND_SPLIT, warp % SECOND_SPLIT)
        var acc = Array[Acc, NT](fill=Acc(0))
        span[fmt, NT](acc, w, s, n0, d, inner, bounds[0], bounds[1], hidden, offsets, plane, parts_of(exact))
        store_tile[NT](sums.unsafe_offset(warp * NT * 128), acc)
    barrier()
    for i in range(warp % SECOND_SPLIT * 32 + lane, NT * 128, SECOND_SPLIT * 32):
        var row = done + i // 16
        var column = n0 + i % 16
        if row < count and column < d:
            var home = sums.unsafe_offset(warp // SECOND_SPLIT * SECOND_SPLIT * NT * 128 + i)
            var total = Float32(0)
            comptime for part in range(SECOND_SPLIT):
                total += home[unsafe_offset=part * NT * 128]
            results[unsafe_offset=(begin + row) * d + column] = bf16(total, exact)
    barrier()


def second_kernel(
    results: F32P, hidden: BF16P, active: I32P, starts: I32P, w2: U8P, q2: U8P, s2: U8P, sq2: U8P, t_: Int32,
    d_: Int32, inner_: Int32, k_: Int32, experts_: Int32, mode: I32P,
):
    """Gives results [T k + T, D]; grid (D / 64, most active experts + 1)."""
    var t = Int(t_)
    var d = Int(d_)
    var inner = Int(inner_)
    var slots = t * Int(k_)
    var experts = Int(experts_)
    var exact = is_exact(mode)
    var own = expert_of(Int(block_idx.y), active, starts, experts, slots, t)
    var sums = shared[WARPS * TILES * 128]()
    var w = w2.unsafe_offset(own[0] * d * (inner // 2))
    var s = q2.unsafe_offset(own[0] * d * (inner // 32))
    var plane = (slots + t) * inner
    var done = 0
    while done < own[2]:
        var few = own[2] - done <= 8
        if own[0] == experts and few:
            second_tiles[E4M3, 1](results, hidden, s2, sq2, sums, own[1], done, own[2], d, inner, plane, exact)
        elif own[0] == experts:
            second_tiles[E4M3, TILES](results, hidden, s2, sq2, sums, own[1], done, own[2], d, inner, plane, exact)
        elif few:
            second_tiles[E2M1, 1](results, hidden, w, s, sums, own[1], done, own[2], d, inner, plane, exact)
        else:
            second_tiles[E2M1, TILES](results, hidden, w, s, sums, own[1], done, own[2], d, inner, plane, exact)
        done += 8 if few else 8 * TILES
