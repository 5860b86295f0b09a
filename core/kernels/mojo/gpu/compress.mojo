"""The compressor on the GPU: projections, then a block per row that completes a group, then the open groups."""

from std.collections import Array
from std.math import exp, fma
from max.gpu import barrier, block_idx, lane_id, thread_idx, warp_id
from max.gpu.host import DeviceContext
from ..common import F32P, I32P, U32P, U8P, at, bf16
from ..compress import last_position
from ..layout import KEY_OFFSET, KV_OFFSET, Leaf, OPEN_LAYER, OWNS_KEYS, PAGE_SIZE, RATIO, RMS_EPS
from ..quant import BF16
from .attention_in import inverse_rms
from .base import BLOCK_THREADS, Shared, WARPS, is_exact, shared, warp_sums
from .linear import linear_pair, planes_for, pointer
from .rope import rope_quad, turns_at
from .staged import e2m1_of, e4m3_of, mxfp4_quad, quad_top, stage
from .vectors import Four, column_of, load4, load_row, round4, squares_of, store4, store_row

comptime STEP = 4 * BLOCK_THREADS  # columns of a block at a time
comptime WARP_KEYS = 16  # values of an index key that a warp forms at once
comptime CHUNK = 256  # latent columns of a warp at a time, eight a lane
comptime MAX_KEY = 1024


@always_inline
def nvfp4_quad(v: Four, exact: Bool) -> Four:
    """QDQ as `nvfp4_in_warp`, a group of 16 being four values in each of four lanes."""
    if not exact:
        return v
    var s = e4m3_of(max(quad_top[4](v), 0.01171875) / 6)
    var y = Four(0)
    comptime for i in range(4):
        y[i] = e2m1_of(v[i] / s) * s
    return y


@always_inline
def pooled(own: F32P, first: F32P, gated: Bool, k: Int, at: Int) -> Four:
    """Softmax of two gates over two projections, or the one projection; rows are [projection K | gate K]."""
    var i = min(at, k - 4)
    var v = load4(own, i)
    if not gated:
        return v if at < k else Four(0)
    var before = load4(first, i)
    var gate0 = load4(first, k + i)
    var gate1 = load4(own, k + i)
    var top = max(gate0, gate1)
    var a = exp(gate0 - top)
    var b = exp(gate1 - top)
    var total = a + b
    v = a / total * before + b / total * v
    return v if at < k else Four(0)


