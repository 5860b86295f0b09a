"""Linear layers y = x Wᵀ for weights in their stored format, batch-invariant.

A weight block of 32 columns is decoded once and used for up to six rows. Every output is formed the same way
whatever the number of rows: one accumulator of eight lanes over ascending columns, then one fixed reduction.
"""

from std.collections import Array
from std.math import fma
from .common import F32P, I32P, U8P, W, Vec, bf16_at, ld
from .quant import BF16, E2M1, E4M3, F32, decode32


@always_inline
def row_bytes[fmt: Int](k: Int) -> Int:
    comptime if fmt == E4M3:
        return k
    elif fmt == E2M1:
        return k // 2
    elif fmt == BF16:
        return 2 * k
    else:
        return 4 * k


@always_inline
def scale_row[fmt: Int](n: Int, k: Int) -> Int:
    """Offset of output row n's scales."""
    comptime if fmt == E4M3:
        return (n // 32) * (k // 32)
    elif fmt == E2M1:
        return n * (k // 32)
    else:
        return 0


@always_inline
def tile[fmt: Int, R: Int, N: Int](
    y: F32P, ldy: Int, x: F32P, ldx: Int, rows: I32P, first: Int, count: Int, w: U8P, s: U8P, n0: Int, k: Int
):
    """Outputs n0 … n0+N-1 of rows first … first+count-1 (count <= R; missing rows repeat the last one)."""
    var acc = Array[Vec, R * N](fill=Vec(0.0))
    var offsets = Array[Int, R](fill=0)
    comptime for r in range(R):
        offsets[r] = Int(rows[unsafe_offset=first + min(r, count - 1)]) * ldx
    for block in range(k // 32):
        comptime for n in range(N):
            var row = w.unsafe_offset((n0 + n) * row_bytes[fmt](k))
            var v = decode32[fmt](row, block, s, scale_row[fmt](n0 + n, k) + block)
            comptime for q in range(4):
                comptime for r in range(R):
                    acc[n * R + r] = fma(v[q], ld(x, offsets[r] + block * 32 + q * W), acc[n * R + r])
    comptime for n in range(N):
        comptime for r in range(R):
            if r < count:
                var total = acc[n * R + r].reduce_add()
                comptime if fmt == BF16:  # the quantised formats have whole groups of 32 only
                    for i in range(k // 32 * 32, k):
                        total = fma(x[unsafe_offset=offsets[r] + i], bf16_at(w, (n0 + n) * k + i), total)
                y[unsafe_offset=(first + r) * ldy + n0 + n] = total


@always_inline
def rows_tile[fmt: Int, R: Int, N: Int](
    y: F32P, ldy: Int, x: F32P, ldx: Int, rows: I32P, first: Int, count: Int, w: U8P, s: U8P, n0: Int, n1: Int, k: Int
):
    var n = n0
    while n + N <= n1:
        tile[fmt, R, N](y, ldy, x, ldx, rows, first, count, w, s, n, k)
        n += N
    while n < n1:
        tile[fmt, R, 1](y, ldy, x, ldx, rows, first, count, w, s, n, k)
        n += 1


def linear[fmt: Int](
    y: F32P, ldy: Int, x: F32P, ldx: Int, rows: I32P, count: Int, w: U8P, s: U8P, n0: Int, n1: Int, k: Int
):
    """Sets y[i, n] = x[rows[i]] · w[n] for i < count and n0 <= n < n1.

    `k` is the length of a row, a multiple of 32 unless `fmt` is BF16; `ldy` and `ldx` are row strides. `w` is [n, k] in format `fmt`
    (E2M1 wants x through `split_even_odd`), `s` its UE8M0 scales (E4M3: [n/32, k/32], E2M1: [n, k/32]).
    """
    var first = 0
    while first < count:
        var left = count - first
        if left == 1:
            rows_tile[fmt, 1, 4](y, ldy, x, ldx, rows, first, 1, w, s, n0, n1, k)
            first += 1
        elif left == 2:
            rows_tile[fmt, 2, 4](y, ldy, x, ldx, rows, first, 2, w, s, n0, n1, k)
            first += 2
        elif left == 3:
            rows_tile[fmt, 3, 2](y, ldy, x, ldx, rows, first, 3, w, s, n0, n1, k)
            first += 3
        elif fmt == F32 or fmt == BF16:
            rows_tile[fmt, 3, 2](y, ldy, x, ldx, rows, first, 3, w, s, n0, n1, k)  # cheap to decode: small tiles
            first += 3
        else:
            rows_tile[fmt, 6, 1](y, ldy, x, ldx, rows, first, min(left, 6), w, s, n0, n1, k)
            first += 6
