"""Engram on a GPU: hashing, rows read from the host's memory over the bus, and the gates."""

from std.math import ceildiv, fma, sqrt
from std.memory import bitcast
from max.gpu import block_idx, grid_dim, lane_id, thread_idx, warp_id
from max.gpu.host import DeviceContext
from max.gpu.primitives.warp import shuffle_xor
from ..common import F32P, I32P, I64P, U8P, at, sigmoid
from ..engram import token_before
from ..layout import RMS_EPS
from ..quant import E4M3, power_of_two_above, ue8m0
from .base import BF16P, BLOCK_THREADS, WARPS, block_sum, is_exact, shared
from .collapse import STEP
from .linear import linear_gpu, planes_for, pointer
from .staged import e4m3_of
from .vectors import Four, load4, put_many, round4, store4

comptime Eight = SIMD[DType.float32, 8]


def rows_kernel(
    rows: I64P, tokens: I64P, seq: I32P, pos: I32P, lookback: I64P, compressed: I64P, multipliers: I64P, primes: I64P,
    offsets: I64P, ids: I64P, size: Int32, layers: Int32, grams: Int32, heads: Int32, depth: Int32, vocabulary: Int32,
):
    """One hash a thread: rows [T, L, N - 1, heads] flat."""
    var i = Int(block_idx.x) * BLOCK_THREADS + Int(thread_idx.x)
    if i >= Int(size):
        return
    var n = Int(grams)
    var per_layer = (n - 1) * Int(heads)
    var place = i % (Int(layers) * per_layer)
    var r = i // (Int(layers) * per_layer)
    var layer = place // per_layer
    var longest = place % per_layer // Int(heads) + 1
    if pos[unsafe_offset=r] < 0:
        rows[unsafe_offset=i] = 0
        return
    var hash = Int64(0)
    var blocked = False
    for back in range(longest + 1):
        var raw = token_before(tokens, seq, pos, lookback, Int(depth), r, back)
        blocked = blocked or raw < 0 or raw == ids[unsafe_offset=1]
        var gram = ids[unsafe_offset=0]
        if not blocked:
            gram = compressed[unsafe_offset=min(Int(raw), Int(vocabulary) - 1)]
        hash = hash ^ (gram * multipliers[unsafe_offset=layer * n + back])
    # A floored remainder, as in the reference: hashes may be negative.
    var prime = primes[unsafe_offset=place]
    rows[unsafe_offset=i] = hash - (hash // prime) * prime + offsets[unsafe_offset=place]


def engram_rows_gpu(
    ctx: DeviceContext, rows: I64P, tokens: I64P, seq: I32P, pos: I32P, lookback: I64P, compressed: I64P,
    multipliers: I64P, primes: I64P, offsets: I64P, ids: I64P, t: Int, layers: Int, n: Int, heads: Int, depth: Int,
    vocabulary: Int,
) raises:
    """One launch."""
    var size = t * layers * (n - 1) * heads
    if size > 0:
        ctx.enqueue_function[rows_kernel](
            rows, tokens, seq, pos, lookback, compressed, multipliers, primes, offsets, ids, Int32(size),
            Int32(layers), Int32(n), Int32(heads), Int32(depth), Int32(vocabulary),
            grid_dim=ceildiv(size, BLOCK_THREADS), block_dim=BLOCK_THREADS,
        )


@always_inline
def passes(pos: I32P, tokens: I64P, ids: I64P, r: Int) -> Bool:
    """Whether row r goes by unchanged: no position, or an image token."""
    return pos[unsafe_offset=r] < 0 or tokens[unsafe_offset=r] == ids[unsafe_offset=1]


@always_inline
def decode8(codes: SIMD[DType.uint8, 8], scale: Float32) -> Eight:
    """Values of eight e4m3 codes; `scale` makes up for the 2^8 that the float16 patterns lack."""
    # Sign extension fills the upper byte with the sign; after the shift bit 14 is the one to clear.
    var wide = bitcast[DType.uint16, 8](bitcast[DType.int8, 8](codes).cast[DType.int16]() << 7) & 0xBFFF
    return bitcast[DType.float16, 8](wide).cast[DType.float32]() * scale


def gather_kernel(
    planes: BF16P, rows: I64P, pos: I32P, tokens: I64P, ids: I64P, which: I32P, table: U8P, scale: U8P, t: Int32,
    layers: Int32, groups: Int32, width_: Int32, table_rows: Int32, mode: I32P,
):
    """Table rows, through FP8, into planes [3, T, G E]: a warp a row, eight values a lane, four lanes a 32-group.

    Rows that pass stay zero: nothing of theirs crosses the bus.
    """
    var q = Int(block_idx.x) * WARPS + Int(warp_id())
    var g = Int(groups)
    if q >= Int(t) * g:
        return
    var r = q // g
    var width = Int(width_)
    var exact = is_exact(mode)
    var wanted = not passes(pos, tokens, ids, r)
    var row = Int(rows[unsafe_offset=(r * Int(layers) + Int(which[unsafe_offset=0])) * g + q % g])
    row = max(min(row, Int(table_rows) - 1), 0)
    for begin in range(0, width, 256):
        var column = begin + Int(lane_id()) * 8
        var v = Eight(0)
        if wanted and column < width:
            var codes = table.unsafe_offset(row * width + column).unsafe_load[width=8, alignment=8]()
            v = decode8(codes, ue8m0(scale[unsafe_offset=row * (width // 32) + column // 32], 8))
        if exact:
            var most = abs(v).reduce_max()
            most = max(most, shuffle_xor(most, UInt32(1)))
            most = max(most, shuffle_xor(most, UInt32(2)))
            var s = power_of_two_above(max(most, 1e-4) / 448)
            comptime for i in range(8):
                v[i] = e4m3_of(v[i] * (1 / s)) * s
        if column < width:
            put_many[8](planes, Int(t) * g * width, q * width + column, v, exact)


def gate_kernel(
    h_out: F32P, h: F32P, kv: F32P, pos: I32P, tokens: I64P, ids: I64P, q_weight: F32P, k_weight: F32P, columns: Int32,
    model: F32P, mode: I32P,
):
    """Grid (rows, copies): h_out = h + gate * value; kv [T, (C + 1) D] holds a key a copy, then the value."""
    var r = Int(block_idx.x)
    var copy = Int(block_idx.y)
    var c = Int(grid_dim.y)
    var d = Int(columns)
    var stream = h.unsafe_offset((r * c + copy) * d)
    var out = h_out.unsafe_offset((r * c + copy) * d)
    var key = kv.unsafe_offset((r * (c + 1) + copy) * d)
    var value = kv.unsafe_offset((r * (c + 1) + c) * d)
    var gamma = Float32(0)
    if not passes(pos, tokens, ids, r):
        var home = shared[WARPS]()
        var products = Four(0)
        var h_squares = Four(0)
        var k_squares = Four(0)
        for i in range(Int(thread_idx.x) * 4, d, STEP):
            var x = load4(stream, i)
            var k = load4(key, i)
            var weight = load4(q_weight, copy * d + i) * load4(k_weight, copy * d + i)
            products = fma(x * weight, k, products)
            h_squares = fma(x, x, h_squares)
            k_squares = fma(k, k, k_squares)
        var n = Float32(d)
        var eps = at(model, RMS_EPS)
        var dot = block_sum(products.reduce_add(), home)
        dot = dot / sqrt(block_sum(h_squares.reduce_add(), home) / n + eps)
        dot = dot / sqrt(block_sum(k_squares.reduce_add(), home) / n + eps) / sqrt(n)
        var root = sqrt(max(abs(dot), 1e-6))
        gamma = sigmoid(-root if dot < 0 else (root if dot > 0 else 0))
    for i in range(Int(thread_idx.x) * 4, d, STEP):
        store4(out, i, round4(fma(Four(gamma), load4(value, i), load4(stream, i)), is_exact(mode)))


def engram_gpu(
    ctx: DeviceContext, h_out: F32P, h: F32P, rows: I64P, pos: I32P, tokens: I64P, ids: I64P, which: I32P, table: U8P,
    scale: U8P, wkv: U8P, wkv_scale: U8P, q_weight: F32P, k_weight: F32P, t: Int, c: Int, d: Int, layers: Int, g: Int,
    width: Int, table_rows: Int, model: F32P, mode: I32P,
) raises:
    """Three launches; `table` and `scale` are host memory that the device can read."""
    if t == 0:
        return
    var planes = planes_for(ctx, t, g * width)
    var kv = ctx.enqueue_create_buffer[DType.float32](t * (c + 1) * d)
    ctx.enqueue_function[gather_kernel](
        pointer(planes), rows, pos, tokens, ids, which, table, scale, Int32(t), Int32(layers), Int32(g), Int32(width),
        Int32(table_rows), mode, grid_dim=ceildiv(t * g, WARPS), block_dim=BLOCK_THREADS,
    )
    linear_gpu[E4M3](
        ctx, pointer(kv), pointer(planes), t, g * width, wkv, wkv_scale, (c + 1) * d, True, mode
    )
    ctx.enqueue_function[gate_kernel](
        h_out, h, pointer(kv), pos, tokens, ids, q_weight, k_weight, Int32(d), model, mode,
        grid_dim=(t, c), block_dim=BLOCK_THREADS,
    )
    _ = planes^
    _ = kv^
