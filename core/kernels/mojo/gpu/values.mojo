"""Attention's values on the GPU: probabilities times keys, the sink, and the turn back.

A row's tiles fall into eight parts by place. A part's tiles are weighed and summed in order, four parts in order, then
the two sums of four; so a result never depends on which warps take which parts, columns or heads.
"""

from std.collections import Array
from std.math import exp, fma
from std.memory import bitcast
from std.utils import StaticTuple
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, lane_id, thread_idx, warp_id
from max.gpu.compute.mma import mma
from ..common import F32P, I32P, I64P, at
from .base import BLOCK_THREADS, Shared, WARPS, is_exact
from .keys import GROUP, MAX_TILES, TILE, key_at, load_key, nothing, tiles_of
from .matmul import Acc
from .plain_attention import Addresses, plain_part
from .rope import rope_quad, turns_at
from .probabilities import dynamic_shared, quad_max, quad_sum
from .vectors import Four, load4, round4, store4

comptime PARTS = WARPS


@always_inline
def row_of[MT: Int]() -> Int:
    """Weights of a tile, with a gap that spreads the tiles over the banks."""
    return MT * TILE + 8


@always_inline
def weigh_tiles[MT: Int](
    weights: Shared, inverse: Shared, states: F32P, sink: F32P, r: Int, h0: Int, heads: Int, cap: Int, tiles: Int
):
    """Gives weights [tiles, MT 16]: e to (a tile's top less the row's), -1 for an empty tile; inverse [MT 16].

    Four lanes share a head.
    """
    comptime mine = MAX_TILES // 4
    var own = Int(thread_idx.x) >> 2
    var c = Int(thread_idx.x) & 3
    if own >= MT * TILE:
        return
    var h = min(h0 + own, heads - 1)
    var padded = (heads + TILE - 1) // TILE * TILE
    var state = Array[SIMD[DType.float32, 2], mine](fill=SIMD[DType.float32, 2](0))
    comptime for j in range(mine):
        var home = states.unsafe_offset(((r * padded + h) * cap + min(c + 4 * j, tiles - 1)) * 2)
        state[j] = home.unsafe_load[width=2, alignment=8]()
    var top = nothing()
    comptime for j in range(mine):
        top = max(top, state[j][0])
    top = quad_max(top)
    var total = Float32(0)
    comptime for j in range(mine):
        var e = exp(state[j][0] - top)
        var some = state[j][0] != nothing()
        total = fma(state[j][1] if c + 4 * j < tiles else Float32(0), e if some else Float32(0), total)
        if c + 4 * j < tiles:
            weights[unsafe_offset=(c + 4 * j) * row_of[MT]() + own] = e if some else Float32(-1)
    total = quad_sum(total)
    if c == 0:
        inverse[unsafe_offset=own] = 1 / (total + exp(at(sink, h) - top))


@always_inline
def weigh_part[
    MT: Int, U: Int
](
    totals: Shared, probabilities: F32P, weights: Shared, homes: Addresses, begin: Int, end: Int, m0: Int, all_m: Int,
    column: Int, first: Bool,
):
    """Adds tiles begin … end - 1 of 32 columns and MT x 16 heads to this lane's quads of totals, by tensor cores.

    A lane loads columns 4 g … 4 g + 3 of four keys: column 4 g + n is column g of MMA n.
    """
    var lane = Int(lane_id())
    var g = lane >> 2
    var c = lane & 3
    var acc = Array[Acc, MT * 4](fill=Acc(0))
    for tile in range(begin, end, U):
        var some = False
        comptime for u in range(U):
            some = some or weights[unsafe_offset=min(tile + u, end - 1) * row_of[MT]()] >= 0
        if not some:
            continue
        var v = Array[Four, 4 * U](fill=Four(0))
        var a = Array[Four, MT * U](fill=Four(0))
        comptime for u in range(U):
            var place = min(tile + u, end - 1)
            comptime for half in range(2):
                var pair = homes.unsafe_offset(place * TILE + half * 8 + 2 * c).unsafe_load[width=2, alignment=16]()
                comptime for i in range(2):
                    v[4 * u + 2 * half + i] = load_key(key_at(Int(pair[i])), column + 4 * g)
            comptime for m in range(MT):
                a[MT * u + m] = load4(probabilities, ((place * all_m + min(m0 + m, all_m - 1)) * 32 + lane) * 4)
        comptime for u in range(U):
            var place = min(tile + u, end - 1)
            comptime for m in range(MT):
                var home = weights.unsafe_offset(place * row_of[MT]() + m * TILE + g)
                var low = max(home[], Float32(0)) if tile + u < end else Float32(0)
                var high = max(home[unsafe_offset=8], Float32(0)) if tile + u < end else Float32(0)
                comptime for n in range(4):
                    var d = Acc(0)
                    var near = SIMD[DType.float32, 2](v[4 * u][n], v[4 * u + 1][n]).cast[DType.bfloat16]()
                    var far = SIMD[DType.float32, 2](v[4 * u + 2][n], v[4 * u + 3][n]).cast[DType.bfloat16]()
                    mma(d, bitcast[DType.bfloat16, 8](a[MT * u + m]), near.join(far), Acc(0))
                    acc[4 * m + n] = fma(d, Acc(low, low, high, high), acc[4 * m + n])
    comptime for m in range(MT):
        comptime for i in range(4):
            var quad = Four(acc[4 * m][i], acc[4 * m + 1][i], acc[4 * m + 2][i], acc[4 * m + 3][i])
            var home = totals.unsafe_offset(((4 * m + i) * 32 + lane) * 4)
            if not first:
                quad += home.unsafe_load[width=4, alignment=16]()
            home.unsafe_store[alignment=16](quad)


