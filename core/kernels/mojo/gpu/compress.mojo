"""The compressor on the GPU: projections, then a block per row that completes a group, then the open groups."""

from std.math import exp, fma
from max.gpu import barrier, block_idx, lane_id, thread_idx, warp_id
from max.gpu.host import DeviceContext
from ..common import F32P, I32P, U32P, U8P, at, bf16, bf16_at
from ..compress import last_position
from ..layout import KEY_OFFSET, KV_OFFSET, Leaf, OPEN_LAYER, OWNS_KEYS, PAGE_SIZE, RATIO, RMS_EPS
from ..quant import BF16
from .attention_in import row_scale
from .base import BLOCK_THREADS, WARPS, is_exact, shared, warp_sum
from .linear import linear_pair, planes_for, pointer, stage
from .quantise import nvfp4_in_warp
from .rope import rope_in_warp
from .staged import mxfp4_in_warp


@always_inline
def pooled(own: F32P, first: F32P, k: Int, i: Int) -> Float32:
    """Softmax of two gates over two projections, one channel; rows are [projection K | gate K]."""
    var gate0 = at(first, k + i)
    var gate1 = at(own, k + i)
    var top = max(gate0, gate1)
    var a = exp(gate0 - top)
    var b = exp(gate1 - top)
    var total = a + b
    return a / total * at(first, i) + b / total * at(own, i)


def group_kernel(
    latent: F32P, rows_leaf: F32P, keys_leaf: F32P, open_leaf: F32P, projected: F32P, keys: F32P, seq: I32P, pos: I32P,
    table: U32P, norm: F32P, wk: U8P, k_norm: F32P, freq: F32P, k_: Int32, nk_: Int32, half_: Int32, kv_slots: Int32,
    key_slots: Int32, open_layers: Int32, ring: Int32, width: Int32, layer: I32P, model: F32P, mode: I32P,
):
    """Latent, cached row and index key of the group that row r completes; grid T."""
    var r = Int(block_idx.x)
    var ratio = Int(layer[unsafe_offset=RATIO])
    var p = Int(pos[unsafe_offset=r])
    if p < 0 or (p + 1) % ratio != 0:
        return
    var exact = is_exact(mode)
    var eps = at(model, RMS_EPS)
    var spare = shared[WARPS]()
    var k = Int(k_)
    var nk = Int(nk_)
    var half = Int(half_)
    var page_size = Int(layer[unsafe_offset=PAGE_SIZE])
    var s = Int(seq[unsafe_offset=r])
    var row = latent.unsafe_offset(r * k)
    var own = projected.unsafe_offset(r * 2 * k)
    var first = own
    if ratio > 1:
        if r > 0 and Int(seq[unsafe_offset=r - 1]) == s and Int(pos[unsafe_offset=r - 1]) == p - 1:
            first = own.unsafe_offset(-2 * k)
        else:
            var groups = Leaf(open_leaf, Int(open_layers), Int(ring), 2 * k, table, Int(width), page_size)
            first = groups.open_group(s, Int(layer[unsafe_offset=OPEN_LAYER]), p - 1)
    for i in range(Int(thread_idx.x), k, BLOCK_THREADS):
        row[unsafe_offset=i] = bf16(pooled(own, first, k, i) if ratio > 1 else at(own, i), exact)
    var scale = row_scale(row, k, eps, spare)
    var group = p // ratio
    var kv_leaf = Leaf(rows_leaf, 1, Int(kv_slots), k, table, Int(width), page_size)
    var stored = kv_leaf.compressed(s, Int(layer[unsafe_offset=KV_OFFSET]), ratio, group)
    for begin in range(Int(warp_id()) * 32, k, BLOCK_THREADS):
        var i = begin + Int(lane_id())
        var v = bf16(at(row, i) * scale * at(norm, i), exact)
        row[unsafe_offset=i] = v
        v = rope_in_warp(v, i, k - 2 * half, freq, group * ratio, exact)
        stored[unsafe_offset=i] = nvfp4_in_warp(v, exact)
    if layer[unsafe_offset=OWNS_KEYS] == 0:
        return
    barrier()
    var raw = keys.unsafe_offset(r * nk)
    for o in range(Int(warp_id()), nk, WARPS):
        var acc = Float32(0)
        for i in range(Int(lane_id()), k, 32):
            acc = fma(at(row, i), bf16_at(wk, o * k + i), acc)
        acc = warp_sum(acc)
        if lane_id() == 0:
            raw[unsafe_offset=o] = bf16(acc, exact)
    barrier()
    var key_leaf = Leaf(keys_leaf, 1, Int(key_slots), nk, table, Int(width), page_size)
    var key = key_leaf.compressed(s, Int(layer[unsafe_offset=KEY_OFFSET]), ratio, group)
    scale = row_scale(raw, nk, eps, spare)
    for begin in range(Int(warp_id()) * 32, nk, BLOCK_THREADS):
        var i = begin + Int(lane_id())
        var v = bf16(at(raw, i) * scale * at(k_norm, i), exact)
        v = rope_in_warp(v, i, nk - 2 * half, freq, group * ratio, exact)
        key[unsafe_offset=i] = mxfp4_in_warp(v, exact)


