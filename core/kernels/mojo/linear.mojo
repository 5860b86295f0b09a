"""Linear layers y = x Wᵀ for weights in their stored format, batch-invariant.

A weight block of 32 columns is decoded once and used for up to six rows. Every output is formed the same way
whatever the number of rows: eight lanes over ascending columns, a quantised block summed before its scale is applied;
then one fixed reduction.
"""

from std.collections import Array
from std.math import fma
from .common import F32P, I32P, U8P, W, Vec, bf16_at, ld, st, sums8
from .quant import BF16, E2M1, E4M3, F32, block_scale, decode32


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
def tile[fmt: Int, R: Int, N: Int](sums: F32P, x: Array[F32P, R], w: U8P, s: U8P, n0: Int, k: Int):
    """Lane sums of outputs n0 … n0+N-1 of R rows, put at vectors r * W + n of `sums`."""
    var acc = Array[Vec, R * N](fill=Vec(0.0))
    for block in range(k // 32):
        comptime for n in range(N):
            var v = decode32[fmt](w.unsafe_offset((n0 + n) * row_bytes[fmt](k)), block)
            comptime if fmt == E4M3 or fmt == E2M1:
                var scale = Vec(block_scale[fmt](s[unsafe_offset=scale_row[fmt](n0 + n, k) + block]))
                comptime for r in range(R):
                    var part = v[0] * ld(x[r], block * 32)
                    comptime for q in range(1, 4):
                        part = fma(v[q], ld(x[r], block * 32 + q * W), part)
                    acc[n * R + r] = fma(part, scale, acc[n * R + r])
            else:
                comptime for q in range(4):
                    comptime for r in range(R):
                        acc[n * R + r] = fma(v[q], ld(x[r], block * 32 + q * W), acc[n * R + r])
    comptime for n in range(N):
        comptime for r in range(R):
            st(sums, (r * W + n) * W, acc[n * R + r])


def rows_tile[fmt: Int, R: Int, N: Int](
    y: F32P, ldy: Int, x: F32P, ldx: Int, rows: I32P, first: Int, w: U8P, s: U8P, n0: Int, n1: Int, k: Int
):
    """Outputs n0 … n1-1 of rows first … first+R-1, eight outputs reduced together."""
    var px = Array[F32P, R](fill=x)
    comptime for r in range(R):
        px[r] = x.unsafe_offset(Int(rows[unsafe_offset=first + r]) * ldx)
    var memory = Array[Vec, R * W](fill=Vec(0.0))
    var sums = memory.unsafe_ptr().unsafe_bitcast[Float32]().unsafe_origin_cast[MutAnyOrigin]()
    for n in range(n0, n1, W):
        var here = min(W, n1 - n)
        if here == W:
            comptime for i in range(0, W, N):
                tile[fmt, R, N](sums.unsafe_offset(i * W), px, w, s, n + i, k)
        else:
            for i in range(here):
                tile[fmt, R, 1](sums.unsafe_offset(i * W), px, w, s, n + i, k)
        comptime for r in range(R):
            var lanes = Array[Vec, W](fill=Vec(0.0))
            comptime for i in range(W):
                lanes[i] = ld(sums, (r * W + i) * W)
            var total = sums8(lanes)
            comptime if fmt == BF16:  # the quantised formats have whole groups of 32 only
                for i in range(k // 32 * 32, k):
                    for j in range(here):
                        total[j] = fma(px[r][unsafe_offset=i], bf16_at(w, (n + j) * k + i), total[j])
            var dst = y.unsafe_offset((first + r) * ldy + n)
            if here == W:
                st(dst, 0, total)
            else:
                for j in range(here):
                    dst[unsafe_offset=j] = total[j]
    _ = memory^


def linear[fmt: Int](
    y: F32P, ldy: Int, x: F32P, ldx: Int, rows: I32P, count: Int, w: U8P, s: U8P, n0: Int, n1: Int, k: Int
):
    """Sets y[i, n] = x[rows[i]] · w[n] for i < count and n0 <= n < n1.

    `k` is the length of a row, a multiple of 32 unless `fmt` is BF16; `ldy` and `ldx` are row strides. `w` is [n, k] in
    format `fmt` (E2M1 wants x through `evens_first`), `s` its UE8M0 scales (E4M3: [n/32, k/32], E2M1: [n, k/32]).
    """
    # Unscaled formats are cheap to decode, so there small tiles with more outputs are as fast.
    comptime quantised = fmt == E4M3 or fmt == E2M1
    comptime most = 6 if quantised else 4
    var first = 0
    while first < count:
        var here = min(count - first, most)
        comptime for R in range(1, most + 1):
            comptime N = (2 if R < 5 else 1) if quantised else (4 if R < 3 else 2)
            if here == R:
                rows_tile[fmt, R, N](y, ldy, x, ldx, rows, first, w, s, n0, n1, k)
        first += here
