"""The mixture of experts on the GPU: routing, grouping by expert, two expert matmuls, and the sum of a row.

Slots are (row, chosen expert) pairs in order of expert, then row; T slots of the shared expert follow. An expert's
block decodes its weights once for all rows that chose it.
"""

from std.collections import Array
from std.math import ceildiv, exp, fma, sqrt
from max.gpu import barrier, block_idx, lane_id, thread_idx, warp_id
from max.gpu.host import DeviceContext
from max.gpu.primitives.warp import shuffle_xor
from ..common import F32P, I32P, U8P, at, bf16, sigmoid
from ..indexer import order_key
from ..layout import ROUTED_SCALING, SWIGLU_LIMIT
from ..quant import BF16
from .base import BF16P, BLOCK_THREADS, WARPS, is_exact, shared
from .hyper import expand_column
from .linear import linear_gpu, planes_for, pointer
from .experts import first_kernel, second_kernel
from .select import SELECT_THREADS, shared_ints
from .staged import fp8_in_warp, put

comptime MAX_EXPERTS = 1024


def stage_both_kernel(plain: BF16P, quantised: BF16P, x: F32P, k: Int32, stride: Int32, mode: I32P):
    """Rows x [T, K] as they are (for the router) and through FP8 (for the experts); grid (T, K / BLOCK_THREADS)."""
    var exact = is_exact(mode)
    var i = (Int(block_idx.y) * WARPS + Int(warp_id())) * 32 + Int(lane_id())
    if i >= Int(k):
        return
    var place = Int(block_idx.x) * Int(k) + i
    var v = at(x, place)
    put(plain, Int(stride), place, v, exact)
    put(quantised, Int(stride), place, fp8_in_warp(v, exact), exact)


@always_inline
def log1p_small(e: Float32) -> Float32:
    """Natural logarithm of 1 + e for 0 <= e <= 1 as 2 artanh(e / (2 + e)); the GPU's logarithm is too coarse near 1."""
    var z = e / (2 + e)
    var y = z * z
    var s = fma(y, Float32(1.0 / 17.0), Float32(1.0 / 15.0))
    s = fma(y, s, Float32(1.0 / 13.0))
    s = fma(y, s, Float32(1.0 / 11.0))
    s = fma(y, s, Float32(1.0 / 9.0))
    s = fma(y, s, Float32(1.0 / 7.0))
    s = fma(y, s, Float32(1.0 / 5.0))
    s = fma(y, s, Float32(1.0 / 3.0))
    return 2 * fma(z * y, s, z)


@always_inline
def better(key: UInt32, id: Int32, other: UInt32, other_id: Int32) -> Bool:
    return other > key or (other == key and other_id < id)


def route_kernel(
    ids: I32P, weights: F32P, scores: F32P, bias: F32P, experts_: Int32, k: Int32, model: F32P
):
    """The k best of sqrt(softplus(score)) + bias, ties to the lower id; weights from the unbiased ones; a warp a row."""
    var r = Int(block_idx.x)
    var experts = Int(experts_)
    var lane = Int(lane_id())
    var own = shared[MAX_EXPERTS]()
    var taken = shared_ints[MAX_EXPERTS]()
    for e in range(lane, experts, 32):
        var x = at(scores, r * experts + e)
        var affinity = sqrt(max(x, 0) + log1p_small(exp(-abs(x))))
        own[unsafe_offset=e] = affinity
        taken[unsafe_offset=e] = 0
    barrier()
    var total = Float32(0)
    for slot in range(Int(k)):
        var best = UInt32(0)
        var best_id = Int32(MAX_EXPERTS)
        for e in range(lane, experts, 32):
            var x = own[unsafe_offset=e] + at(bias, e)
            if taken[unsafe_offset=e] == 0 and (best_id == MAX_EXPERTS or order_key(x) > best):
                best = order_key(x)
                best_id = Int32(e)
        comptime for i in range(5):
            var other = shuffle_xor(best, UInt32(16 >> i))
            var other_id = shuffle_xor(best_id, UInt32(16 >> i))
            if other_id < MAX_EXPERTS and (best_id == MAX_EXPERTS or better(best, best_id, other, other_id)):
                best = other
                best_id = other_id
        var chosen = Int(best_id)
        if chosen % 32 == lane:
            taken[unsafe_offset=chosen] = 1
        var affinity = own[unsafe_offset=chosen]
        total += affinity
        if lane == 0:
            ids[unsafe_offset=r * Int(k) + slot] = best_id
            weights[unsafe_offset=r * Int(k) + slot] = affinity
    if lane == 0:
        for slot in range(Int(k)):
            var place = r * Int(k) + slot
            weights[unsafe_offset=place] = at(weights, place) / (total + 1e-20) * at(model, ROUTED_SCALING)


