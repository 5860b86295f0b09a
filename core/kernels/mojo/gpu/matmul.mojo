"""Products x Wᵀ on tensor cores for weights in their stored format, batch-invariant.

A warp owns 16 outputs and one of SPLIT spans of the columns. Each lane loads 16 bytes of two weight rows, decodes them
to bfloat16 in registers and feeds m16n8k16 MMAs; the order of the columns inside an MMA is free, so lanes keep the
bytes they loaded and pick the activations that belong to them. A result is formed by one chain of MMAs per span and
one sum over the spans, whatever the number of rows.

Legend: g = lane / 4 (row of a tile), q = lane % 4 (its part of the columns), NT tiles of eight activation rows.
"""

from std.collections import Array
from std.memory import bitcast
from max.gpu import lane_id
from max.gpu.compute.mma import mma
from ..common import I32P, U8P
from ..linear import row_bytes, scale_row
from ..quant import BF16, E2M1, E4M3
from .base import BF16P

comptime Words = SIMD[DType.uint32, 4]
comptime Pair = SIMD[DType.bfloat16, 2]
comptime Acc = SIMD[DType.float32, 4]


@always_inline
def lane_columns[fmt: Int]() -> Int:
    """Columns in a lane's 16 bytes of one row."""
    comptime if fmt == E4M3:
        return 16
    elif fmt == E2M1:
        return 32
    else:
        return 8


@always_inline
def chunk_columns[fmt: Int]() -> Int:
    """Columns that four lanes load together."""
    return 4 * lane_columns[fmt]()


@always_inline
def load16(p: U8P) -> Words:
    return p.unsafe_bitcast[UInt32]().unsafe_load[width=4, alignment=16]()


@always_inline
def pair(bits: UInt32) -> Pair:
    return bitcast[DType.bfloat16, 2](bits)


@always_inline
def scaled(bits: UInt32, factor: UInt32) -> Pair:
    return pair(bits) * pair(factor)


@always_inline
def factor_of[fmt: Int](scale: UInt8) -> UInt32:
    """Two bfloat16 copies of the scale times the power of two that a decoder's exponents lack.

    Scales beyond 2^7 (E4M3) and 2 (E2M1) do not fit and saturate; a checkpoint with such weights is refused on load.
    """
    comptime bias = UInt32(120) if fmt == E4M3 else UInt32(126)
    var field = min(UInt32(scale) + bias, UInt32(254)) << 7
    return field | (field << 16)


