"""The two matmuls of the experts: packed FP4 for routed ones, FP8 for the shared one, over the slots of each."""

from std.collections import Array
from std.math import ceildiv
from std.utils import StaticTuple
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, lane_id, warp_id
from max.gpu.host import DeviceContext, FuncAttribute
from ..common import F32P, I32P, U8P, at, bf16, sigmoid
from ..layout import SWIGLU_LIMIT
from ..quant import E2M1, E4M3
from .base import BF16P, BLOCK_THREADS, Shared, WARPS, is_exact, parts_of
from .linear import bounds_of, memory_of, store_tile
from .matmul import Acc, Panels, Ring, STAGES, block_memory, span, stage_bytes
from .staged import fp8_in_warp, put

comptime MANY = 4  # row tiles of eight that one pass over the weights serves, where there are more than eight rows
comptime FIRST_SPLIT = 2
comptime SECOND_SPLIT = 2
comptime SECOND_COLUMNS = WARPS // SECOND_SPLIT * 16


@always_inline
def ring_of(warp: Int) -> Ring:
    return block_memory().unsafe_offset(warp * STAGES * stage_bytes[1]())


@always_inline
def sums_of() -> Shared:
    return block_memory().unsafe_offset(WARPS * STAGES * stage_bytes[1]()).unsafe_bitcast[Float32]()