def open_kernel(
    open_leaf: F32P, projected: F32P, seq: I32P, pos: I32P, table: U32P, t: Int32, k: Int32, open_layers: Int32,
    ring: Int32, width: Int32, layer: I32P,
):
    """Keeps the projections of rows that open a group; grid T. Of a long chunk only its end can be asked for later."""
    var r = Int(block_idx.x)
    var p = Int(pos[unsafe_offset=r])
    if layer[unsafe_offset=RATIO] <= 1 or p < 0 or p % 2 != 0:
        return
    if last_position(seq, pos, r, Int(t)) - p >= 2 * Int(ring):
        return
    var groups = Leaf(
        open_leaf, Int(open_layers), Int(ring), 2 * Int(k), table, Int(width), Int(layer[unsafe_offset=PAGE_SIZE])
    )
    var home = groups.open_group(Int(seq[unsafe_offset=r]), Int(layer[unsafe_offset=OPEN_LAYER]), p)
    for i in range(Int(thread_idx.x), 2 * Int(k), BLOCK_THREADS):
        home[unsafe_offset=i] = at(projected, r * 2 * Int(k) + i)


def compress(
    ctx: DeviceContext, latent: F32P, rows_leaf: F32P, keys_leaf: F32P, open_leaf: F32P, x: F32P, seq: I32P, pos: I32P,
    table: U32P, wkv: U8P, wgate: U8P, norm: F32P, wk: U8P, k_norm: F32P, freq: F32P, layer: I32P, model: F32P,
    mode: I32P, t: Int, d: Int, k: Int, nk: Int, half: Int, kv_slots: Int, key_slots: Int, open_layers: Int, ring: Int,
    width: Int, gated: Bool,
) raises:
    """See `sd_compress`; `gated`: whether wgate is a weight of its own (ratio > 1)."""
    if t == 0:
        return
    var planes = planes_for(ctx, t, d)
    stage(ctx, pointer(planes), x, d, t, d, False, mode)
    var memory = ctx.enqueue_create_buffer[DType.float32](t * (2 * k + nk))
    var projected = pointer(memory)
    linear_pair[BF16](
        ctx, pointer(planes), wkv, wkv, projected, k, 2 * k, wgate, wgate, projected.unsafe_offset(k),
        k if gated else 0, 2 * k, t, d, d, t * d, 2 * k, False, mode,
    )
    ctx.enqueue_function[group_kernel](
        latent, rows_leaf, keys_leaf, open_leaf, projected, projected.unsafe_offset(t * 2 * k), seq, pos, table, norm,
        wk, k_norm, freq, Int32(k), Int32(nk), Int32(half), Int32(kv_slots), Int32(key_slots), Int32(open_layers),
        Int32(ring), Int32(width), layer, model, mode, grid_dim=t, block_dim=BLOCK_THREADS,
    )
    if gated:
        ctx.enqueue_function[open_kernel](
            open_leaf, projected, seq, pos, table, Int32(t), Int32(k), Int32(open_layers), Int32(ring), Int32(width),
            layer, grid_dim=t, block_dim=BLOCK_THREADS,
        )
    _ = planes^
    _ = memory^