@always_inline
def finish(o: F32P, v: Four, column: Int, k: Int, half: Int, freq: F32P, p: Int, exact: Bool):
    """Stores four columns of one head, turned back by position p."""
    var turns = turns_at(column, k - 2 * half, freq, p) * Four(1, -1, 1, -1)
    store4(o, column, rope_quad(round4(v, exact), turns, column, k - 2 * half, exact))


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(BLOCK_THREADS)),
    `nvvm.minctasm`=SIMDLength(1 if C == 1 else 2),
)
def value_kernel[
    MT: Int, C: Int, U: Int
](
    o: F32P, probabilities: F32P, states: F32P, homes: I64P, pos: I32P, sink: F32P, freq: F32P, k_: Int32,
    heads_: Int32, half_: Int32, n_chosen: Int32, cap_: Int32, layer: I32P, mode: I32P,
):
    """Gives o [T, H K]; grid (groups of columns / C, m / MT, T), dynamic shared memory for totals and weights.

    C warps take a group of columns each; the warps that share one split its parts.
    """
    var r = Int(block_idx.z)
    var k = Int(k_)
    var heads = Int(heads_)
    var cap = Int(cap_)
    var warp = Int(warp_id())
    var lane = Int(lane_id())
    var m0 = Int(block_idx.y) * MT
    var p = Int(pos[unsafe_offset=r])
    var tiles = tiles_of(Int(n_chosen), layer)
    var exact = is_exact(mode)
    var totals = dynamic_shared()
    var weights = totals.unsafe_offset(WARPS * MT * 512)
    var inverse = weights.unsafe_offset(cap * row_of[MT]())
    var keys = inverse.unsafe_offset(MT * TILE).unsafe_bitcast[Int64]()
    var seen = p >= 0 and tiles <= cap
    if seen:
        for i in range(2 * Int(thread_idx.x), tiles * TILE, 2 * BLOCK_THREADS):
            var pair = homes.unsafe_offset(r * cap * TILE + i).unsafe_load[width=2, alignment=16]()
            keys.unsafe_offset(i).unsafe_store[alignment=16](pair)
        weigh_tiles[MT](weights, inverse, states, sink, r, m0 * TILE, heads, cap, tiles)
    barrier()
    var all_m = (heads + TILE - 1) // TILE
    var column = (Int(block_idx.x) * C + warp % C) * GROUP
    if seen and column < k:
        var size = (tiles + PARTS - 1) // PARTS
        var mine = totals.unsafe_offset(warp * MT * 512)
        for i in range(C):
            var part = warp // C * C + i
            var begin = min(part * size, tiles)
            var end = min(begin + size, tiles)
            var p_row = probabilities.unsafe_offset(r * cap * all_m * (128 if exact else 256))
            if exact:
                weigh_part[MT, U](mine, p_row, weights, keys, begin, end, m0, all_m, column, i == 0)
            else:
                for m in range(min(MT, all_m - m0)):
                    plain_part(
                        mine.unsafe_offset(m * 512), p_row, weights.unsafe_offset(m * TILE), keys, begin, end,
                        row_of[MT](), m0 + m, all_m, column + lane, i == 0,
                    )
    barrier()
    for item in range(warp, C * MT * 4, WARPS):
        var group = item // (MT * 4)
        var quad = item % (MT * 4)
        var h = m0 * TILE + quad // 4 * TILE + quad % 4 // 2 * 8 + (lane >> 2)
        var first = (Int(block_idx.x) * C + group) * GROUP + 8 * (lane & 3) + quad % 2 * 4
        if h >= heads or first >= k:
            continue
        var home = o.unsafe_offset((r * heads + h) * k)
        if not seen:
            # Sizes that scratch memory was not made for must show.
            store4(home, first, Four(0) if p < 0 else Four(nothing() - nothing()))
            continue
        comptime half_of = WARPS // C // 2
        var sums = Array[Four, 2](fill=Four(0))
        comptime for j in range(2):
            comptime for i in range(half_of):
                var w = group + (j * half_of + i) * C
                var quads = totals.unsafe_offset(((w * MT * 4 + quad) * 32 + lane) * 4)
                var v = quads.unsafe_load[width=4, alignment=16]()
                comptime if i == 0:
                    sums[j] = v
                else:
                    sums[j] = sums[j] + v
        var v = (sums[0] + sums[1]) * inverse[unsafe_offset=h - m0 * TILE]
        finish(home, v, first, k, Int(half_), freq, p, exact)
