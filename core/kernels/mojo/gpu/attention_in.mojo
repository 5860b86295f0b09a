"""Queries, latents and window rows on the GPU."""

from std.math import sqrt
from max.gpu import block_idx
from max.gpu.host import DeviceContext
from ..common import F32P, I32P, U32P, U8P, at
from ..layout import BLOCK, LAYER, Leaf, PAGE_SIZE, RMS_EPS
from ..quant import E4M3
from .base import BF16P, BLOCK_THREADS, WARPS, Shared, block_sum, is_exact, shared
from .linear import linear_gpu, linear_pair, planes_for, pointer
from .rope import rope_heads, rope_quad, turns_at
from .staged import fp8_quad, stage
from .vectors import Four, column_of, load_row, put_many, round4, squares_of, store4

comptime QUADS = 2  # of a thread: up to SPAN values of a query latent stay in registers
comptime SPAN = 4 * QUADS * BLOCK_THREADS
comptime STEP = 4 * BLOCK_THREADS


@always_inline
def inverse_rms(squares: Float32, n: Int, eps: Float32, spare: Shared) -> Float32:
    """Reciprocal root mean square of n values, of which this thread has summed up some squares; by a block."""
    return 1 / sqrt(block_sum(squares, spare) / Float32(n) + eps)


@always_inline
def latent_row(
    row: F32P, planes: BF16P, stride: Int, place: Int, n: Int, norm: F32P, eps: Float32, exact: Bool, spare: Shared
):
    """A projected query latent normed in place, and its FP8 values put at element `place` of the planes; by a block."""
    var v = load_row[QUADS](row, 0, n)
    var weights = load_row[QUADS](norm, 0, n)
    var squares = squares_of(v)
    for first in range(SPAN, n, SPAN):
        squares += squares_of(load_row[QUADS](row, first, n))
    var scale = inverse_rms(squares, n, eps, spare)
    for first in range(0, n, SPAN):
        if first > 0:
            v = load_row[QUADS](row, first, n)
            weights = load_row[QUADS](norm, first, n)
        comptime for q in range(QUADS):
            var i = first + column_of(q)
            var y = round4(v[q] * scale * weights[q], exact)
            var staged = fp8_quad(y, exact)
            if i < n:
                store4(row, i, y)
                put_many[4](planes, stride, place + i, staged, exact)


@always_inline
def window_row(
    row: F32P, stored: F32P, keep: Bool, k: Int, half: Int, norm: F32P, freq: F32P, position: Int, eps: Float32,
    exact: Bool, spare: Shared,
):
    """A projected row made a key by a block: normed, turned, FP8; also written to `stored` if `keep`."""
    var begin = k - 2 * half
    var v = load_row[1](row, 0, k)
    var weights = load_row[1](norm, 0, k)
    var turns = turns_at(column_of(0), begin, freq, position) if column_of(0) < k else Four(0)
    var squares = squares_of(v)
    for first in range(STEP, k, STEP):
        squares += squares_of(load_row[1](row, first, k))
    var scale = inverse_rms(squares, k, eps, spare)
    for first in range(0, k, STEP):
        var i = first + column_of(0)
        if first > 0:
            v = load_row[1](row, first, k)
            weights = load_row[1](norm, first, k)
            turns = turns_at(i, begin, freq, position) if i < k else Four(0)
        var y = round4(v[0] * scale * weights[0], exact)
        y = fp8_quad(rope_quad(y, turns, i, begin, exact), exact)
        if i < k:
            store4(row, i, y)
            if keep:
                store4(stored, i, y)


def latent_kernel(
    latent: F32P, planes: BF16P, kv: F32P, window: F32P, seq: I32P, pos: I32P, table: U32P, q_norm: F32P,
    kv_norm: F32P, freq: F32P, nq: Int32, k: Int32, half: Int32, stride: Int32, layers: Int32, slots: Int32,
    width: Int32, layer: I32P, model: F32P, mode: I32P,
):
    """Grid (T, 2): y = 0 norms the query latent and stages its FP8 values; y = 1 makes the window row."""
    var r = Int(block_idx.x)
    var exact = is_exact(mode)
    var eps = at(model, RMS_EPS)
    var spare = shared[WARPS]()
    if block_idx.y == 0:
        var n = Int(nq)
        latent_row(latent.unsafe_offset(r * n), planes, Int(stride), r * n, n, q_norm, eps, exact, spare)
        return
    var position = Int(pos[unsafe_offset=r])
    var keep = layer[unsafe_offset=BLOCK] == 0 and position >= 0
    var leaf = Leaf(
        window, Int(layers), Int(slots), Int(k), table, Int(width), Int(layer[unsafe_offset=PAGE_SIZE])
    )
    var row = kv.unsafe_offset(r * Int(k))
    var stored = row
    if keep:
        stored = leaf.window(Int(seq[unsafe_offset=r]), Int(layer[unsafe_offset=LAYER]), position)
    window_row(row, stored, keep, Int(k), Int(half), kv_norm, freq, position, eps, exact, spare)


