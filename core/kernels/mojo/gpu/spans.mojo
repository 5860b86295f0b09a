"""Attention on the GPU: a block per row, eight heads and one fixed span of keys, then one sum over the spans.

The spans are cut by place (window halves, chosen rows by 64, a draft block's own rows), never by how many there are,
so that a row's sums do not depend on its batch.
"""

from std.collections import Array
from std.math import exp, fma, sqrt
from std.memory import AddressSpace, stack_allocation
from max.gpu import barrier, block_idx, lane_id, thread_idx, warp_id
from ..common import F32P, I32P, U32P, at, bf16
from ..layout import BLOCK, KV_OFFSET, LAYER, Leaf, PAGE_SIZE, RATIO, WINDOW
from .base import BLOCK_THREADS, WARPS, Shared, is_exact, shared, warp_max, warp_sum
from .hyper import Four, load4
from .select import SharedInt, shared_ints

comptime KEYS = 64
comptime HEADS = 8
comptime MAX_K = 512
comptime WINDOW_SPANS = 2
comptime Addresses = Pointer[Int64, MutAnyOrigin, address_space=AddressSpace.SHARED]


@always_inline
def nothing() -> Float32:
    return Float32.MIN


@always_inline
def logits_of(logits: Shared, q: Shared, keys: Addresses, n: Int, k: Int, scale: Float32):
    """Logits [HEADS, KEYS] of n keys: a warp takes every eighth key, its lanes the columns."""
    for j in range(Int(warp_id()), n, WARPS):
        var key = F32P(unsafe_from_address=Int(keys[unsafe_offset=j]))
        var acc = Array[Float32, HEADS](fill=0)
        for i in range(Int(lane_id()) * 4, k, 128):
            var v = load4(key, i)
            comptime for h in range(HEADS):
                var u = q.unsafe_offset(h * MAX_K + i).unsafe_load[width=4, alignment=16]()
                acc[h] = fma(u[3], v[3], fma(u[2], v[2], fma(u[1], v[1], fma(u[0], v[0], acc[h]))))
        comptime for h in range(HEADS):
            var total = warp_sum(acc[h])
            if lane_id() == 0:
                logits[unsafe_offset=h * KEYS + j] = total * scale


