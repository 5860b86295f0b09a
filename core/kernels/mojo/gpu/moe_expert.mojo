"""The mixture of experts under expert parallelism on the GPU."""

from std.math import ceildiv
from max.gpu import block_idx, thread_idx
from max.gpu.host import DeviceContext
from ..common import F32P, I32P, U8P
from .base import BLOCK_THREADS, is_exact
from .expand import SPREAD_COLUMNS, SPREAD_THREADS, load_parts, spread
from .experts import first_gpu, second_gpu
from .linear import planes_for, pointer
from .moe_tensor import Lists
from .staged import STAGED, stage
from .vectors import Four, load4, round4, store4


def localise_kernel(local: I32P, ids: I32P, first: I32P, own: Int32, pairs: Int32):
    """Ids as of the `own` experts here; those of other devices get the number `own`."""
    var i = Int(block_idx.x) * BLOCK_THREADS + Int(thread_idx.x)
    if i < Int(pairs):
        var e = ids[unsafe_offset=i] - first[unsafe_offset=0]
        local[unsafe_offset=i] = e if e >= 0 and e < own else own


def forget_kernel(active: I32P, own: Int32):
    """One thread: takes the expert `own`, which is none, from the end of the experts in use."""
    var count = active[unsafe_offset=Int(own) + 1]
    if count > 0 and active[unsafe_offset=Int(count) - 1] == own:
        active[unsafe_offset=Int(own) + 1] = count - 1


def scatter_kernel(
    buffer: F32P, results: F32P, slot_pairs: I32P, starts: I32P, own: Int32, columns: Int32
):
    """Grid (T k, ceildiv(D, STAGED)): the results [T k, D] of own slots into their pairs' rows."""
    var slot = Int(block_idx.x)
    var d = Int(columns)
    var i = Int(block_idx.y) * STAGED + Int(thread_idx.x) * 4
    if slot < Int(starts[unsafe_offset=Int(own)]) and i < d:
        store4(buffer, Int(slot_pairs[unsafe_offset=slot]) * d + i, load4(results, slot * d + i))


def local_gpu(
    ctx: DeviceContext, buffer: F32P, x: F32P, ids: I32P, weights: F32P, first: I32P, w1: U8P, q1: U8P, w3: U8P,
    q3: U8P, w2: U8P, q2: U8P, model: F32P, mode: I32P, t: Int, d: Int, inner: Int, k: Int, own: Int,
) raises:
    """See `sd_experts_local`; seven launches."""
    if t == 0:
        return
    var pairs = t * k
    var lists = Lists(ctx, own + 1, pairs)
    var local = ctx.enqueue_create_buffer[DType.int32](pairs)
    ctx.enqueue_function[localise_kernel](
        pointer(local), ids, first, Int32(own), Int32(pairs), grid_dim=ceildiv(pairs, BLOCK_THREADS),
        block_dim=BLOCK_THREADS,
    )
    lists.group(ctx, pointer(local), t, k)
    ctx.enqueue_function[forget_kernel](lists.active(), Int32(own), grid_dim=1, block_dim=1)
    var staged = planes_for(ctx, t, d)
    stage(ctx, pointer(staged), x, d, t, d, True, mode)
    var planes = planes_for(ctx, pairs + t, inner)
    first_gpu(
        ctx, pointer(planes), pointer(staged), weights, lists.active(), lists.starts(), lists.slot_pairs(), w1, q1, w3,
        q3, w1, q1, w3, q3, model, mode, t, d, inner, k, own + 1, 0,
    )
    var results = ctx.enqueue_create_buffer[DType.float32](pairs * d)
    second_gpu(
        ctx, pointer(results), pointer(planes), lists.active(), lists.starts(), w2, q2, w2, q2, mode, t, d, inner, k,
        own + 1, 0,
    )
    ctx.enqueue_function[scatter_kernel](
        buffer, pointer(results), lists.slot_pairs(), lists.starts(), Int32(own), Int32(d),
        grid_dim=(pairs, ceildiv(d, STAGED)), block_dim=BLOCK_THREADS,
    )
    _ = lists^
    _ = local^
    _ = staged^
    _ = planes^
    _ = results^


