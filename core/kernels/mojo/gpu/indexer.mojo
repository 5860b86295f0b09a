"""The indexer on the GPU: queries, scores of every visible key, then the best rows and candidate blocks."""

from std.collections import Array
from std.math import ceildiv, fma, sqrt
from max.gpu import barrier, block_idx, lane_id, thread_idx, warp_id
from max.gpu.host import DeviceContext
from ..common import F32P, I32P, U32P, U8P, at, bf16
from ..layout import CANDIDATES, CANDIDATE_BLOCK, KEY_OFFSET, Leaf, PAGE_SIZE, RATIO
from ..quant import BF16, E4M3
from .base import is_exact, shared
from .hyper import Four, load4
from .linear import linear_gpu, planes_for, pointer, stage
from .rope import rope_in_warp
from .select import SELECT_THREADS, select_block, shared_ints
from .staged import mxfp4_in_warp

comptime SCORE_KEYS = 128  # keys of a block, one a thread
comptime MAX_DIM = 128
comptime MAX_QUERY = 8192  # heads x dim that fit beside the rest in shared memory


def query_kernel(
    q: F32P, weights: F32P, pos: I32P, freq: F32P, heads: Int32, dim: Int32, half: Int32, mode: I32P
):
    """Turns and quantises one head of a row, and scales its weight; grid (T, heads), `dim` threads."""
    var r = Int(block_idx.x)
    var h = Int(block_idx.y)
    var i = Int(thread_idx.x)
    var exact = is_exact(mode)
    var home = q.unsafe_offset((r * Int(heads) + h) * Int(dim) + i)
    var v = rope_in_warp(home[], i, Int(dim) - 2 * Int(half), freq, Int(pos[unsafe_offset=r]), exact)
    home[] = mxfp4_in_warp(v, exact)
    if i == 0:
        var w = r * Int(heads) + h
        var scale = 1 / sqrt(Float32(dim)) / sqrt(Float32(heads))
        weights[unsafe_offset=w] = bf16(at(weights, w) * scale, exact)


@always_inline
def entries_of(r: Int, visible: Int, candidates: I32P, nb: Int, layer: I32P) -> Int:
    """How many rows query r scores: all visible ones, or those in its candidate blocks (only the newest is cut short)."""
    if layer[unsafe_offset=CANDIDATES] != 2:
        return visible
    var size = Int(layer[unsafe_offset=CANDIDATE_BLOCK])
    # The blocks come first and ascend, so their number is found by bisection and the last one's end is known.
    var low = 0
    var high = nb
    while low < high:
        var middle = (low + high) // 2
        if candidates[unsafe_offset=r * nb + middle] >= 0:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return 0
    var newest = Int(candidates[unsafe_offset=r * nb + low - 1])
    return (low - 1) * size + min(size, visible - newest * size)