@always_inline
def expert_of(place: Int, active: I32P, starts: I32P, experts: Int, slots: Int, shared: Int) -> Tuple[Int, Int, Int]:
    """Expert, first slot and number of slots of a block row: 0 is the shared expert; no slots: nothing to do."""
    if place == 0:
        return (experts, slots, shared)
    if place > Int(active[unsafe_offset=experts]):
        return (0, 0, 0)
    var e = Int(active[unsafe_offset=place - 1])
    var begin = Int(starts[unsafe_offset=e])
    return (e, begin, Int(starts[unsafe_offset=e + 1]) - begin)


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
    # Warps: gate or up, then the half of the 32 columns, then the span.
    var n0 = Int(block_idx.x) * 32 + warp // FIRST_SPLIT % 2 * 16
    var is_gate = warp < WARPS // 2
    var offsets = Array[Int, NT](fill=0)
    comptime for i in range(NT):
        var slot = min(done + i * 8 + lane // 4, count - 1)
        var row = slot if shared_expert else Int(UInt32(slot_pairs[unsafe_offset=begin + slot]) // UInt32(k))
        offsets[i] = row * d
    if n0 < inner:
        var bounds = bounds_of[fmt](d, FIRST_SPLIT, warp % FIRST_SPLIT)
        var panels = Panels[fmt, 1](d)
        panels.set(0, w1 if is_gate else w3, q1 if is_gate else q3, n0, inner, d)
        var acc = Array[Acc, NT](fill=Acc(0))
        span[fmt, 1, NT](acc, ring_of(warp), panels, bounds[0], bounds[1], x, offsets, t * d, parts_of(exact))
        comptime for i in range(NT):
            store_tile(sums.unsafe_offset((warp * NT + i) * 128), acc[i], False)
    barrier()
    var limit = at(model, SWIGLU_LIMIT)
    var column = Int(block_idx.x) * 32 + lane
    for j in range(warp, min(8 * NT, count - done), WARPS):
        var home = sums.unsafe_offset(lane // 16 * FIRST_SPLIT * NT * 128 + j * 16 + lane % 16)
        var gate = Float32(0)
        var up = Float32(0)
        comptime for part in range(FIRST_SPLIT):
            gate += home[unsafe_offset=part * NT * 128]
            up += home[unsafe_offset=(part + WARPS // 2) * NT * 128]
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


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(BLOCK_THREADS)),
    `nvvm.minctasm`=SIMDLength(2),
)
def first_kernel[TILES: Int](
    hidden: BF16P, x: BF16P, weights: F32P, active: I32P, starts: I32P, slot_pairs: I32P, w1: U8P, q1: U8P, w3: U8P,
    q3: U8P, s1: U8P, sq1: U8P, s3: U8P, sq3: U8P, t_: Int32, d_: Int32, inner_: Int32, k_: Int32, experts_: Int32,
    shared: Int32, model: F32P, mode: I32P,
):
    """Gives hidden planes [3, T k + T, I]; grid (I / 32, most active experts + 1). shared: T, or 0: not here."""
    var t = Int(t_)
    var d = Int(d_)
    var inner = Int(inner_)
    var k = Int(k_)
    var experts = Int(experts_)
    var exact = is_exact(mode)
    var own = expert_of(Int(block_idx.y), active, starts, experts, t * k, Int(shared))
    var sums = sums_of()
    var e = own[0]
    var w = e * inner * (d // 2)
    var s = e * inner * (d // 32)
    var done = 0
    while done < own[2]:
        var few = TILES == 1 or own[2] - done <= 8
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
    """Slots done … done + 8 NT - 1 of an expert: SECOND_COLUMNS output columns, rounded."""
    var warp = Int(warp_id())
    var lane = Int(lane_id())
    var n0 = Int(block_idx.x) * SECOND_COLUMNS + warp // SECOND_SPLIT * 16
    var offsets = Array[Int, NT](fill=0)
    comptime for i in range(NT):
        offsets[i] = (begin + min(done + i * 8 + lane // 4, count - 1)) * inner
    if n0 < d:
        var bounds = bounds_of[fmt](inner, SECOND_SPLIT, warp % SECOND_SPLIT)
        var panels = Panels[fmt, 1](inner)
        panels.set(0, w, s, n0, d, inner)
        var acc = Array[Acc, NT](fill=Acc(0))
        span[fmt, 1, NT](acc, ring_of(warp), panels, bounds[0], bounds[1], hidden, offsets, plane, parts_of(exact))
        comptime for i in range(NT):
            store_tile(sums.unsafe_offset((warp * NT + i) * 128), acc[i], False)
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


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(BLOCK_THREADS)),
    `nvvm.minctasm`=SIMDLength(2),
)
def second_kernel[TILES: Int](
    results: F32P, hidden: BF16P, active: I32P, starts: I32P, w2: U8P, q2: U8P, s2: U8P, sq2: U8P, t_: Int32,
    d_: Int32, inner_: Int32, k_: Int32, experts_: Int32, shared: Int32, mode: I32P,
):
    """Gives results [T k + T, D]; grid (D / SECOND_COLUMNS, most active experts + 1). shared: T, or 0: not here."""
    var t = Int(t_)
    var d = Int(d_)
    var inner = Int(inner_)
    var slots = t * Int(k_)
    var experts = Int(experts_)
    var exact = is_exact(mode)
    var own = expert_of(Int(block_idx.y), active, starts, experts, slots, Int(shared))
    var sums = sums_of()
    var w = w2.unsafe_offset(own[0] * d * (inner // 2))
    var s = q2.unsafe_offset(own[0] * d * (inner // 32))
    var plane = (slots + t) * inner
    var done = 0
    while done < own[2]:
        var few = TILES == 1 or own[2] - done <= 8
        if own[0] == experts and few:
            second_tiles[E4M3, 1](results, hidden, s2, sq2, sums, own[1], done, own[2], d, inner, plane, exact)
        elif own[0] == experts:
            second_tiles[E4M3, TILES](results, hidden, s2, sq2, sums, own[1], done, own[2], d, inner, plane, exact)
        elif few:
            second_tiles[E2M1, 1](results, hidden, w, s, sums, own[1], done, own[2], d, inner, plane, exact)
        else:
            second_tiles[E2M1, TILES](results, hidden, w, s, sums, own[1], done, own[2], d, inner, plane, exact)
        done += 8 if few else 8 * TILES


def first_gpu(
    ctx: DeviceContext, hidden: BF16P, x: BF16P, weights: F32P, active: I32P, starts: I32P, slot_pairs: I32P, w1: U8P,
    q1: U8P, w3: U8P, q3: U8P, s1: U8P, sq1: U8P, s3: U8P, sq3: U8P, model: F32P, mode: I32P, t: Int, d: Int,
    inner: Int, k: Int, experts: Int, shared: Int,
) raises:
    """Hidden planes [3, T k + T, I] of every slot from planes x; one launch. shared: T, or 0 for no shared expert."""

    @__parameter
    def launch[TILES: Int]() raises:
        comptime memory = memory_of[1, TILES]()
        ctx.enqueue_function[first_kernel[TILES]](
            hidden, x, weights, active, starts, slot_pairs, w1, q1, w3, q3, s1, sq1, s3, sq3, Int32(t), Int32(d),
            Int32(inner), Int32(k), Int32(experts), Int32(shared), model, mode,
            grid_dim=(ceildiv(inner, 32), min(experts, t * k) + 1), block_dim=BLOCK_THREADS, shared_mem_bytes=memory,
            func_attribute=FuncAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES(UInt32(memory)),
        )

    if t <= 8:
        launch[1]()
    else:
        launch[MANY]()


def second_gpu(
    ctx: DeviceContext, results: F32P, hidden: BF16P, active: I32P, starts: I32P, w2: U8P, q2: U8P, s2: U8P, sq2: U8P,
    mode: I32P, t: Int, d: Int, inner: Int, k: Int, experts: Int, shared: Int,
) raises:
    """Results [T k + T, D] of every slot from hidden planes; one launch."""

    @__parameter
    def launch[TILES: Int]() raises:
        comptime memory = memory_of[1, TILES]()
        ctx.enqueue_function[second_kernel[TILES]](
            results, hidden, active, starts, w2, q2, s2, sq2, Int32(t), Int32(d), Int32(inner), Int32(k),
            Int32(experts), Int32(shared), mode, grid_dim=(ceildiv(d, SECOND_COLUMNS), min(experts, t * k) + 1),
            block_dim=BLOCK_THREADS, shared_mem_bytes=memory,
            func_attribute=FuncAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES(UInt32(memory)),
        )

    if t <= 8:
        launch[1]()
    else:
        launch[MANY]()


def experts_gpu(
    ctx: DeviceContext, results: F32P, hidden: BF16P, x: BF16P, weights: F32P, active: I32P, starts: I32P,
    slot_pairs: I32P, w1: U8P, q1: U8P, w3: U8P, q3: U8P, w2: U8P, q2: U8P, s1: U8P, sq1: U8P, s3: U8P, sq3: U8P,
    s2: U8P, sq2: U8P, model: F32P, mode: I32P, t: Int, d: Int, inner: Int, k: Int, experts: Int,
) raises:
    """Results [T k + T, D] of every slot from planes x; hidden planes [3, T k + T, I] are working memory."""
    first_gpu(
        ctx, hidden, x, weights, active, starts, slot_pairs, w1, q1, w3, q3, s1, sq1, s3, sq3, model, mode, t, d, inner,
        k, experts, t,
    )
    second_gpu(ctx, results, hidden, active, starts, w2, q2, s2, sq2, mode, t, d, inner, k, experts, t)
