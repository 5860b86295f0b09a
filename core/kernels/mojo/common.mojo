"""Pointers, vectors, rounding and the parallel loop that every kernel shares.

Values travel as float32. `exact` switches on the model's own rounding points (bfloat16 activations, FP8 and FP4
quantisers); with it off every rounding below is the identity and a kernel is plain float32 arithmetic.
"""

from std.collections import Array
from std.math import cos, exp, fma, sin, sqrt
from std.memory import bitcast
from max.algorithm import sync_parallelize

comptime F32P = Pointer[Float32, MutAnyOrigin]
comptime U8P = Pointer[UInt8, MutAnyOrigin]
comptime I32P = Pointer[Int32, MutAnyOrigin]
comptime I64P = Pointer[Int64, MutAnyOrigin]
comptime U32P = Pointer[UInt32, MutAnyOrigin]
comptime U64P = Pointer[UInt64, MutAnyOrigin]
comptime Held[dtype: DType] = Pointer[Scalar[dtype], MutUntrackedOrigin]  # as a struct keeps it
comptime W = 8  # float32 lanes of x86-64-v3; a row's sums are always formed in these eight lanes
comptime Vec = SIMD[DType.float32, W]
comptime NEG_INF = Float32.MIN

# Below this many multiply-adds a second thread costs more (about 5 us) than it saves.
comptime PARALLEL_WORK = 200_000


@always_inline
def held[dtype: DType](p: Pointer[Scalar[dtype], MutAnyOrigin]) -> Held[dtype]:
    """A pointer that a struct may keep; whoever makes the struct keeps the memory alive."""
    return p.unsafe_origin_cast[MutUntrackedOrigin]()


@always_inline
def lent[dtype: DType](p: Held[dtype]) -> Pointer[Scalar[dtype], MutAnyOrigin]:
    """The other way round."""
    return p.unsafe_origin_cast[MutAnyOrigin]()


@always_inline
def ld(p: F32P, i: Int) -> Vec:
    return p.unsafe_offset(i).unsafe_load[width=W]()


@always_inline
def st(p: F32P, i: Int, v: Vec):
    p.unsafe_offset(i).unsafe_store(v)


@always_inline
def at(p: F32P, i: Int) -> Float32:
    return p[unsafe_offset=i]


def parallel[F: def(Int) -> None](body: F, items: Int, work: Int, most: Int):
    """Runs body(0) … body(items - 1); on up to `most` threads when `work` (multiply-adds) is worth it.

    Which thread runs an item never changes what the item computes.
    """
    var threads = min(items, most)
    if work < PARALLEL_WORK or threads <= 1:
        for i in range(items):
            body(i)
        return

    # One task a thread: MAX takes half a microsecond to hand out each. Strides even out items of different size.
    def share(first: Int) {imm}:
        for i in range(first, items, threads):
            body(i)

    sync_parallelize(share, threads)


@always_inline
def bf16v(x: Vec, exact: Bool) -> Vec:
    """Rounds to bfloat16, nearest, ties to even, when `exact`. A NaN stays one."""
    if not exact:
        return x
    var bits = bitcast[DType.uint32, W](x)
    var rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    # A GPU's NaN is 0x7FFFFFFF, whose bits round to -0.
    return x.eq(x).select(bitcast[DType.float32, W](rounded), x)