def score_kernel(
    scores: F32P, q: F32P, weights: F32P, keys: F32P, candidates: I32P, seq: I32P, pos: I32P, table: U32P,
    heads_: Int32, dim_: Int32, nb: Int32, capacity: Int32, slots: Int32, width: Int32, layer: I32P, mode: I32P,
):
    """Scores [T, capacity]: sum over heads of weight relu(q · key); grid (capacity / SCORE_KEYS, T), a key a thread."""
    var r = Int(block_idx.y)
    var first = Int(block_idx.x) * SCORE_KEYS
    var ratio = Int(layer[unsafe_offset=RATIO])
    var visible = (Int(pos[unsafe_offset=r]) + 1) // ratio
    var n = entries_of(r, visible, candidates, Int(nb), layer)
    if first >= n:
        return
    var heads = Int(heads_)
    var dim = Int(dim_)
    var exact = is_exact(mode)
    var queries = shared[MAX_QUERY]()
    for i in range(Int(thread_idx.x), heads * dim, SCORE_KEYS):
        queries[unsafe_offset=i] = at(q, r * heads * dim + i)
    barrier()
    var entry = first + Int(thread_idx.x)
    if entry >= n:
        return
    var row = entry
    if layer[unsafe_offset=CANDIDATES] == 2:
        var size = Int(layer[unsafe_offset=CANDIDATE_BLOCK])
        row = Int(candidates[unsafe_offset=r * Int(nb) + entry // size]) * size + entry % size
    var leaf = Leaf(keys, 1, Int(slots), dim, table, Int(width), Int(layer[unsafe_offset=PAGE_SIZE]))
    var key = leaf.compressed(Int(seq[unsafe_offset=r]), Int(layer[unsafe_offset=KEY_OFFSET]), ratio, row)
    var values = Array[Four, MAX_DIM // 4](fill=Four(0))
    comptime for i in range(MAX_DIM // 4):
        if i * 4 < dim:
            values[i] = load4(key, i * 4)
    var total = Float32(0)
    for h in range(heads):
        var query = queries.unsafe_offset(h * dim)
        var acc = Four(0)
        comptime for i in range(MAX_DIM // 4):
            if i * 4 < dim:
                acc = fma(query.unsafe_offset(i * 4).unsafe_load[width=4, alignment=16](), values[i], acc)
        var dot = bf16((acc[0] + acc[1]) + (acc[2] + acc[3]), exact)
        total += bf16(max(dot, Float32(0)) * at(weights, r * heads + h), exact)
    scores[unsafe_offset=r * Int(capacity) + entry] = bf16(total, exact)


def block_best_kernel(
    best: F32P, scores: F32P, pos: I32P, capacity: Int32, layer: I32P
):
    """The best score of every block of a candidate source's rows, the newest block above all; grid (capacity / 256, T)."""
    if layer[unsafe_offset=CANDIDATES] != 1:
        return
    var r = Int(block_idx.y)
    var b = Int(block_idx.x) * 256 + Int(thread_idx.x)
    var size = Int(layer[unsafe_offset=CANDIDATE_BLOCK])
    var n = (Int(pos[unsafe_offset=r]) + 1) // Int(layer[unsafe_offset=RATIO])
    if b * size >= n:
        return
    var row = scores.unsafe_offset(r * Int(capacity))
    var top = at(row, b * size)
    for i in range(b * size + 1, min(n, (b + 1) * size)):
        top = max(top, at(row, i))
    best[unsafe_offset=r * Int(capacity) + b] = Float32.MAX if b == (n - 1) // size else top


def choose_kernel(
    chosen: I32P, blocks: I32P, scores: F32P, best: F32P, candidates: I32P, pos: I32P, top_k: Int32, nb_: Int32,
    capacity: Int32, layer: I32P,
):
    """Grid (T, 2): y = 0 the chosen rows, y = 1 the published blocks (a source) or those it was given."""
    var r = Int(block_idx.x)
    var nb = Int(nb_)
    var role = layer[unsafe_offset=CANDIDATES]
    var size = Int(layer[unsafe_offset=CANDIDATE_BLOCK])
    var visible = (Int(pos[unsafe_offset=r]) + 1) // Int(layer[unsafe_offset=RATIO])
    var counts = shared_ints[256]()
    var sums = shared_ints[32]()
    var mine = candidates.unsafe_offset(r * nb)
    if block_idx.y == 0:
        var n = entries_of(r, visible, candidates, nb, layer)
        select_block(
            chosen.unsafe_offset(r * Int(top_k)), Int(top_k), scores.unsafe_offset(r * Int(capacity)), n, mine,
            size if role == 2 else 0, counts, sums,
        )
    elif role == 1:
        select_block(
            blocks.unsafe_offset(r * nb), nb, best.unsafe_offset(r * Int(capacity)), (visible + size - 1) // size, mine,
            0, counts, sums,
        )
    else:
        for i in range(Int(thread_idx.x), nb, SELECT_THREADS):
            blocks[unsafe_offset=r * nb + i] = mine[unsafe_offset=i]


def index(
    ctx: DeviceContext, chosen: I32P, blocks: I32P, keys: F32P, x: F32P, latent: F32P, candidates: I32P, seq: I32P,
    pos: I32P, table: U32P, wq_b: U8P, wq_b_scale: U8P, weights_proj: U8P, freq: F32P, layer: I32P, mode: I32P,
    t: Int, d: Int, nq: Int, heads: Int, dim: Int, half: Int, top_k: Int, nb: Int, slots: Int, width: Int,
    capacity: Int,
) raises:
    """See `sd_index`; `capacity`: the most keys that a request's pages hold."""
    if t == 0:
        return
    if dim > MAX_DIM or dim % 32 != 0 or heads * dim > MAX_QUERY:
        raise Error("sd_index: the GPU kernel takes index heads of 32, 64, 96 or 128 columns, 8192 in all")
    var planes = planes_for(ctx, t, d)
    stage(ctx, pointer(planes), x, d, t, d, False, mode)
    var staged = planes_for(ctx, t, nq)
    stage(ctx, pointer(staged), latent, nq, t, nq, True, mode)
    var memory = ctx.enqueue_create_buffer[DType.float32](t * (heads * dim + heads))
    var q = pointer(memory)
    var weights = q.unsafe_offset(t * heads * dim)
    linear_gpu[BF16](ctx, weights, pointer(planes), t, d, weights_proj, weights_proj, heads, True, mode)
    linear_gpu[E4M3](ctx, q, pointer(staged), t, nq, wq_b, wq_b_scale, heads * dim, True, mode)
    ctx.enqueue_function[query_kernel](
        q, weights, pos, freq, Int32(heads), Int32(dim), Int32(half), mode, grid_dim=(t, heads), block_dim=dim
    )
    var scores = ctx.enqueue_create_buffer[DType.float32](t * capacity)
    var best = ctx.enqueue_create_buffer[DType.float32](t * capacity)
    ctx.enqueue_function[score_kernel](
        pointer(scores), q, weights, keys, candidates, seq, pos, table, Int32(heads), Int32(dim), Int32(nb),
        Int32(capacity), Int32(slots), Int32(width), layer, mode, grid_dim=(ceildiv(capacity, SCORE_KEYS), t),
        block_dim=SCORE_KEYS,
    )
    ctx.enqueue_function[block_best_kernel](
        pointer(best), pointer(scores), pos, Int32(capacity), layer, grid_dim=(ceildiv(capacity, 256), t), block_dim=256
    )
    ctx.enqueue_function[choose_kernel](
        chosen, blocks, pointer(scores), pointer(best), candidates, pos, Int32(top_k), Int32(nb), Int32(capacity),
        layer, grid_dim=(t, 2), block_dim=SELECT_THREADS,
    )
    _ = planes^
    _ = staged^
    _ = memory^
    _ = scores^
    _ = best^