def attention_in(
    ctx: DeviceContext, q: F32P, latent: F32P, kv: F32P, window: F32P, x: F32P, seq: I32P, pos: I32P, table: U32P,
    wq_a: U8P, wq_a_scale: U8P, q_norm: F32P, wq_b: U8P, wq_b_scale: U8P, wkv: U8P, wkv_scale: U8P, kv_norm: F32P,
    freq: F32P, layer: I32P, model: F32P, mode: I32P, t: Int, d: Int, nq: Int, k: Int, hk: Int, half: Int,
    layers: Int, slots: Int, width: Int,
) raises:
    """See `sd_attention_in`; five launches."""
    if t == 0:
        return
    var planes = planes_for(ctx, t, d)
    stage(ctx, pointer(planes), x, d, t, d, True, mode)
    linear_pair[E4M3](
        ctx, pointer(planes), wq_a, wq_a_scale, latent, nq, nq, wkv, wkv_scale, kv, k, k, t, d, d, t * d, nq + k, True,
        mode,
    )
    var staged = planes_for(ctx, t, nq)
    ctx.enqueue_function[latent_kernel](
        latent, pointer(staged), kv, window, seq, pos, table, q_norm, kv_norm, freq, Int32(nq), Int32(k), Int32(half),
        Int32(t * nq), Int32(layers), Int32(slots), Int32(width), layer, model, mode, grid_dim=(t, 2),
        block_dim=BLOCK_THREADS,
    )
    linear_gpu[E4M3](ctx, q, pointer(staged), t, nq, wq_b, wq_b_scale, hk, True, mode)
    rope_heads(ctx, q, pos, freq, t, hk, k, half, mode)
    _ = planes^
    _ = staged^


def context_kernel(
    kv: F32P, window: F32P, seq: I32P, pos: I32P, table: U32P, norm: F32P, freq: F32P, k: Int32, half: Int32,
    layers: Int32, slots: Int32, width: Int32, layer: I32P, model: F32P, mode: I32P,
):
    """A draft stage's context row; grid T."""
    var r = Int(block_idx.x)
    var position = Int(pos[unsafe_offset=r])
    var leaf = Leaf(
        window, Int(layers), Int(slots), Int(k), table, Int(width), Int(layer[unsafe_offset=PAGE_SIZE])
    )
    var row = kv.unsafe_offset(r * Int(k))
    var stored = row
    if position >= 0:
        stored = leaf.window(Int(seq[unsafe_offset=r]), Int(layer[unsafe_offset=LAYER]), position)
    window_row(
        row, stored, position >= 0, Int(k), Int(half), norm, freq, position, at(model, RMS_EPS), is_exact(mode),
        shared[WARPS](),
    )


def context_rows(
    ctx: DeviceContext, kv: F32P, window: F32P, m: F32P, seq: I32P, pos: I32P, table: U32P, wkv: U8P, wkv_scale: U8P,
    norm: F32P, freq: F32P, layer: I32P, model: F32P, mode: I32P, t: Int, d: Int, k: Int, half: Int, layers: Int,
    slots: Int, width: Int,
) raises:
    """See `sd_context_rows`; three launches."""
    if t == 0:
        return
    var planes = planes_for(ctx, t, d)
    stage(ctx, pointer(planes), m, d, t, d, True, mode)
    linear_gpu[E4M3](ctx, kv, pointer(planes), t, d, wkv, wkv_scale, k, True, mode)
    ctx.enqueue_function[context_kernel](
        kv, window, seq, pos, table, norm, freq, Int32(k), Int32(half), Int32(layers), Int32(slots), Int32(width),
        layer, model, mode, grid_dim=t, block_dim=BLOCK_THREADS,
    )
    _ = planes^
