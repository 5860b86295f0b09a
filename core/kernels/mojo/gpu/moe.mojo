"""The mixture of experts on the GPU: routing, grouping by expert, two expert matmuls, and the sum of a row.

Slots are (row, chosen expert) pairs in order of expert, then row; T slots of the shared expert follow. An expert's
block decodes its weights once for all rows that chose it.
"""

from std.collections import Array
from std.math import ceildiv
from max.gpu import block_idx, thread_idx
from max.gpu.host import DeviceContext
from ..common import F32P, I32P, U8P
from ..quant import BF16
from .base import is_exact
from .expand import SPREAD_COLUMNS, SPREAD_THREADS, load_parts, spread
from .experts import experts_gpu
from .linear import linear_gpu, planes_for, pointer
from .routing import route_and_group
from .staged import stage_both
from .vectors import Four, load4, round4, store4

comptime TOGETHER = 8  # results that a thread of the combination asks for at once


@always_inline
def sum_of(results: F32P, slot_of: I32P, r: Int, t: Int, k: Int, d: Int, i: Int) -> Four:
    """Columns i … i + 3 of row r: its experts' results [T k + T, D] by ascending id, then the shared one's."""
    var last = load4(results, (t * k + r) * d + i)
    var total = Four(0)
    for first in range(0, k, TOGETHER):
        var slots = Array[Int32, TOGETHER](fill=0)
        comptime for j in range(TOGETHER):
            slots[j] = slot_of[unsafe_offset=r * k + min(first + j, k - 1)]
        var v = Array[Four, TOGETHER](fill=Four(0))
        comptime for j in range(TOGETHER):
            v[j] = load4(results, Int(slots[j]) * d + i)
        comptime for j in range(TOGETHER):
            total = total + v[j] if first + j < k else total
    return total + last


def combine_kernel(
    h_out: F32P, y: F32P, results: F32P, slot_of: I32P, h: F32P, mix: F32P, t: Int32, copies: Int32, columns: Int32,
    m: Int32, k_: Int32, mode: I32P,
):
    """Sums y = the row's experts by ascending id, then the shared one; h_out spread; grid as `expand_kernel`."""
    var r = Int(block_idx.x)
    var c = Int(copies)
    var d = Int(columns)
    var k = Int(k_)
    var i = Int(block_idx.y) * SPREAD_COLUMNS + Int(thread_idx.x) * 4
    if i >= d:
        return
    var gates = mix.unsafe_offset(r * Int(m))
    var parts = load_parts(h, gates, r, i, c, d)
    var exact = is_exact(mode)
    var total = round4(sum_of(results, slot_of, r, Int(t), k, d, i), exact)
    store4(y, r * d + i, total)
    spread(h_out, total, parts, h, gates, r, i, c, d, exact)


def moe(
    ctx: DeviceContext, h_out: F32P, y: F32P, ids: I32P, weights: F32P, x: F32P, h: F32P, mix: F32P, gate: U8P,
    bias: F32P, w1: U8P, q1: U8P, w3: U8P, q3: U8P, w2: U8P, q2: U8P, s1: U8P, sq1: U8P, s3: U8P, sq3: U8P, s2: U8P,
    sq2: U8P, model: F32P, mode: I32P, t: Int, d: Int, c: Int, m: Int, experts: Int, inner: Int, k: Int,
) raises:
    """See `sd_moe`."""
    if t == 0:
        return
    var slots = t * k
    var plain = planes_for(ctx, t, d)
    var quantised = planes_for(ctx, t, d)
    stage_both(ctx, pointer(plain), pointer(quantised), x, t, d, mode)
    # Results first: they are read four at a time, and a row of scores may have any length.
    var memory = ctx.enqueue_create_buffer[DType.float32](t * experts + (slots + t) * d)
    var results = pointer(memory)
    var scores = results.unsafe_offset((slots + t) * d)
    linear_gpu[BF16](ctx, scores, pointer(plain), t, d, gate, gate, experts, False, mode)
    var lists = ctx.enqueue_create_buffer[DType.int32](2 * (experts + 1) + 3 * slots)
    var active = pointer(lists)
    var starts = active.unsafe_offset(experts + 1)
    var slot_pairs = starts.unsafe_offset(experts + 1)
    var slot_of = slot_pairs.unsafe_offset(slots)
    route_and_group(
        ctx, active, starts, slot_pairs, slot_of, slot_of.unsafe_offset(slots), ids, weights, scores, bias, t, experts,
        k, model,
    )
    var hidden = planes_for(ctx, slots + t, inner)
    experts_gpu(
        ctx, results, pointer(hidden), pointer(quantised), weights, active, starts, slot_pairs, w1, q1, w3, q3, w2, q2,
        s1, sq1, s3, sq3, s2, sq2, model, mode, t, d, inner, k, experts,
    )
    ctx.enqueue_function[combine_kernel](
        h_out, y, results, slot_of, h, mix, Int32(t), Int32(c), Int32(d), Int32(m), Int32(k), mode,
        grid_dim=(t, ceildiv(d, SPREAD_COLUMNS)), block_dim=SPREAD_THREADS,
    )
    _ = plain^
    _ = quantised^
    _ = memory^
    _ = lists^
    _ = hidden^
