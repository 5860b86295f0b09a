"""Attention in plain float32 on the GPU, for runs without the model's own rounding.

The same tiles, parts and scratch memory as with tensor cores, one key or one column at a time; speed is no aim here.
"""

from std.collections import Array
from std.math import exp, fma
from std.memory import AddressSpace
from max.gpu import lane_id
from max.gpu.primitives.warp import shuffle_idx
from ..common import F32P, at
from .base import Shared, warp_max, warp_sum
from .keys import TILE
from .vectors import Four, load4

comptime Addresses = Pointer[Int64, MutAnyOrigin, address_space=AddressSpace.SHARED]


@always_inline
def plain_tile(
    home: F32P, state: F32P, cap: Int, q: F32P, heads: Int, h0: Int, key0: Int, key1: Int, seen: Bool, k: Int,
    scale: Float32,
):
    """Probabilities [16 heads, TILE] of one tile, and state [16 heads, cap, 2], by a warp.

    Lanes 4 i hold the addresses of keys i and i + 8; `seen`: this lane's key is there.
    """
    var lane = Int(lane_id())
    for h in range(heads):
        var query = q.unsafe_offset((h0 + h) * k)
        var mine = Float32(0)
        for i in range(TILE):
            var key = F32P(
                unsafe_from_address=Int(shuffle_idx(Int64(key0 if i < 8 else key1), UInt32(4 * (i % 8))))
            )
            var acc = Four(0)
            for column in range(4 * lane, k, 128):
                acc = fma(load4(query, column), load4(key, column), acc)
            var dot = warp_sum((acc[0] + acc[1]) + (acc[2] + acc[3]))
            mine = dot * scale if lane == i else mine
        var top = warp_max(mine if seen else Float32.MIN)
        var p = exp(mine - top) if seen else Float32(0)
        var total = warp_sum(p)
        if lane < TILE:
            home[unsafe_offset=h * TILE + lane] = p
        if lane == 0:
            state[unsafe_offset=h * cap * 2] = top
            state[unsafe_offset=h * cap * 2 + 1] = total


@always_inline
def plain_part(
    totals: Shared, probabilities: F32P, weights: Shared, homes: Addresses, begin: Int, end: Int, stride: Int, m: Int,
    all_m: Int, column: Int, first: Bool,
):
    """Adds tiles begin … end - 1 of one column a lane, for the sixteen heads of m, to totals (its layout is theirs).

    weights: of tile 0 and the first of the sixteen heads, `stride` apart from tile to tile.
    """
    var acc = Array[Float32, TILE](fill=0)
    for tile in range(begin, end):
        if weights[unsafe_offset=tile * stride] < 0:
            continue
        var p = probabilities.unsafe_offset((tile * all_m + m) * 256)
        var d = Array[Float32, TILE](fill=0)
        for i in range(TILE):
            var key = F32P(unsafe_from_address=Int(homes[unsafe_offset=tile * TILE + i]))
            var v = at(key, column)
            comptime for h in range(TILE):
                d[h] = fma(at(p, h * TILE + i), v, d[h])
        comptime for h in range(TILE):
            acc[h] = fma(d[h], weights[unsafe_offset=tile * stride + h], acc[h])
    comptime for h in range(TILE):
        var place = totals.unsafe_offset(place_of(h, Int(lane_id())))
        place[] = acc[h] if first else place[] + acc[h]


@always_inline
def place_of(h: Int, column: Int) -> Int:
    """Where a warp's totals [16 heads, 32 columns] keep an entry: quads of columns in the order of an MMA's lanes."""
    var quad = (h // 8) * 2 + column % 8 // 4
    return (quad * 32 + h % 8 * 4 + column // 8) * 4 + column % 4
