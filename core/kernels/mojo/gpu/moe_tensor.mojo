"""The mixture of experts under tensor parallelism on the GPU: hidden rows travel as float32 [T, k + 1, N] in row order."""

from std.math import ceildiv
from max.gpu import block_idx, thread_idx
from max.gpu.host import DeviceBuffer, DeviceContext
from ..common import F32P, I32P, U8P
from ..quant import BF16
from .base import BF16P, BLOCK_THREADS, is_exact
from .expand import SPREAD_COLUMNS, SPREAD_THREADS
from .experts import first_gpu, second_gpu
from .linear import linear_gpu, planes_for, pointer
from .moe import sum_of
from .routing import group_alone, route_alone
from .staged import put, stage
from .vectors import round4, store4


def route_gpu(
    ctx: DeviceContext, ids: I32P, weights: F32P, x: F32P, gate: U8P, bias: F32P, t: Int, d: Int, experts: Int, k: Int,
    model: F32P, mode: I32P,
) raises:
    """See `sd_route`; three launches."""
    if t == 0:
        return
    var planes = planes_for(ctx, t, d)
    var scores = ctx.enqueue_create_buffer[DType.float32](t * experts)
    stage(ctx, pointer(planes), x, d, t, d, False, mode)
    linear_gpu[BF16](ctx, pointer(scores), pointer(planes), t, d, gate, gate, experts, False, mode)
    route_alone(ctx, ids, weights, pointer(scores), bias, t, experts, k, model)
    _ = planes^
    _ = scores^


struct Lists(Movable):
    """Device memory for the slots of `experts` experts over `pairs` choices, as `group_kernel` fills it."""

    var data: DeviceBuffer[DType.int32]
    var experts: Int
    var pairs: Int

    def __init__(out self, ctx: DeviceContext, experts: Int, pairs: Int) raises:
        self.data = ctx.enqueue_create_buffer[DType.int32](2 * (experts + 1) + 3 * pairs)
        self.experts = experts
        self.pairs = pairs

    def active(self) -> I32P:
        return pointer(self.data)

    def starts(self) -> I32P:
        return self.active().unsafe_offset(self.experts + 1)

    def slot_pairs(self) -> I32P:
        return self.starts().unsafe_offset(self.experts + 1)

    def slot_of(self) -> I32P:
        return self.slot_pairs().unsafe_offset(self.pairs)

    def group(self, ctx: DeviceContext, ids: I32P, t: Int, k: Int) raises:
        """One launch."""
        group_alone(
            ctx, self.active(), self.starts(), self.slot_pairs(), self.slot_of(),
            self.slot_of().unsafe_offset(self.pairs), ids, t, self.experts, k,
        )