@always_inline
def key_products(raw: Shared, row: F32P, wk: U8P, k: Int, nk: Int, exact: Bool):
    """Gives raw [I] = wk [I, K] times a latent, rounded; by a block, a warp for every sixteen products."""
    var lane = Int(lane_id())
    for o0 in range(Int(warp_id()) * WARP_KEYS, nk, WARPS * WARP_KEYS):
        var sums = Array[Float32, WARP_KEYS](fill=0)
        for first in range(0, k, CHUNK):
            var i = first + lane * 8
            var column = min(i, k - 8)
            var x = load4(row, column).join(load4(row, column + 4))
            x = x if i < k else type_of(x)(0)
            var w = Array[SIMD[DType.bfloat16, 8], WARP_KEYS](fill=SIMD[DType.bfloat16, 8](0))
            comptime for o in range(WARP_KEYS):
                var place = wk.unsafe_offset(2 * (min(o0 + o, nk - 1) * k + column)).unsafe_bitcast[BFloat16]()
                w[o] = place.unsafe_load[width=8, alignment=16]()
            comptime for o in range(WARP_KEYS):
                var values = w[o].cast[DType.float32]()
                comptime for j in range(8):
                    sums[o] = fma(x[j], values[j], sums[o])
        var total = warp_sums[WARP_KEYS](sums)
        var o = o0 + lane // (32 // WARP_KEYS)
        if o < nk and lane % (32 // WARP_KEYS) == 0:
            raw[unsafe_offset=o] = bf16(total, exact)


@always_inline
def make_key(
    key: F32P, raw: Shared, norm: F32P, nk: Int, half: Int, freq: F32P, position: Int, eps: Float32, exact: Bool,
    spare: Shared,
):
    """An index key of up to MAX_KEY values from its products: normed, turned, MXFP4; by a block."""
    var begin = nk - 2 * half
    var i = column_of(0)
    var weights = load_row[1](norm, 0, nk)
    var turns = turns_at(i, begin, freq, position) if i < nk else Four(0)
    var v = Array[Four, 1](fill=Four(0))
    if i < nk:
        v[0] = raw.unsafe_offset(i).unsafe_load[width=4, alignment=16]()
    var y = round4(v[0] * inverse_rms(squares_of(v), nk, eps, spare) * weights[0], exact)
    y = mxfp4_quad(rope_quad(y, turns, i, begin, exact), exact)
    if i < nk:
        store4(key, i, y)


@always_inline
def keep_open(open_leaf: Leaf, projected: F32P, r: Int, k: Int, s: Int, p: Int, layer: Int):
    """Keeps the projections of row r, which opens a group; by a block."""
    var home = open_leaf.open_group(s, layer, p)
    for i in range(Int(thread_idx.x) * 4, 2 * k, STEP):
        store4(home, i, load4(projected, r * 2 * k + i))


def group_kernel(
    latent: F32P, rows_leaf: F32P, keys_leaf: F32P, open_leaf: F32P, projected: F32P, seq: I32P, pos: I32P,
    table: U32P, norm: F32P, wk: U8P, k_norm: F32P, freq: F32P, k_: Int32, nk_: Int32, half_: Int32, kv_slots: Int32,
    key_slots: Int32, open_layers: Int32, ring: Int32, width: Int32, opens: Int32, layer: I32P, model: F32P,
    mode: I32P,
):
    """Latent, cached row and index key of the group that row r completes; grid T. opens: keeps a group it opens too."""
    var r = Int(block_idx.x)
    var ratio = Int(layer[unsafe_offset=RATIO])
    var p = Int(pos[unsafe_offset=r])
    if p < 0:
        return
    var s = Int(seq[unsafe_offset=r])
    var k = Int(k_)
    var nk = Int(nk_)
    var half = Int(half_)
    var page_size = Int(layer[unsafe_offset=PAGE_SIZE])
    var groups = Leaf(open_leaf, Int(open_layers), Int(ring), 2 * k, table, Int(width), page_size)
    if (p + 1) % ratio != 0:
        if opens != 0 and p % 2 == 0:
            keep_open(groups, projected, r, k, s, p, Int(layer[unsafe_offset=OPEN_LAYER]))
        return
    var exact = is_exact(mode)
    var eps = at(model, RMS_EPS)
    var spare = shared[WARPS]()
    var raw = shared[MAX_KEY]()
    var row = latent.unsafe_offset(r * k)
    var own = projected.unsafe_offset(r * 2 * k)
    var first = own
    if ratio > 1:
        if r > 0 and Int(seq[unsafe_offset=r - 1]) == s and Int(pos[unsafe_offset=r - 1]) == p - 1:
            first = own.unsafe_offset(-2 * k)
        else:
            first = groups.open_group(s, Int(layer[unsafe_offset=OPEN_LAYER]), p - 1)
    var squares = Float32(0)
    var v = Array[Four, 1](fill=Four(0))
    for begin in range(0, k, STEP):
        v[0] = round4(pooled(own, first, ratio > 1, k, begin + column_of(0)), exact)
        squares += squares_of(v)
        if k > STEP:
            store_row[1](row, begin, k, v)
    var scale = inverse_rms(squares, k, eps, spare)
    var group = p // ratio
    var kv_leaf = Leaf(rows_leaf, 1, Int(kv_slots), k, table, Int(width), page_size)
    var stored = kv_leaf.compressed(s, Int(layer[unsafe_offset=KV_OFFSET]), ratio, group)
    for begin in range(0, k, STEP):
        var i = begin + column_of(0)
        if k > STEP:
            v = load_row[1](row, begin, k)
        var weights = load_row[1](norm, begin, k)
        var y = round4(v[0] * scale * weights[0], exact)
        var turns = turns_at(i, k - 2 * half, freq, group * ratio) if i < k else Four(0)
        var kept = nvfp4_quad(rope_quad(y, turns, i, k - 2 * half, exact), exact)
        if i < k:
            store4(row, i, y)
            store4(stored, i, kept)
    if layer[unsafe_offset=OWNS_KEYS] == 0:
        return
    barrier()
    key_products(raw, row, wk, k, nk, exact)
    barrier()
    var key_leaf = Leaf(keys_leaf, 1, Int(key_slots), nk, table, Int(width), page_size)
    var key = key_leaf.compressed(s, Int(layer[unsafe_offset=KEY_OFFSET]), ratio, group)
    make_key(key, raw, k_norm, nk, half, freq, group * ratio, eps, exact, spare)


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
    keep_open(groups, projected, r, Int(k), Int(seq[unsafe_offset=r]), p, Int(layer[unsafe_offset=OPEN_LAYER]))


def compress(
    ctx: DeviceContext, latent: F32P, rows_leaf: F32P, keys_leaf: F32P, open_leaf: F32P, x: F32P, seq: I32P, pos: I32P,
    table: U32P, wkv: U8P, wgate: U8P, norm: F32P, wk: U8P, k_norm: F32P, freq: F32P, layer: I32P, model: F32P,
    mode: I32P, t: Int, d: Int, k: Int, nk: Int, half: Int, kv_slots: Int, key_slots: Int, open_layers: Int, ring: Int,
    width: Int, gated: Bool,
) raises:
    """See `sd_compress`; `gated`: whether wgate is a weight of its own (ratio > 1).

    Three launches; a fourth for many rows with gates.
    """
    if t == 0:
        return
    if nk > MAX_KEY:
        raise Error("sd_compress: the GPU kernel takes index keys of up to 1024 values")
    # Among few rows of a sequence none opens a group on the slot of the one that the first of them completes.
    var together = gated and t < 2 * ring
    var planes = planes_for(ctx, t, d)
    stage(ctx, pointer(planes), x, d, t, d, False, mode)
    var memory = ctx.enqueue_create_buffer[DType.float32](t * 2 * k)
    var projected = pointer(memory)
    linear_pair[BF16](
        ctx, pointer(planes), wkv, wkv, projected, k, 2 * k, wgate, wgate, projected.unsafe_offset(k),
        k if gated else 0, 2 * k, t, d, d, t * d, 2 * k, False, mode,
    )
    ctx.enqueue_function[group_kernel](
        latent, rows_leaf, keys_leaf, open_leaf, projected, seq, pos, table, norm, wk, k_norm, freq, Int32(k),
        Int32(nk), Int32(half), Int32(kv_slots), Int32(key_slots), Int32(open_layers), Int32(ring), Int32(width),
        Int32(1 if together else 0), layer, model, mode, grid_dim=t, block_dim=BLOCK_THREADS,
    )
    if gated and not together:
        ctx.enqueue_function[open_kernel](
            open_leaf, projected, seq, pos, table, Int32(t), Int32(k), Int32(open_layers), Int32(ring), Int32(width),
            layer, grid_dim=t, block_dim=BLOCK_THREADS,
        )
    _ = planes^
    _ = memory^