@always_inline
def bf16(x: Float32, exact: Bool) -> Float32:
    """Rounds one value as `bf16v` does."""
    if not exact:
        return x
    var bits = bitcast[DType.uint32](x)
    var rounded = bitcast[DType.float32]((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000)
    return rounded if x == x else x


def bf16_row(row: F32P, n: Int, exact: Bool):
    """Rounds n values in place."""
    if exact:
        for i in range(0, n, W):
            st(row, i, bf16v(ld(row, i), True))


@always_inline
def bf16_value(bits: UInt16) -> Float32:
    return bitcast[DType.float32](UInt32(bits) << 16)


@always_inline
def bf16_at(p: U8P, i: Int) -> Float32:
    """Element i of a bfloat16 array that travels as bytes."""
    return bf16_value(p.unsafe_offset(2 * i).unsafe_bitcast[UInt16]()[])


@always_inline
def sigmoid(x: Float32) -> Float32:
    return 1 / (1 + exp(-x))


@always_inline
def sigmoid_v(x: Vec) -> Vec:
    return 1 / (1 + exp(-x))


@always_inline
def sum_squares(p: F32P, n: Int) -> Float32:
    """Sum of squares of n values (n a multiple of eight), in the eight lanes' fixed order."""
    var acc = Vec(0.0)
    for i in range(0, n, W):
        var v = ld(p, i)
        acc = fma(v, v, acc)
    return acc.reduce_add()


@always_inline
def sums8(a: Array[Vec, W]) -> Vec:
    """Lane i of the result is the sum of the eight lanes of a[i], always formed in the same tree."""
    var pairs = Array[Vec, 4](fill=Vec(0.0))
    comptime for i in range(4):
        var x = a[2 * i]
        var y = a[2 * i + 1]
        pairs[i] = x.shuffle[0, 8, 2, 10, 4, 12, 6, 14](y) + x.shuffle[1, 9, 3, 11, 5, 13, 7, 15](y)
    var quads = Array[Vec, 2](fill=Vec(0.0))
    comptime for i in range(2):
        var x = pairs[2 * i]
        var y = pairs[2 * i + 1]
        quads[i] = x.shuffle[0, 1, 8, 9, 4, 5, 12, 13](y) + x.shuffle[2, 3, 10, 11, 6, 7, 14, 15](y)
    var x = quads[0]
    var y = quads[1]
    return x.shuffle[0, 1, 2, 3, 8, 9, 10, 11](y) + x.shuffle[4, 5, 6, 7, 12, 13, 14, 15](y)


@always_inline
def dots8(q: F32P, keys: Array[F32P, W], k: Int) -> Vec:
    """Dot products of one query with eight keys of k values (a multiple of eight)."""
    var acc = Array[Vec, W](fill=Vec(0.0))
    for i in range(0, k, W):
        var v = ld(q, i)
        comptime for j in range(W):
            acc[j] = fma(v, ld(keys[j], i), acc[j])
    return sums8(acc)


def rms_norm(dst: F32P, src: F32P, weight: F32P, n: Int, eps: Float32, exact: Bool):
    """One row: dst = bf16(src / sqrt(mean(src^2) + eps) * weight). `dst` may be `src`."""
    var scale = 1 / sqrt(sum_squares(src, n) / Float32(n) + eps)
    for i in range(0, n, W):
        st(dst, i, bf16v(ld(src, i) * scale * ld(weight, i), exact))


def rope_table(turn: F32P, inv_freq: F32P, position: Int, half: Int):
    """Cosines, then sines, of position * inv_freq, `half` each."""
    for k in range(half):
        # The angle is a float32 product, as in the reference; only its sine and cosine are taken in float64.
        var angle = Float64(Float32(position) * at(inv_freq, k))
        turn[unsafe_offset=k] = Float32(cos(angle))
        turn[unsafe_offset=half + k] = Float32(sin(angle))


def rope(row: F32P, turn: F32P, half: Int, sign: Float32, exact: Bool):
    """Turns `half` adjacent pairs of `row` in place; sign -1 turns back."""
    for k in range(half):
        var c = at(turn, k)
        var s = at(turn, half + k) * sign
        var a = at(row, 2 * k)
        var b = at(row, 2 * k + 1)
        row[unsafe_offset=2 * k] = bf16(a * c - b * s, exact)
        row[unsafe_offset=2 * k + 1] = bf16(a * s + b * c, exact)


struct Scratch(Movable):
    """Working memory of one call."""

    var data: List[Float32]

    def __init__(out self, size: Int):
        self.data = List[Float32](length=max(size, 1), fill=0)

    def ptr(mut self) -> F32P:
        return self.data.unsafe_ptr().unsafe_origin_cast[MutAnyOrigin]()


struct Rows(Movable):
    """A list of row numbers; 0, 1, 2 … until changed."""

    var data: List[Int32]

    def __init__(out self, size: Int):
        self.data = List[Int32](length=max(size, 1), fill=0)
        for i in range(size):
            self.data[i] = Int32(i)

    def ptr(mut self) -> I32P:
        return self.data.unsafe_ptr().unsafe_origin_cast[MutAnyOrigin]()