def exchange_kernel(part: F32P, buffer: F32P, start: I32P, rows: Int32, k: Int32, columns: Int32, capacity: Int32):
    """Grid (rows, ceildiv(D, STAGED)): copies rows start[0] k … of the buffer."""
    var r = Int(block_idx.x)
    var d = Int(columns)
    var i = Int(block_idx.y) * STAGED + Int(thread_idx.x) * 4
    var source = min(Int(start[unsafe_offset=0]) * Int(k) + r, Int(capacity) - 1)
    if i < d:
        store4(part, r * d + i, load4(buffer, source * d + i))


def exchange_gpu(
    ctx: DeviceContext, part: F32P, buffer: F32P, start: I32P, rows: Int, k: Int, d: Int, capacity: Int
) raises:
    """See `sd_exchange`; one launch."""
    if rows > 0:
        ctx.enqueue_function[exchange_kernel](
            part, buffer, start, Int32(rows), Int32(k), Int32(d), Int32(capacity),
            grid_dim=(rows, ceildiv(d, STAGED)), block_dim=BLOCK_THREADS,
        )


def gathered_kernel(
    h_out: F32P, y: F32P, results: F32P, own: F32P, ids: I32P, share: I32P, h: F32P, mix: F32P, t_: Int32,
    copies: Int32, columns: Int32, m: Int32, k_: Int32, mode: I32P,
):
    """As `combine_kernel`, the results [P, T, k, D] being those of P groups of experts, own [T, D] the shared one's."""
    var r = Int(block_idx.x)
    var t = Int(t_)
    var c = Int(copies)
    var d = Int(columns)
    var k = Int(k_)
    var i = Int(block_idx.y) * SPREAD_COLUMNS + Int(thread_idx.x) * 4
    if i >= d:
        return
    var exact = is_exact(mode)
    var gates = mix.unsafe_offset(r * Int(m))
    var parts = load_parts(h, gates, r, i, c, d)
    var per = share[unsafe_offset=0]
    var total = Four(0)
    var previous = Int32(-1)
    for _ in range(k):
        var best = Int32.MAX
        var place = 0
        for j in range(k):
            var id = ids[unsafe_offset=r * k + j]
            if id > previous and id < best:
                best = id
                place = j
        previous = best
        total += load4(results, ((Int(best // per) * t + r) * k + place) * d + i)
    total = round4(total + load4(own, r * d + i), exact)
    store4(y, r * d + i, total)
    spread(h_out, total, parts, h, gates, r, i, c, d, exact)


def combine_gpu(
    ctx: DeviceContext, h_out: F32P, y: F32P, x: F32P, h: F32P, mix: F32P, ids: I32P, results: F32P, share: I32P,
    s1: U8P, sq1: U8P, s3: U8P, sq3: U8P, s2: U8P, sq2: U8P, model: F32P, mode: I32P, t: Int, d: Int, c: Int, m: Int,
    inner: Int, k: Int,
) raises:
    """See `sd_experts_combine`; four launches."""
    if t == 0:
        return
    var staged = planes_for(ctx, t, d)
    stage(ctx, pointer(staged), x, d, t, d, True, mode)
    var planes = planes_for(ctx, t, inner)
    # No routed expert takes part, so the lists of slots are not read.
    first_gpu(
        ctx, pointer(planes), pointer(staged), x, ids, ids, ids, s1, sq1, s3, sq3, s1, sq1, s3, sq3, model, mode, t, d,
        inner, 0, 0, t,
    )
    var own = ctx.enqueue_create_buffer[DType.float32](t * d)
    second_gpu(ctx, pointer(own), pointer(planes), ids, ids, s2, sq2, s2, sq2, mode, t, d, inner, 0, 0, t)
    ctx.enqueue_function[gathered_kernel](
        h_out, y, results, pointer(own), ids, share, h, mix, Int32(t), Int32(c), Int32(d), Int32(m), Int32(k), mode,
        grid_dim=(t, ceildiv(d, SPREAD_COLUMNS)), block_dim=SPREAD_THREADS,
    )
    _ = staged^
    _ = planes^
    _ = own^