@always_inline
def place_of(slot: Int, slot_pairs: I32P, slots: Int, k: Int) -> Int:
    """Where slot `slot` lies in [T, k + 1]: its pair's place, the shared expert's last."""
    if slot >= slots:
        return (slot - slots) * (k + 1) + k
    var pair = UInt32(slot_pairs[unsafe_offset=slot])
    return Int(pair // UInt32(k)) * (k + 1) + Int(pair % UInt32(k))


def from_planes_kernel(
    hidden: F32P, planes: BF16P, slot_pairs: I32P, slots: Int32, k: Int32, columns: Int32, stride: Int32, mode: I32P
):
    """Grid (slots + T, ceildiv(N, BLOCK_THREADS)): hidden [T, k + 1, N] from planes [3, slots + T, N]."""
    var slot = Int(block_idx.x)
    var n = Int(columns)
    var i = Int(block_idx.y) * BLOCK_THREADS + Int(thread_idx.x)
    if i >= n:
        return
    var v = planes[unsafe_offset=slot * n + i].cast[DType.float32]()
    if not is_exact(mode):
        # The smaller two first: together they are the rest exactly, so the sum is the value itself.
        var rest = planes[unsafe_offset=2 * Int(stride) + slot * n + i].cast[DType.float32]()
        v += planes[unsafe_offset=Int(stride) + slot * n + i].cast[DType.float32]() + rest
    hidden[unsafe_offset=place_of(slot, slot_pairs, Int(slots), Int(k)) * n + i] = v


def to_planes_kernel(
    planes: BF16P, hidden: F32P, slot_pairs: I32P, slots: Int32, k: Int32, columns: Int32, stride: Int32, mode: I32P
):
    """The other way round; same grid."""
    var slot = Int(block_idx.x)
    var n = Int(columns)
    var i = Int(block_idx.y) * BLOCK_THREADS + Int(thread_idx.x)
    if i >= n:
        return
    var v = hidden[unsafe_offset=place_of(slot, slot_pairs, Int(slots), Int(k)) * n + i]
    put(planes, Int(stride), slot * n + i, v, is_exact(mode))


def hidden_gpu(
    ctx: DeviceContext, hidden: F32P, x: F32P, ids: I32P, weights: F32P, w1: U8P, q1: U8P, w3: U8P, q3: U8P, s1: U8P,
    sq1: U8P, s3: U8P, sq3: U8P, model: F32P, mode: I32P, t: Int, d: Int, n: Int, k: Int, experts: Int,
) raises:
    """See `sd_experts_hidden`; four launches."""
    if t == 0:
        return
    var all = t * k + t
    var lists = Lists(ctx, experts, t * k)
    lists.group(ctx, ids, t, k)
    var staged = planes_for(ctx, t, d)
    stage(ctx, pointer(staged), x, d, t, d, True, mode)
    var planes = planes_for(ctx, all, n)
    first_gpu(
        ctx, pointer(planes), pointer(staged), weights, lists.active(), lists.starts(), lists.slot_pairs(), w1, q1, w3,
        q3, s1, sq1, s3, sq3, model, mode, t, d, n, k, experts, t,
    )
    ctx.enqueue_function[from_planes_kernel](
        hidden, pointer(planes), lists.slot_pairs(), Int32(t * k), Int32(k), Int32(n), Int32(all * n), mode,
        grid_dim=(all, ceildiv(n, BLOCK_THREADS)), block_dim=BLOCK_THREADS,
    )
    _ = lists^
    _ = staged^
    _ = planes^


def sum_kernel(y: F32P, results: F32P, slot_of: I32P, t: Int32, columns: Int32, k: Int32, mode: I32P):
    """Grid (T, ceildiv(N, SPREAD_COLUMNS)): sums y [T, N] over a row's slots."""
    var r = Int(block_idx.x)
    var n = Int(columns)
    var i = Int(block_idx.y) * SPREAD_COLUMNS + Int(thread_idx.x) * 4
    if i < n:
        store4(y, r * n + i, round4(sum_of(results, slot_of, r, Int(t), Int(k), n, i), is_exact(mode)))


def rows_gpu(
    ctx: DeviceContext, y: F32P, hidden: F32P, ids: I32P, w2: U8P, q2: U8P, s2: U8P, sq2: U8P, mode: I32P, t: Int,
    n: Int, inner: Int, k: Int, experts: Int,
) raises:
    """See `sd_experts_rows`; four launches."""
    if t == 0:
        return
    var all = t * k + t
    var lists = Lists(ctx, experts, t * k)
    lists.group(ctx, ids, t, k)
    var planes = planes_for(ctx, all, inner)
    ctx.enqueue_function[to_planes_kernel](
        pointer(planes), hidden, lists.slot_pairs(), Int32(t * k), Int32(k), Int32(inner), Int32(all * inner), mode,
        grid_dim=(all, ceildiv(inner, BLOCK_THREADS)), block_dim=BLOCK_THREADS,
    )
    var results = ctx.enqueue_create_buffer[DType.float32](all * n)
    second_gpu(
        ctx, pointer(results), pointer(planes), lists.active(), lists.starts(), w2, q2, s2, sq2, mode, t, n, inner, k,
        experts, t,
    )
    ctx.enqueue_function[sum_kernel](
        y, pointer(results), lists.slot_of(), Int32(t), Int32(n), Int32(k), mode,
        grid_dim=(t, ceildiv(n, SPREAD_COLUMNS)), block_dim=SPREAD_THREADS,
    )
    _ = lists^
    _ = planes^
    _ = results^