def group_kernel(
    active: I32P, starts: I32P, slot_pairs: I32P, slot_of: I32P, ids: I32P, slots_: Int32, experts_: Int32
):
    """One block: active [E + 1] the experts in use and, last, their number; starts [E + 1]; slot_pairs and slot_of [T k]."""
    var thread = Int(thread_idx.x)
    var slots = Int(slots_)
    var experts = Int(experts_)
    var counts = shared_ints[SELECT_THREADS]()
    var used = shared_ints[SELECT_THREADS]()
    var count = 0
    if thread < experts:
        for i in range(slots):
            if Int(ids[unsafe_offset=i]) == thread:
                count += 1
    counts[unsafe_offset=thread] = Int32(count)
    used[unsafe_offset=thread] = Int32(1 if count > 0 else 0)
    var step = 1
    while step < SELECT_THREADS:  # inclusive prefix sums
        barrier()
        var a = counts[unsafe_offset=thread - step] if thread >= step else Int32(0)
        var b = used[unsafe_offset=thread - step] if thread >= step else Int32(0)
        barrier()
        counts[unsafe_offset=thread] += a
        used[unsafe_offset=thread] += b
        step *= 2
    barrier()
    if thread == SELECT_THREADS - 1:
        active[unsafe_offset=experts] = used[unsafe_offset=thread]
        starts[unsafe_offset=experts] = Int32(slots)
    if thread < experts:
        var filled = Int(counts[unsafe_offset=thread]) - count
        starts[unsafe_offset=thread] = Int32(filled)
        if count > 0:
            active[unsafe_offset=Int(used[unsafe_offset=thread]) - 1] = Int32(thread)
            for i in range(slots):
                if Int(ids[unsafe_offset=i]) == thread:
                    slot_pairs[unsafe_offset=filled] = Int32(i)
                    slot_of[unsafe_offset=i] = Int32(filled)
                    filled += 1


def combine_kernel(
    h_out: F32P, y: F32P, out_: F32P, ids: I32P, slot_of: I32P, h: F32P, mix: F32P, t: Int32, c: Int32, d_: Int32,
    m: Int32, k_: Int32, mode: I32P,
):
    """Sums y = the row's experts by ascending id, then the shared one; h_out spread; grid (T, column tiles)."""
    var r = Int(block_idx.x)
    var d = Int(d_)
    var k = Int(k_)
    var i = Int(block_idx.y) * BLOCK_THREADS + Int(thread_idx.x)
    if i >= d:
        return
    var total = Float32(0)
    var previous = -1
    for _ in range(k):
        var e = MAX_EXPERTS
        var slot = 0
        for j in range(k):
            var id = Int(ids[unsafe_offset=r * k + j])
            if id > previous and id < e:
                e = id
                slot = Int(slot_of[unsafe_offset=r * k + j])
        previous = e
        total += at(out_, slot * d + i)
    total += at(out_, (Int(t) * k + r) * d + i)
    var v = bf16(total, is_exact(mode))
    y[unsafe_offset=r * d + i] = v
    expand_column(h_out, v, h, mix.unsafe_offset(r * Int(m)), r, i, Int(c), d, mode)


def moe(
    ctx: DeviceContext, h_out: F32P, y: F32P, ids: I32P, weights: F32P, x: F32P, h: F32P, mix: F32P, gate: U8P,
    bias: F32P, w1: U8P, q1: U8P, w3: U8P, q3: U8P, w2: U8P, q2: U8P, s1: U8P, sq1: U8P, s3: U8P, sq3: U8P, s2: U8P,
    sq2: U8P, model: F32P, mode: I32P, t: Int, d: Int, c: Int, m: Int, experts: Int, inner: Int, k: Int,
) raises:
    """See `sd_moe`."""
    if t == 0:
        return
    if experts > MAX_EXPERTS:
        raise Error("sd_moe: the GPU kernel takes up to 1024 experts")
    var slots = t * k
    var plain = planes_for(ctx, t, d)
    var quantised = planes_for(ctx, t, d)
    ctx.enqueue_function[stage_both_kernel](
        pointer(plain), pointer(quantised), x, Int32(d), Int32(t * d), mode, grid_dim=(t, ceildiv(d, BLOCK_THREADS)),
        block_dim=BLOCK_THREADS,
    )
    var memory = ctx.enqueue_create_buffer[DType.float32](t * experts + (slots + t) * d)
    var scores = pointer(memory)
    var results = scores.unsafe_offset(t * experts)
    linear_gpu[BF16](ctx, scores, pointer(plain), t, d, gate, gate, experts, False, mode)
    ctx.enqueue_function[route_kernel](
        ids, weights, scores, bias, Int32(experts), Int32(k), model, grid_dim=t, block_dim=32
    )
    var lists = ctx.enqueue_create_buffer[DType.int32](2 * (experts + 1) + 2 * slots)
    var active = pointer(lists)
    var starts = active.unsafe_offset(experts + 1)
    var slot_pairs = starts.unsafe_offset(experts + 1)
    var slot_of = slot_pairs.unsafe_offset(slots)
    ctx.enqueue_function[group_kernel](
        active, starts, slot_pairs, slot_of, ids, Int32(slots), Int32(experts), grid_dim=1, block_dim=SELECT_THREADS
    )
    var hidden = planes_for(ctx, slots + t, inner)
    var most = min(experts, slots) + 1
    ctx.enqueue_function[first_kernel](
        pointer(hidden), pointer(quantised), weights, active, starts, slot_pairs, w1, q1, w3, q3, s1, sq1, s3, sq3,
        Int32(t), Int32(d), Int32(inner), Int32(k), Int32(experts), model, mode, grid_dim=(ceildiv(inner, 32), most),
        block_dim=BLOCK_THREADS,
    )
    ctx.enqueue_function[second_kernel](
        results, pointer(hidden), active, starts, w2, q2, s2, sq2, Int32(t), Int32(d), Int32(inner), Int32(k),
        Int32(experts), mode, grid_dim=(ceildiv(d, 64), most), block_dim=BLOCK_THREADS,
    )
    ctx.enqueue_function[combine_kernel](
        h_out, y, results, ids, slot_of, h, mix, Int32(t), Int32(c), Int32(d), Int32(m), Int32(k), mode,
        grid_dim=(t, ceildiv(d, BLOCK_THREADS)), block_dim=BLOCK_THREADS,
    )
    _ = plain^
    _ = quantised^
    _ = memory^
    _ = lists^
    _ = hidden^
