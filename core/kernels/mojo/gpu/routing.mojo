"""Routing on the GPU: the experts of every row, then the slots of every expert.

A row is routed by one warp, the same way in either kernel. Slots are (row, chosen expert) pairs in order of expert,
then row.
"""

from std.atomic import Atomic, Ordering
from std.collections import Array
from std.math import exp, fma, sqrt
from std.memory import AddressSpace
from std.utils import StaticTuple
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, lane_id, thread_idx, warp_id
from max.gpu.host import DeviceContext
from max.gpu.primitives.warp import shuffle_idx, shuffle_up
from ..common import F32P, I32P, at
from ..indexer import order_key
from ..layout import ROUTED_SCALING
from .base import warp_least, warp_top, warp_total
from .select import shared_ints

comptime MAX_EXPERTS = 1024
comptime FEW_EXPERTS = 384  # the released model's: twelve a lane stay in registers
comptime MAX_CHOSEN = 32
comptime GROUP_THREADS = 512
comptime OWN_EXPERTS = MAX_EXPERTS // GROUP_THREADS  # neighbours whose counts one thread sums up
comptime ONE_LAUNCH_ROWS = 32
comptime NEAR_SLOTS = 3072  # as many fit in shared memory
comptime CountUp = Atomic[Int32, scope="block"]
comptime USED = 20  # a count of experts in use lies above this many bits of a count of slots


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
def route_row[
    per: Int
](ids: I32P, weights: F32P, scores: F32P, bias: F32P, r: Int, experts: Int, k: Int, model: F32P) -> Int32:
    """The k best of sqrt(softplus(score)) + bias, ties to the lower id; weights from the unbiased ones. By a warp.

    Lane i looks after experts i, i + 32 … and gives back choice i.
    """
    if k < 1:
        return 0
    var lane = Int(lane_id())
    var own = Array[Float32, per](fill=0)
    var shift = Array[Float32, per](fill=0)
    comptime for i in range(per):
        own[i] = at(scores, r * experts + min(lane + 32 * i, experts - 1))
        shift[i] = at(bias, min(lane + 32 * i, experts - 1))
    var scaling = at(model, ROUTED_SCALING)
    var keys = Array[UInt32, per](fill=0)
    comptime for i in range(per):
        var x = own[i]
        own[i] = sqrt(max(x, 0) + log1p_small(exp(-abs(x))))
        # No float of an addition has key 0: it marks experts that are taken or do not exist.
        keys[i] = order_key(own[i] + shift[i]) if lane + 32 * i < experts else UInt32(0)
    var total = Float32(0)
    var affinity = Float32(0)
    var id = Int32(0)
    for slot in range(k):
        var best = keys[0]
        comptime for i in range(1, per):
            best = max(best, keys[i])
        best = warp_top(best)
        var mine = UInt32(MAX_EXPERTS)
        comptime for j in range(per):
            comptime i = per - 1 - j
            mine = UInt32(lane + 32 * i) if keys[i] == best else mine
        var chosen = warp_least(mine)
        var value = Float32(0)
        comptime for i in range(per):
            var this = UInt32(lane + 32 * i) == chosen
            value = own[i] if this else value
            keys[i] = UInt32(0) if this else keys[i]
        value = shuffle_idx(value, chosen % 32)
        total += value
        affinity = value if lane == slot else affinity
        id = Int32(chosen) if lane == slot else id
    if lane < k:
        ids[unsafe_offset=r * k + lane] = id
        weights[unsafe_offset=r * k + lane] = affinity / (total + 1e-20) * scaling
    return id


def route_kernel[
    per: Int
](ids: I32P, weights: F32P, scores: F32P, bias: F32P, experts: Int32, k: Int32, model: F32P):
    """Routing alone, for many rows; grid T, a warp each."""
    _ = route_row[per](ids, weights, scores, bias, Int(block_idx.x), Int(experts), Int(k), model)