@always_inline
def decode[fmt: Int, j: Int](w: Words, factor: UInt32) -> Tuple[Pair, Pair]:
    """The four weights of one row that go into MMA j of a chunk."""
    comptime if fmt == E4M3:
        var odd = w[j]
        var even = odd << 8
        return (
            scaled((even & 0x80008000) | ((even & 0x7F007F00) >> 4), factor),
            scaled((odd & 0x80008000) | ((odd & 0x7F007F00) >> 4), factor),
        )
    elif fmt == E2M1:
        var a = w[j // 2] << UInt32(12 - 8 * (j % 2))
        var b = w[j // 2] << UInt32(8 - 8 * (j % 2))
        return (
            scaled((a & 0x80008000) | ((a & 0x70007000) >> 6), factor),
            scaled((b & 0x80008000) | ((b & 0x70007000) >> 6), factor),
        )
    else:
        return (pair(w[2 * j]), pair(w[2 * j + 1]))


@always_inline
def low_halves(a: UInt32, b: UInt32) -> UInt32:
    return (a & 0xFFFF) | (b << 16)


@always_inline
def high_halves(a: UInt32, b: UInt32) -> UInt32:
    return (a >> 16) | (b & 0xFFFF0000)


@always_inline
def activations[fmt: Int, j: Int](x: Words) -> SIMD[DType.bfloat16, 4]:
    """The activations that meet `decode[fmt, j]`; x holds the eight consecutive columns of MMAs j and its neighbour."""
    var first: UInt32
    var second: UInt32
    comptime if fmt == E4M3:
        comptime at = 2 * (j % 2)
        first = low_halves(x[at], x[at + 1])
        second = high_halves(x[at], x[at + 1])
    elif fmt == E2M1:
        comptime at = j % 2
        first = low_halves(x[at], x[at + 2])
        second = high_halves(x[at], x[at + 2])
    else:
        comptime at = 2 * (j % 2)
        first = x[at]
        second = x[at + 1]
    return pair(first).join(pair(second))


@always_inline
def span[fmt: Int, NT: Int](
    mut acc: Array[Acc, NT],
    w: U8P,
    s: U8P,
    n0: Int,
    n: Int,
    k: Int,
    begin: Int,
    end: Int,
    x: BF16P,
    offsets: Array[Int, NT],
    plane: Int,
    parts: Int,
):
    """Adds columns begin … end - 1 of outputs n0 … n0 + 15 to acc.

    offsets[i]: where row g of activation tile i starts in a plane. Lanes past the last column add nothing; rows past
    the last output repeat it.
    """
    comptime mine = lane_columns[fmt]()
    comptime chunk = chunk_columns[fmt]()
    var lane = Int(lane_id())
    var g = lane >> 2
    var row0 = min(n0 + g, n - 1)
    var row1 = min(n0 + g + 8, n - 1)
    var w0 = w.unsafe_offset(row0 * row_bytes[fmt](k))
    var w1 = w.unsafe_offset(row1 * row_bytes[fmt](k))
    var scales0 = s.unsafe_offset(scale_row[fmt](row0, k))
    var scales1 = s.unsafe_offset(scale_row[fmt](row1, k))
    comptime ahead = chunks_ahead[fmt]()
    var mine_from = (lane & 3) * mine
    for c in range(begin, end, chunk * ahead):
        # All loads of several chunks go out before the first is used: a weight is read once, from far away.
        # A lane past the last column loads the first one instead and multiplies it by zero: no branch parts the loads.
        var a0 = Array[Words, ahead](fill=Words(0))
        var a1 = Array[Words, ahead](fill=Words(0))
        var s0 = Array[UInt8, ahead](fill=0)
        var s1 = Array[UInt8, ahead](fill=0)
        comptime for u in range(ahead):
            var column = c + u * chunk + mine_from
            column = column if column < end else begin
            a0[u] = load16(w0.unsafe_offset(row_bytes[fmt](column)))
            a1[u] = load16(w1.unsafe_offset(row_bytes[fmt](column)))
            comptime if fmt == E4M3 or fmt == E2M1:
                s0[u] = scales0[unsafe_offset=column // 32]
                s1[u] = scales1[unsafe_offset=column // 32]
        var f0 = Array[UInt32, ahead](fill=0)
        var f1 = Array[UInt32, ahead](fill=0)
        comptime for u in range(ahead):
            var inside = c + u * chunk + mine_from < end
            comptime if fmt == E4M3 or fmt == E2M1:
                f0[u] = factor_of[fmt](s0[u]) if inside else UInt32(0)
                f1[u] = factor_of[fmt](s1[u]) if inside else UInt32(0)
            else:
                a0[u] = a0[u] if inside else Words(0)
                a1[u] = a1[u] if inside else Words(0)
        for part in range(parts):
            comptime for u in range(ahead):
                var column = c + u * chunk + mine_from
                var xp = x.unsafe_offset(part * plane + (column if column < end else begin))
                comptime for i in range(NT):
                    chunk_mma[fmt](acc[i], a0[u], a1[u], f0[u], f1[u], xp.unsafe_offset(offsets[i]))


@always_inline
def chunks_ahead[fmt: Int]() -> Int:
    """Chunks whose weights a warp loads before it uses the first."""
    return 2 if fmt == E2M1 else 4


@always_inline
def chunk_mma[fmt: Int](mut acc: Acc, a0: Words, a1: Words, f0: UInt32, f1: UInt32, x: BF16P):
    """One chunk of 16 outputs times eight activation rows; x is this lane's columns of its row."""
    var row = x.unsafe_bitcast[UInt32]()
    comptime for eight in range(lane_columns[fmt]() // 8):
        var v = row.unsafe_offset(eight * 4).unsafe_load[width=4, alignment=16]()
        comptime for h in range(2):
            comptime j = 2 * eight + h
            var top = decode[fmt, j](a0, f0)
            var bottom = decode[fmt, j](a1, f1)
            var d = acc
            mma(d, top[0].join(bottom[0]).join(top[1].join(bottom[1])), activations[fmt, j](v), acc)
            acc = d
