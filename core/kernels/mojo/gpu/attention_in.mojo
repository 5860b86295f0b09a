"""Queries, latents and window rows on the GPU."""

from std.math import ceildiv, fma, sqrt
from max.gpu import block_idx, lane_id, thread_idx, warp_id
from max.gpu.host import DeviceContext
from ..common import F32P, I32P, U32P, U8P, at, bf16
from ..layout import BLOCK, LAYER, Leaf, PAGE_SIZE, RMS_EPS
from ..quant import E4M3
from .base import BF16P, BLOCK_THREADS, WARPS, Shared, block_sum, is_exact, shared
from .linear import linear_gpu, linear_pair, planes_for, pointer, stage
from .rope import rope_heads_kernel, rope_in_warp
from .staged import fp8_in_warp, put


@always_inline
def row_scale(row: F32P, n: Int, eps: Float32, spare: Shared) -> Float32:
    """Reciprocal root mean square of a row, formed by a block."""
    var squares = Float32(0)
    for i in range(Int(thread_idx.x), n, BLOCK_THREADS):
        squares = fma(at(row, i), at(row, i), squares)
    return 1 / sqrt(block_sum(squares, spare) / Float32(n) + eps)


@always_inline
def window_row(
    row: F32P, stored: F32P, keep: Bool, k: Int, half: Int, norm: F32P, freq: F32P, position: Int, eps: Float32,
    exact: Bool, spare: Shared,
):
    """A projected row made a key by a block: normed, turned, FP8; also written to `stored` if `keep`."""
    var scale = row_scale(row, k, eps, spare)
    for first in range(Int(warp_id()) * 32, k, BLOCK_THREADS):
        var i = first + Int(lane_id())
        var v = bf16(at(row, i) * scale * at(norm, i), exact)
        v = rope_in_warp(v, i, k - 2 * half, freq, position, exact)
        v = fp8_in_warp(v, exact)
        row[unsafe_offset=i] = v
        if keep:
            stored[unsafe_offset=i] = v


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
        var row = latent.unsafe_offset(r * n)
        var scale = row_scale(row, n, eps, spare)
        for first in range(Int(warp_id()) * 32, n, BLOCK_THREADS):
            var i = first + Int(lane_id())
            var v = bf16(at(row, i) * scale * at(q_norm, i), exact)
            row[unsafe_offset=i] = v
            put(planes, Int(stride), r * n + i, fp8_in_warp(v, exact), exact)
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
    """See `sd_attention_in`."""
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
    ctx.enqueue_function[rope_heads_kernel](
        q, pos, freq, Int32(hk), Int32(k), Int32(half), mode, grid_dim=(t, hk // k), block_dim=32
    )
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
    """See `sd_context_rows`."""
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