@always_inline
def group[
    space: AddressSpace
](
    active: I32P, starts: I32P, slot_pairs: I32P, slot_of: I32P,
    chosen: Pointer[Int32, MutAnyOrigin, address_space=space],
    order: Pointer[Int32, MutAnyOrigin, address_space=space], slots: Int, experts: Int, k: Int,
):
    """By a block of GROUP_THREADS: chosen [T k] are the ids, order [T k] is free; results as in `group_kernel`."""
    var thread = Int(thread_idx.x)
    var lane = Int(lane_id())
    var counts = shared_ints[MAX_EXPERTS]()
    var ends = shared_ints[MAX_EXPERTS]()
    var totals = shared_ints[GROUP_THREADS // 32]()
    comptime for i in range(OWN_EXPERTS):
        counts[unsafe_offset=thread + i * GROUP_THREADS] = 0
    barrier()
    for i in range(thread, slots, GROUP_THREADS):
        _ = CountUp.fetch_add[ordering=Ordering.RELAXED](counts.unsafe_offset(Int(chosen[unsafe_offset=i])), Int32(1))
    barrier()
    # Slots and experts in use before each expert: one prefix sum over both, packed.
    var own = Array[Int32, OWN_EXPERTS](fill=0)
    var sum = Int32(0)
    comptime for i in range(OWN_EXPERTS):
        var count = counts[unsafe_offset=thread * OWN_EXPERTS + i]
        own[i] = count + (Int32(1) << USED if count > 0 else Int32(0))
        sum += own[i]
    var upto = sum
    comptime for i in range(5):
        var other = shuffle_up(upto, UInt32(1 << i))
        upto += other if lane >= 1 << i else Int32(0)
    if lane == 31:
        totals[unsafe_offset=Int(warp_id())] = upto
    barrier()
    var earlier = Int32(0)
    if lane < Int(warp_id()):
        earlier = totals[unsafe_offset=lane]
    upto += Int32(warp_total(UInt32(earlier)))
    var before = upto - sum
    comptime for i in range(OWN_EXPERTS):
        var e = thread * OWN_EXPERTS + i
        var start = before & ((Int32(1) << USED) - 1)
        ends[unsafe_offset=e] = start
        if e < experts:
            starts[unsafe_offset=e] = start
            if own[i] > 0:
                active[unsafe_offset=Int(before >> USED)] = Int32(e)
        before += own[i]
    if thread == GROUP_THREADS - 1:
        active[unsafe_offset=experts] = upto >> USED
        starts[unsafe_offset=experts] = Int32(slots)
    barrier()
    # Pairs fall into their expert's slots in any order; each then counts those before it, so the result is one only.
    for i in range(thread, slots, GROUP_THREADS):
        var place = CountUp.fetch_add[ordering=Ordering.RELAXED](
            ends.unsafe_offset(Int(chosen[unsafe_offset=i])), Int32(1)
        )
        order[unsafe_offset=Int(place)] = Int32(i)
    barrier()
    for p in range(thread, slots, GROUP_THREADS):
        var i = order[unsafe_offset=p]
        var e = chosen[unsafe_offset=Int(i)]
        var end = Int(ends[unsafe_offset=Int(e)])
        var begin = end - Int(counts[unsafe_offset=Int(e)])
        var slot = begin
        for q in range(begin, end):
            slot += 1 if order[unsafe_offset=q] < i else 0
        slot_pairs[unsafe_offset=slot] = i
        var row = Int(UInt32(i) // UInt32(k)) * k
        var place = row
        for j in range(k):
            place += 1 if chosen[unsafe_offset=row + j] < e else 0
        slot_of[unsafe_offset=place] = Int32(slot)


def group_kernel(
    active: I32P, starts: I32P, slot_pairs: I32P, slot_of: I32P, order: I32P, ids: I32P, slots_: Int32, experts: Int32,
    k: Int32,
):
    """One block: active [E + 1] the experts in use and, last, their number; starts [E + 1]; slot_pairs [T k].

    slot_of [T k]: a row's slots by ascending expert. order [T k] is used when shared memory is too small.
    """
    var slots = Int(slots_)
    if slots > NEAR_SLOTS:
        group[AddressSpace.GENERIC](
            active, starts, slot_pairs, slot_of, ids, order, slots, Int(experts), Int(k)
        )
        return
    var chosen = shared_ints[NEAR_SLOTS]()
    for i in range(Int(thread_idx.x), slots, GROUP_THREADS):
        chosen[unsafe_offset=i] = ids[unsafe_offset=i]
    group[AddressSpace.SHARED](
        active, starts, slot_pairs, slot_of, chosen, shared_ints[NEAR_SLOTS](), slots, Int(experts), Int(k)
    )


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(GROUP_THREADS)))
def route_group_kernel[
    per: Int
](
    active: I32P, starts: I32P, slot_pairs: I32P, slot_of: I32P, ids: I32P, weights: F32P, scores: F32P, bias: F32P,
    t: Int32, experts: Int32, k_: Int32, model: F32P,
):
    """Both for up to ONE_LAUNCH_ROWS rows, by one block."""
    var k = Int(k_)
    var chosen = shared_ints[ONE_LAUNCH_ROWS * MAX_CHOSEN]()
    for r in range(Int(warp_id()), Int(t), GROUP_THREADS // 32):
        var id = route_row[per](ids, weights, scores, bias, r, Int(experts), k, model)
        if Int(lane_id()) < k:
            chosen[unsafe_offset=r * k + Int(lane_id())] = id
    group[AddressSpace.SHARED](
        active, starts, slot_pairs, slot_of, chosen, shared_ints[ONE_LAUNCH_ROWS * MAX_CHOSEN](), Int(t) * k,
        Int(experts), k,
    )


def route_and_group(
    ctx: DeviceContext, active: I32P, starts: I32P, slot_pairs: I32P, slot_of: I32P, order: I32P, ids: I32P,
    weights: F32P, scores: F32P, bias: F32P, t: Int, experts: Int, k: Int, model: F32P,
) raises:
    """One launch for few rows, two for more; results as in `route_row` and `group_kernel`."""
    if experts > MAX_EXPERTS or k > MAX_CHOSEN:
        raise Error("sd_moe: the GPU kernel takes up to 1024 experts and 32 of them a token")

    @__parameter
    def launch[per: Int]() raises:
        if t <= ONE_LAUNCH_ROWS:
            ctx.enqueue_function[route_group_kernel[per]](
                active, starts, slot_pairs, slot_of, ids, weights, scores, bias, Int32(t), Int32(experts), Int32(k),
                model, grid_dim=1, block_dim=GROUP_THREADS,
            )
            return
        ctx.enqueue_function[route_kernel[per]](
            ids, weights, scores, bias, Int32(experts), Int32(k), model, grid_dim=t, block_dim=32
        )
        ctx.enqueue_function[group_kernel](
            active, starts, slot_pairs, slot_of, order, ids, Int32(t * k), Int32(experts), Int32(k), grid_dim=1,
            block_dim=GROUP_THREADS,
        )

    if experts <= FEW_EXPERTS:
        launch[FEW_EXPERTS // 32]()
    else:
        launch[MAX_EXPERTS // 32]()


def route_alone(
    ctx: DeviceContext, ids: I32P, weights: F32P, scores: F32P, bias: F32P, t: Int, experts: Int, k: Int, model: F32P
) raises:
    """One launch: ids and weights [T, k] of scores [T, E]."""
    if experts > MAX_EXPERTS or k > MAX_CHOSEN:
        raise Error("sd_route: the GPU kernel takes up to 1024 experts and 32 of them a token")

    @__parameter
    def launch[per: Int]() raises:
        ctx.enqueue_function[route_kernel[per]](
            ids, weights, scores, bias, Int32(experts), Int32(k), model, grid_dim=t, block_dim=32
        )

    if experts <= FEW_EXPERTS:
        launch[FEW_EXPERTS // 32]()
    else:
        launch[MAX_EXPERTS // 32]()


def group_alone(
    ctx: DeviceContext, active: I32P, starts: I32P, slot_pairs: I32P, slot_of: I32P, order: I32P, ids: I32P, t: Int,
    experts: Int, k: Int,
) raises:
    """One launch: results as in `group_kernel`, of ids [T, k] below `experts`."""
    if experts > MAX_EXPERTS or k > MAX_CHOSEN:
        raise Error("sd_experts: the GPU kernel takes up to 1023 experts and 32 of them a token")
    ctx.enqueue_function[group_kernel](
        active, starts, slot_pairs, slot_of, order, ids, Int32(t * k), Int32(experts), Int32(k), grid_dim=1,
        block_dim=GROUP_THREADS,
    )
