"""Four columns of a row at a time: loads, stores, rounding, and the way into planes."""

from std.collections import Array
from std.math import fma
from std.memory import bitcast
from max.gpu import thread_idx
from ..common import F32P, U8P
from .base import BF16P, BLOCK_THREADS

comptime Four = SIMD[DType.float32, 4]


@always_inline
def load4(p: F32P, i: Int) -> Four:
    """Elements i … i + 3; i is a multiple of four."""
    return p.unsafe_offset(i).unsafe_load[width=4, alignment=16]()


@always_inline
def store4(p: F32P, i: Int, v: Four):
    p.unsafe_offset(i).unsafe_store[alignment=16](v)


@always_inline
def load4_bf16(p: U8P, i: Int) -> Four:
    """Elements i … i + 3 of a bfloat16 array that travels as bytes."""
    var bits = p.unsafe_offset(2 * i).unsafe_bitcast[UInt16]().unsafe_load[width=4, alignment=8]()
    return bitcast[DType.float32, 4](bits.cast[DType.uint32]() << 16)


@always_inline
def round4(v: Four, exact: Bool) -> Four:
    """Rounds to bfloat16, nearest, ties to even, when `exact`."""
    return v.cast[DType.bfloat16]().cast[DType.float32]() if exact else v


@always_inline
def put_many[n: Int](planes: BF16P, stride: Int, i: Int, v: SIMD[DType.float32, n], exact: Bool):
    """Stores elements i … i + n - 1, i a multiple of n, of every plane in use; planes lie `stride` elements apart."""
    var high = v.cast[DType.bfloat16]()
    planes.unsafe_offset(i).unsafe_store[alignment = 2 * n](high)
    if not exact:
        var rest = v - high.cast[DType.float32]()
        var middle = rest.cast[DType.bfloat16]()
        planes.unsafe_offset(stride + i).unsafe_store[alignment = 2 * n](middle)
        var low = (rest - middle.cast[DType.float32]()).cast[DType.bfloat16]()
        planes.unsafe_offset(2 * stride + i).unsafe_store[alignment = 2 * n](low)


@always_inline
def column_of(q: Int) -> Int:
    """First column of a thread's quad q, a row's quads being dealt out to a block of `BLOCK_THREADS`."""
    return (Int(thread_idx.x) + q * BLOCK_THREADS) * 4


@always_inline
def load_row[quads: Int](row: F32P, first: Int, n: Int) -> Array[Four, quads]:
    """This thread's quads of columns first … n - 1, zero beyond; n is a positive multiple of four.

    Loads beyond the row fetch its end instead: no branch parts them, so all are on their way at once.
    """
    var v = Array[Four, quads](fill=Four(0))
    comptime for q in range(quads):
        v[q] = load4(row, min(first + column_of(q), n - 4))
    comptime for q in range(quads):
        v[q] = v[q] if first + column_of(q) < n else Four(0)
    return v^


@always_inline
def store_row[quads: Int](row: F32P, first: Int, n: Int, v: Array[Four, quads]):
    """Stores what `load_row` loads."""
    comptime for q in range(quads):
        if first + column_of(q) < n:
            store4(row, first + column_of(q), v[q])


@always_inline
def squares_of[quads: Int](v: Array[Four, quads]) -> Float32:
    """Sum of the squares of a thread's quads."""
    var acc = Four(0)
    comptime for q in range(quads):
        acc = fma(v[q], v[q], acc)
    return (acc[0] + acc[1]) + (acc[2] + acc[3])
