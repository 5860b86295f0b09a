"""Rotary embedding on the GPU, one pair or one value a lane."""

from std.math import fma
from max.gpu import block_idx, thread_idx
from max.gpu.primitives.warp import shuffle_xor
from ..common import F32P, I32P, at, bf16
from .base import is_exact


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


def rope_heads_kernel(q: F32P, pos: I32P, freq: F32P, width: Int32, k: Int32, half: Int32, mode: I32P):
    """Turns the last 2 half values of every head in place; grid (T, heads), a thread per pair."""
    var r = Int(block_idx.x)
    var row = q.unsafe_offset(r * Int(width) + Int(block_idx.y) * Int(k) + Int(k) - 2 * Int(half))
    var exact = is_exact(mode)
    for pair in range(Int(thread_idx.x), Int(half), 32):
        var turn = turn_of(freq, Int(pos[unsafe_offset=r]), pair)
        var a = at(row, 2 * pair)
        var b = at(row, 2 * pair + 1)
        row[unsafe_offset=2 * pair] = bf16(a * turn[0] - b * turn[1], exact)
        row[unsafe_offset=2 * pair + 1] = bf16(a * turn[1] + b * turn[0], exact)
