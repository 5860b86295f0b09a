"""Attention's probabilities on the GPU, a tile of sixteen keys a warp.

A tile's probabilities are made against the tile's own top, and a logit is one chain of MMAs: how tiles and heads are
shared out among blocks changes no result.

Legend: g = lane / 4, c = lane % 4, m a tile of sixteen heads, P the fragments in which values.mojo multiplies.
"""

from std.collections import Array
from std.math import exp, sqrt
from std.memory import AddressSpace, bitcast
from std.utils import StaticTuple
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, grid_dim, lane_id, warp_id
from max.gpu.compute.mma import mma
from max.gpu.memory import external_memory
from max.gpu.primitives.warp import shuffle_xor, vote
from ..common import F32P, I32P, I64P, U32P
from .base import Shared, is_exact
from .keys import Key, TILE, key_at, keys_of, load_key, nothing, tiles_of
from .matmul import Acc
from .plain_attention import plain_tile
from .vectors import Four, load4


@always_inline
def dynamic_shared() -> Shared:
    """The block's shared memory of the size asked for at launch."""
    var p = external_memory[Float32, address_space=AddressSpace.SHARED, alignment=16]()
    return p.unsafe_origin_cast[MutAnyOrigin]()


@always_inline
def stage_queries[MT: Int, U: Int](home: Shared, q: F32P, r: Int, h0: Int, heads: Int, k: Int, steps: Int):
    """Heads h0 … of row r as bfloat16 fragments [MT, steps, lane], four words each; zero beyond k columns."""
    comptime warps = 2 * MT
    comptime ahead = U // 2  # a round is MT x U fragments: steps are a multiple of U, so rounds come out even
    var lane = Int(lane_id())
    for first in range(Int(warp_id()), MT * steps, warps * ahead):
        var low = Array[Four, ahead](fill=Four(0))
        var high = Array[Four, ahead](fill=Four(0))
        comptime for u in range(ahead):
            var f = UInt32(first + u * warps)
            var m = Int(f // UInt32(steps))
            var column = min(Int(f % UInt32(steps)) * TILE + 4 * (lane & 3), k - 4)
            var h = h0 + m * TILE + (lane >> 2)
            low[u] = load4(q, (r * heads + min(h, heads - 1)) * k + column)
            high[u] = load4(q, (r * heads + min(h + 8, heads - 1)) * k + column)
        comptime for u in range(ahead):
            var f = first + u * warps
            var inside = Int(UInt32(f) % UInt32(steps)) * TILE < k
            var v = bitcast[DType.uint32, 4](fragment_of(low[u], high[u])) & (~UInt32(0) if inside else UInt32(0))
            home.unsafe_offset((f * 32 + lane) * 4).unsafe_store[alignment=16](bitcast[DType.float32, 4](v))


@always_inline
def fragment_of(low: Four, high: Four) -> Four:
    """Four columns of head g and four of head g + 8 as the words of an MMA's first operand."""
    var a = bitcast[DType.uint32, 2](low.cast[DType.bfloat16]())
    var b = bitcast[DType.uint32, 2](high.cast[DType.bfloat16]())
    return bitcast[DType.float32, 4](SIMD[DType.uint32, 4](a[0], b[0], a[1], b[1]))


@always_inline
def quad_max(x: Float32) -> Float32:
    var v = max(x, shuffle_xor(x, UInt32(1)))
    return max(v, shuffle_xor(v, UInt32(2)))


@always_inline
def quad_sum(x: Float32) -> Float32:
    var v = x + shuffle_xor(x, UInt32(1))
    return v + shuffle_xor(v, UInt32(2))


@always_inline
def soften(dots: Four, there: Array[Bool, 4], scale: Float32) -> Tuple[Four, Float32, Float32]:
    """One head's probabilities of this lane's four keys, and the tile's top logit and sum, in every lane of a quad."""
    var v = dots
    comptime for i in range(4):
        v[i] = v[i] if there[i] else nothing()
    var top = quad_max(max(max(v[0], v[1]), max(v[2], v[3])))
    var p = Four(0)
    comptime for i in range(4):
        # Not a branch: the difference is a number for absent keys too, unless all are absent.
        var e = exp((v[i] - top) * scale)
        p[i] = e if there[i] else Float32(0)
    return (p, top * scale, quad_sum((p[0] + p[1]) + (p[2] + p[3])))


@always_inline
def logits_of[
    MT: Int, U: Int
](mut acc: Array[Acc, 2 * MT], queries: Shared, key0: Key, key1: Key, k: Int, steps: Int):
    """Dot products of MT x 16 heads with the keys that this lane loads for its tile: slots g and g + 8."""
    var lane = Int(lane_id())
    for base in range(0, steps, U):
        var v0 = Array[Four, U](fill=Four(0))
        var v1 = Array[Four, U](fill=Four(0))
        comptime for u in range(U):
            # Beyond the last column the queries are zero; any number will do there.
            var column = min((base + u) * TILE + 4 * (lane & 3), k - 4)
            v0[u] = load_key(key0, column)
            v1[u] = load_key(key1, column)
        comptime for u in range(U):
            var b0 = v0[u].cast[DType.bfloat16]()
            var b1 = v1[u].cast[DType.bfloat16]()
            comptime for m in range(MT):
                var home = queries.unsafe_offset(((m * steps + base + u) * 32 + lane) * 4)
                var a = bitcast[DType.bfloat16, 8](home.unsafe_load[width=4, alignment=16]())
                var d0 = acc[2 * m]
                var d1 = acc[2 * m + 1]
                mma(d0, a, b0, acc[2 * m])
                mma(d1, a, b1, acc[2 * m + 1])
                acc[2 * m] = d0
                acc[2 * m + 1] = d1


# Without the least number of blocks the compiler saves registers, and a key's loads then wait for one another.
@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(64 * MT)),
    `nvvm.minctasm`=SIMDLength(2 if MT == 4 else 1),
)
def probability_kernel[
    MT: Int, U: Int
](
    probabilities: F32P, states: F32P, homes: I64P, q: F32P, window: F32P, rows_leaf: F32P, chosen: I32P, own: F32P,
    seq: I32P, pos: I32P, last: I32P, table: U32P, k_: Int32, heads_: Int32, n_chosen_: Int32, cap_: Int32,
    layers: Int32, slots: Int32, kv_slots: Int32, width: Int32, layer: I32P, mode: I32P,
):
    """Gives P, states [T, m 16 heads, cap, 2] top and sum, homes [T, cap, TILE] addresses of the keys.

    P: fragments [T, cap, m, lane, 4 words] of bfloat16, or, in plain float32, [T, cap, m, 16 heads, TILE] in the same
    memory. Grid (sharers of a row's tiles, m / MT, T), 2 MT warps, a tile each; dynamic shared memory holds queries.
    """
    var r = Int(block_idx.z)
    if pos[unsafe_offset=r] < 0:
        return
    var k = Int(k_)
    var heads = Int(heads_)
    var n_chosen = Int(n_chosen_)
    var cap = Int(cap_)
    var tiles = tiles_of(n_chosen, layer)
    if tiles > cap:
        return
    var lane = Int(lane_id())
    var g = lane >> 2
    var pages = table.unsafe_offset(Int(seq[unsafe_offset=r]) * Int(width))
    var exact = is_exact(mode)
    var steps = Int(UInt32(k + TILE * U - 1) // UInt32(TILE * U)) * U
    var queries = dynamic_shared()
    if exact:
        stage_queries[MT, U](queries, q, r, Int(block_idx.y) * MT * TILE, heads, k, steps)
        barrier()
    var all_m = Int(UInt32(heads + TILE - 1) // UInt32(TILE))
    comptime warps = 2 * MT
    var scale = 1 / sqrt(Float32(k))
    var newest = Int(last[unsafe_offset=r])
    for tile in range(Int(block_idx.x) * warps + Int(warp_id()), tiles, Int(grid_dim.x) * warps):
        var found = keys_of(
            tile, g, r, newest, window, Int(layers), Int(slots), rows_leaf, Int(kv_slots), chosen, n_chosen, own, k,
            pages, layer,
        )
        var there0 = vote[DType.uint32](found[0] != 0)
        var there1 = vote[DType.uint32](found[1] != 0)
        # An absent key reads as the row's first head: numbers that are as finite as the row is, times zero.
        var key0 = found[0] if found[0] != 0 else Int(q.unsafe_offset(r * heads * k))
        var key1 = found[1] if found[1] != 0 else Int(q.unsafe_offset(r * heads * k))
        if lane & 3 == 0 and block_idx.y == 0:
            homes[unsafe_offset=(r * cap + tile) * TILE + g] = Int64(key0)
            homes[unsafe_offset=(r * cap + tile) * TILE + g + 8] = Int64(key1)
        var there = Array[Bool, 4](fill=False)
        comptime for i in range(2):
            there[i] = (there0 >> UInt32(8 * (lane & 3) + 4 * i)) & 1 != 0
            there[2 + i] = (there1 >> UInt32(8 * (lane & 3) + 4 * i)) & 1 != 0
        if not exact:
            for m in range(Int(block_idx.y) * MT, min((Int(block_idx.y) + 1) * MT, all_m)):
                var seen = lane < TILE and ((there0 if lane < 8 else there1) >> UInt32(4 * (lane & 7))) & 1 != 0
                plain_tile(
                    probabilities.unsafe_offset(((r * cap + tile) * all_m + m) * 256),
                    states.unsafe_offset(((r * all_m + m) * TILE * cap + tile) * 2), cap,
                    q.unsafe_offset(r * heads * k), min(TILE, heads - m * TILE), m * TILE, key0, key1, seen, k, scale,
                )
            continue
        var acc = Array[Acc, 2 * MT](fill=Acc(0))
        if there0 | there1 != 0:
            logits_of[MT, U](acc, queries, key_at(key0), key_at(key1), k, steps)
        comptime for i in range(MT):
            var m = Int(block_idx.y) * MT + i
            var a = acc[2 * i]
            var b = acc[2 * i + 1]
            var low = soften(Four(a[0], a[1], b[0], b[1]), there, scale)
            var high = soften(Four(a[2], a[3], b[2], b[3]), there, scale)
            if m < all_m:
                var home = probabilities.unsafe_offset((((r * cap + tile) * all_m + m) * 32 + lane) * 4)
                home.unsafe_store[alignment=16](fragment_of(low[0], high[0]))
                if lane & 3 == 0:
                    var state = states.unsafe_offset((((r * all_m + m) * TILE + g) * cap + tile) * 2)
                    state.unsafe_store[alignment=8](SIMD[DType.float32, 2](low[1], low[2]))
                    state = state.unsafe_offset(16 * cap)
                    state.unsafe_store[alignment=8](SIMD[DType.float32, 2](high[1], high[2]))
