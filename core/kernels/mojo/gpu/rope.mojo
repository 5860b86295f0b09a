"""Rotary embedding on the GPU: one value, one pair or four columns a lane."""

from std.collections import Array
from std.math import ceildiv, fma
from max.gpu import block_idx, lane_id, warp_id
from max.gpu.host import DeviceContext
from max.gpu.primitives.warp import shuffle_xor
from ..common import F32P, I32P, at, bf16
from .base import BLOCK_THREADS, WARPS, is_exact
from .vectors import Four

comptime WARP_HEADS = 4
comptime HEADS = WARPS * WARP_HEADS  # of a block
comptime Two = SIMD[DType.float32, 2]


@always_inline
def cos_sin(angle: Float64) -> Tuple[Float32, Float32]:
    """Cosine and sine by reduction to ±pi/4 and Taylor series in float64; the GPU's own are too coarse.

    The angle is a position (below 2^21) times a frequency (at most 1), so two words of pi/2 are plenty.
    """
    var turns = angle * 0.63661977236758134308
    var n = Int64(turns + (0.5 if turns >= 0 else -0.5))
    var r = fma(Float64(n), Float64(-1.57079632679489655800), angle)
    r = fma(Float64(n), Float64(-6.12323399573676603587e-17), r)
    var z = r * r
    var s = fma(z, Float64(-7.6471637318198164759e-13), Float64(1.6059043836821614599e-10))
    s = fma(z, s, Float64(-2.5052108385441718775e-8))
    s = fma(z, s, Float64(2.7557319223985890653e-6))
    s = fma(z, s, Float64(-1.9841269841269841270e-4))
    s = fma(z, s, Float64(8.3333333333333333333e-3))
    s = fma(z, s, Float64(-1.6666666666666666667e-1))
    s = fma(z * r, s, r)
    var c = fma(z, Float64(-1.1470745597729724714e-11), Float64(2.0876756987868098979e-9))
    c = fma(z, c, Float64(-2.7557319223985890653e-7))
    c = fma(z, c, Float64(2.4801587301587301587e-5))
    c = fma(z, c, Float64(-1.3888888888888888889e-3))
    c = fma(z, c, Float64(4.1666666666666666667e-2))
    c = fma(z, c, Float64(-0.5))
    c = fma(z, c, Float64(1.0))
    var quadrant = Int(n & 3)
    var a = Float32(c)
    var b = Float32(s)
    if quadrant == 0:
        return (a, b)
    if quadrant == 1:
        return (-b, a)
    if quadrant == 2:
        return (-a, -b)
    return (b, -a)


@always_inline
def turn_of(freq: F32P, position: Int, pair: Int) -> Tuple[Float32, Float32]:
    """Cosine and sine of a pair at a position; the angle is a float32 product, as in the reference."""
    return cos_sin(Float64(Float32(position) * at(freq, pair)))


@always_inline
def rope_in_warp(x: Float32, i: Int, begin: Int, freq: F32P, position: Int, exact: Bool) -> Float32:
    """Value i of a row, one a lane, turned if i >= begin; neighbours lie in neighbouring lanes."""
    var other = shuffle_xor(x, UInt32(1))
    if i < begin:
        return x
    var turn = turn_of(freq, position, (i - begin) // 2)
    if i % 2 == 0:
        return bf16(x * turn[0] - other * turn[1], exact)
    return bf16(other * turn[1] + x * turn[0], exact)


@always_inline
def turned(a: Float32, b: Float32, c: Float32, s: Float32, exact: Bool) -> Tuple[Float32, Float32]:
    """A pair turned by the angle with cosine c and sine s."""
    return (bf16(fma(a, c, -(b * s)), exact), bf16(fma(a, s, b * c), exact))


@always_inline
def turns_at(i: Int, begin: Int, freq: F32P, position: Int) -> Four:
    """Cosine and sine of the pairs at columns i and i + 2 of a row whose turned part begins at column `begin`."""
    var v = Four(0)
    comptime for pair in range(2):
        if i + 2 * pair >= begin:
            var turn = turn_of(freq, position, (i + 2 * pair - begin) // 2)
            v[2 * pair] = turn[0]
            v[2 * pair + 1] = turn[1]
    return v


@always_inline
def rope_quad(x: Four, turns: Four, i: Int, begin: Int, exact: Bool) -> Four:
    """Columns i … i + 3 of a row, the pairs from `begin` on turned by what `turns_at` gave."""
    var y = x
    comptime for pair in range(2):
        if i + 2 * pair >= begin:
            var both = turned(x[2 * pair], x[2 * pair + 1], turns[2 * pair], turns[2 * pair + 1], exact)
            y[2 * pair] = both[0]
            y[2 * pair + 1] = both[1]
    return y


def rope_heads_kernel(
    q: F32P, pos: I32P, freq: F32P, width: Int32, k: Int32, half_: Int32, heads_: Int32, mode: I32P
):
    """Turns the last 2 half values of every head in place; grid (T, ceildiv(heads, HEADS)), a pair a lane.

    A warp turns several heads by the same angles.
    """
    var r = Int(block_idx.x)
    var heads = Int(heads_)
    var half = Int(half_)
    var first = Int(block_idx.y) * HEADS + Int(warp_id()) * WARP_HEADS
    var row = q.unsafe_offset(r * Int(width) + Int(k) - 2 * half)
    var exact = is_exact(mode)
    for pair in range(Int(lane_id()), half, 32):
        var v = Array[Two, WARP_HEADS](fill=Two(0))
        comptime for i in range(WARP_HEADS):
            var head = row.unsafe_offset(min(first + i, heads - 1) * Int(k) + 2 * pair)
            v[i] = head.unsafe_load[width=2, alignment=8]()
        var turn = turn_of(freq, Int(pos[unsafe_offset=r]), pair)
        comptime for i in range(WARP_HEADS):
            if first + i < heads:
                var both = turned(v[i][0], v[i][1], turn[0], turn[1], exact)
                row.unsafe_offset((first + i) * Int(k) + 2 * pair).unsafe_store[alignment=8](Two(both[0], both[1]))


def rope_heads(
    ctx: DeviceContext, q: F32P, pos: I32P, freq: F32P, t: Int, width: Int, k: Int, half: Int, mode: I32P
) raises:
    """Turns the heads, k values each, of q [t, width] in place; t > 0."""
    ctx.enqueue_function[rope_heads_kernel](
        q, pos, freq, Int32(width), Int32(k), Int32(half), Int32(width // k), mode,
        grid_dim=(t, ceildiv(width // k, HEADS)), block_dim=BLOCK_THREADS,
    )