@always_inline
def key_of(
    slot: Int, r: Int, s: Int, newest: Int, window: Leaf, compressed: Leaf, chosen: I32P, n_chosen: Int, own: F32P,
    k: Int, layer: I32P,
) -> Int:
    """Address of the key in a slot, or 0. Slots: WINDOW positions up to the newest, chosen rows, a block's own rows."""
    var span = Int(layer[unsafe_offset=WINDOW])
    if slot < span:
        var position = newest - span + 1 + slot
        if position < 0:
            return 0
        return Int(window.window(s, Int(layer[unsafe_offset=LAYER]), position))
    if slot < span + n_chosen:
        var ratio = Int(layer[unsafe_offset=RATIO])
        if ratio == 0:
            return 0
        var row = Int(chosen[unsafe_offset=r * n_chosen + slot - span])
        if row < 0:
            return 0
        return Int(compressed.compressed(s, Int(layer[unsafe_offset=KV_OFFSET]), ratio, row))
    var block = Int(layer[unsafe_offset=BLOCK])
    var j = slot - span - n_chosen
    if j >= block:
        return 0
    return Int(own.unsafe_offset((r // block * block + j) * k))


@always_inline
def slots_of(span: Int, spans: Int, n_chosen: Int, layer: I32P) -> Tuple[Int, Int]:
    """First and end slot of a span: window spans, spans of KEYS chosen rows, and the block's own rows last."""
    var window = Int(layer[unsafe_offset=WINDOW])
    if span < WINDOW_SPANS:
        var size = (window + WINDOW_SPANS - 1) // WINDOW_SPANS
        return (span * size, min(window, (span + 1) * size))
    if span < spans - 1:
        var first = window + (span - WINDOW_SPANS) * KEYS
        return (first, min(first + KEYS, window + n_chosen))
    return (window + n_chosen, window + n_chosen + Int(layer[unsafe_offset=BLOCK]))


def span_kernel(
    part: F32P, mass: F32P, q: F32P, window: F32P, rows_leaf: F32P, chosen: I32P, own: F32P, seq: I32P, pos: I32P,
    last: I32P, table: U32P, k_: Int32, heads_: Int32, n_chosen: Int32, spans: Int32, layers: Int32, slots: Int32,
    kv_slots: Int32, width: Int32, layer: I32P, mode: I32P,
):
    """Gives part [T, H, spans, K] unnormalised values, mass [T, H, spans, 2] top and sum.

    Grid (spans, H / HEADS, T).
    """
    var r = Int(block_idx.z)
    var span = Int(block_idx.x)
    var k = Int(k_)
    var all_heads = Int(heads_)
    var h0 = Int(block_idx.y) * HEADS
    var heads = min(HEADS, all_heads - h0)
    var thread = Int(thread_idx.x)
    var exact = is_exact(mode)
    var queries = shared[HEADS * MAX_K]()
    var logits = shared[HEADS * KEYS]()
    var state = shared[HEADS * 3]()  # per head: top, sum, fade
    var keys = stack_allocation[KEYS, DType.int64, address_space=AddressSpace.SHARED]().unsafe_origin_cast[
        MutAnyOrigin
    ]()
    var count = shared_ints[1]()
    var acc = Array[SIMD[DType.float32, 2], HEADS](fill=SIMD[DType.float32, 2](0))
    if thread < HEADS:
        state[unsafe_offset=thread] = nothing()
        state[unsafe_offset=HEADS + thread] = 0
    for i in range(thread, HEADS * k, BLOCK_THREADS):
        var h = i // k
        queries[unsafe_offset=h * MAX_K + i % k] = at(q, (r * all_heads + h0 + h) * k + i % k) if h < heads else 0
    var bounds = slots_of(span, Int(spans), Int(n_chosen), layer)
    var first = bounds[0]
    if pos[unsafe_offset=r] < 0:
        first = bounds[1]
    var scale = 1 / sqrt(Float32(k))
    while first < bounds[1]:
        barrier()
        if thread == 0:
            count[unsafe_offset=0] = 0
        if thread < 32:
            gather_keys(
                keys, count, first, min(first + KEYS, bounds[1]), r, Int(seq[unsafe_offset=r]),
                Int(last[unsafe_offset=r]), window, rows_leaf, chosen, Int(n_chosen), own, k, Int(layers), Int(slots),
                Int(kv_slots), table, Int(width), layer,
            )
        barrier()
        var n = Int(count[unsafe_offset=0])
        logits_of(logits, queries, keys, n, k, scale)
        barrier()
        if Int(warp_id()) < heads:
            soften(logits, state, Int(warp_id()), n, exact)
        barrier()
        if 2 * thread < k:
            comptime for h in range(HEADS):
                acc[h] = acc[h] * state[unsafe_offset=2 * HEADS + h]
            for j in range(n):
                var key = F32P(unsafe_from_address=Int(keys[unsafe_offset=j]))
                var v = key.unsafe_offset(2 * thread).unsafe_load[width=2, alignment=8]()
                comptime for h in range(HEADS):
                    acc[h] = fma(SIMD[DType.float32, 2](logits[unsafe_offset=h * KEYS + j]), v, acc[h])
        first += KEYS
    barrier()
    for h in range(heads):
        var home = (r * all_heads + h0 + h) * Int(spans) + span
        if thread < 2:
            mass[unsafe_offset=home * 2 + thread] = state[unsafe_offset=thread * HEADS + h]
    comptime for h in range(HEADS):
        if h < heads and 2 * thread < k:
            var home = (r * all_heads + h0 + h) * Int(spans) + span
            part.unsafe_offset(home * k + 2 * thread).unsafe_store(acc[h])


@always_inline
def gather_keys(
    keys: Addresses, count: SharedInt, first: Int, end: Int, r: Int, s: Int,
    newest: Int, window: F32P, rows_leaf: F32P, chosen: I32P, n_chosen: Int, own: F32P, k: Int, layers: Int,
    slots: Int, kv_slots: Int, table: U32P, width: Int, layer: I32P,
):
    """Addresses of the keys in slots first … end - 1 in order, by one warp. Empty slots come first or last, never between."""
    var page_size = Int(layer[unsafe_offset=PAGE_SIZE])
    var near = Leaf(window, layers, slots, k, table, width, page_size)
    var far = Leaf(rows_leaf, 1, kv_slots, k, table, width, page_size)
    var filled = 0
    comptime for half in range(KEYS // 32):
        var slot = first + half * 32 + Int(lane_id())
        var address = 0
        if slot < end:
            address = key_of(slot, r, s, newest, near, far, chosen, n_chosen, own, k, layer)
        var there = Float32(1) if address != 0 else Float32(0)
        var total = Int(warp_sum(there))
        # The filled slots of a run of 32 are contiguous: the first one is 32 - total (window start) or 0.
        var leading = Int(warp_max(Float32(32 - Int(lane_id())) if address != 0 else Float32(0)))
        if address != 0:
            keys[unsafe_offset=filled + Int(lane_id()) - (32 - leading)] = Int64(address)
        filled += total
    if lane_id() == 0:
        count[unsafe_offset=0] = Int32(filled)


@always_inline
def soften(logits: Shared, state: Shared, h: Int, n: Int, exact: Bool):
    """One head's logits made probabilities against the running top, by a warp of lanes that take two keys each."""
    var row = logits.unsafe_offset(h * KEYS)
    var lane = Int(lane_id())
    var a = row[unsafe_offset=lane] if lane < n else nothing()
    var b = row[unsafe_offset=lane + 32] if lane + 32 < n else nothing()
    var before = state[unsafe_offset=h]
    var top = max(before, warp_max(max(a, b)))
    var fade = exp(before - top) if n > 0 else Float32(1)
    a = exp(a - top) if lane < n else 0
    b = exp(b - top) if lane + 32 < n else 0
    var total = warp_sum(a + b)
    row[unsafe_offset=lane] = bf16(a, exact)
    row[unsafe_offset=lane + 32] = bf16(b, exact)
    if lane == 0:
        state[unsafe_offset=h] = top
        state[unsafe_offset=HEADS + h] = state[unsafe_offset=HEADS + h] * fade + total
        state[unsafe_offset=2 * HEADS + h] = fade
