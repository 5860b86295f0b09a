"""The model's number formats: decoding stored weights, and quantise-dequantise (QDQ) of activations and cache rows.

e4m3, e2m1: round to nearest, ties to even, saturating. UE8M0 scales are powers of two, rounded up.
Source: V4.1's kernels (act_quant, fp4 quantisers); bit for bit checked on unit vectors.
"""

from std.collections import Array
from std.memory import bitcast
from std.utils import StaticTuple
from .common import F32P, U8P, W, Vec, at, ld, st

comptime E4M3 = 0  # one byte a value, one UE8M0 scale per 32 x 32 block
comptime E2M1 = 1  # two values a byte (low nibble = even column), one UE8M0 scale per row and 32 columns
comptime BF16 = 2
comptime F32 = 3
comptime Block = StaticTuple[Vec, 4]  # 32 decoded weights


@always_inline
def halves(bits: SIMD[DType.uint16, 16]) -> Tuple[Vec, Vec]:
    """Sixteen float16 bit patterns as two float32 vectors."""
    var v = bitcast[DType.float16, 16](bits).cast[DType.float32]()
    return (v.slice[8, offset=0](), v.slice[8, offset=8]())


@always_inline
def ue8m0(byte: UInt8, shift: UInt32) -> Float32:
    """2^(byte - 127 + shift); the shift makes up for the exponent bias of a decoder below."""
    return bitcast[DType.float32]((UInt32(byte) + shift) << 23)


@always_inline
def e4m3_half_bits(codes: SIMD[DType.uint8, 16]) -> SIMD[DType.uint16, 16]:
    """Gives e4m3 codes as float16 patterns of value / 2^8 (subnormals included)."""
    # Sign extension fills the upper byte with the sign; after the shift bit 14 is the one to clear.
    var wide = bitcast[DType.int8, 16](codes).cast[DType.int16]() << 7
    return bitcast[DType.uint16, 16](wide) & 0xBFFF


@always_inline
def e2m1_block(packed: SIMD[DType.uint8, 16]) -> Block:
    """Gives 32 e2m1 codes as float32; in each vector the even columns come before the odd ones.

    A value's bfloat16 pattern is looked up byte by byte; interleaving the bytes, then with zeros, gives float32. Every
    shuffle stays within 16 bytes, which is why the columns come out in that order.
    """
    comptime upper = SIMD[DType.uint8, 16](
        0x00, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40, 0x80, 0xBF, 0xBF, 0xBF, 0xC0, 0xC0, 0xC0, 0xC0
    )
    comptime lower = SIMD[DType.uint8, 16](
        0x00, 0x00, 0x80, 0xC0, 0x00, 0x40, 0x80, 0xC0, 0x00, 0x00, 0x80, 0xC0, 0x00, 0x40, 0x80, 0xC0
    )
    var even = packed & 15
    var odd = packed >> 4
    var high = upper._dynamic_shuffle(even).join(upper._dynamic_shuffle(odd))
    var low = lower._dynamic_shuffle(even).join(lower._dynamic_shuffle(odd))
    var a = low.shuffle[
        0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39,
        16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
    ](high)
    var b = low.shuffle[
        8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47,
        24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63,
    ](high)
    var out = Block()
    comptime for half in range(2):
        var bits = bitcast[DType.uint16, 16](a if half == 0 else b)
        var zero = SIMD[DType.uint16, 16](0)
        out[2 * half] = bitcast[DType.float32, W](
            zero.shuffle[0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27](bits)
        )
        out[2 * half + 1] = bitcast[DType.float32, W](
            zero.shuffle[4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31](bits)
        )
    return out


@always_inline
def block_scale[fmt: Int](scale: UInt8) -> Float32:
    """What `decode32`'s values have to be multiplied by."""
    return ue8m0(scale, UInt32(8 if fmt == E4M3 else 0))


@always_inline
def decode32[fmt: Int](w: U8P, block: Int) -> Block:
    """32 weights of one row, not yet scaled; E2M1 in the column order of `e2m1_block`."""
    var out = Block()
    comptime if fmt == E4M3:
        comptime for half in range(2):
            var codes = w.unsafe_offset(block * 32 + half * 16).unsafe_load[width=16]()
            var v = halves(e4m3_half_bits(codes))
            out[half * 2] = v[0]
            out[half * 2 + 1] = v[1]
    elif fmt == E2M1:
        return e2m1_block(w.unsafe_offset(block * 16).unsafe_load[width=16]())
    elif fmt == BF16:
        comptime for quarter in range(4):
            var p = w.unsafe_offset(block * 64 + quarter * 16).unsafe_bitcast[UInt16]()
            var bits = p.unsafe_load[width=W]().cast[DType.uint32]() << 16
            out[quarter] = bitcast[DType.float32, W](bits)
    else:
        comptime for quarter in range(4):
            var p = w.unsafe_offset(block * 128 + quarter * 32).unsafe_bitcast[Float32]()
            out[quarter] = p.unsafe_load[width=W]()
    return out


@always_inline
def power_of_two_above(x: Float32) -> Float32:
    """The smallest power of two >= x, for a positive normal x."""
    var bits = bitcast[DType.uint32](x)
    var exponent = (bits >> 23) + (UInt32(1) if (bits & 0x7FFFFF) != 0 else UInt32(0))
    return bitcast[DType.float32](exponent << 23)


@always_inline
def bounded(x: Vec, limit: Float32) -> Vec:
    """Returns x within ±limit. A NaN stays one, so that a broken row shows in its logits."""
    return x.gt(Vec(limit)).select(Vec(limit), x.lt(Vec(-limit)).select(Vec(-limit), x))


@always_inline
def round_e4m3(x: Vec) -> Vec:
    var v = bounded(x, 448.0)
    var bits = bitcast[DType.uint32, W](v)
    var normal = bitcast[DType.float32, W]((bits + 0x7FFFF + ((bits >> 20) & 1)) & 0xFFF00000)
    # Adding 1.5 * 2^14 leaves steps of 2^-9, e4m3's subnormal step.
    var tiny = (v + 24576.0) - 24576.0
    # Of a NaN, `normal` may be zero; its comparison is false.
    return abs(v).ge(Vec(0.015625)).select(normal, tiny)


@always_inline
def round_e2m1(x: Vec) -> Vec:
    var v = bounded(x, 6.0)
    # 1.5 * 2^22, 2^23 and 2^24 leave steps of 0.5, 1 and 2.
    var low = (v + 6291456.0) - 6291456.0
    var middle = (v + 12582912.0) - 12582912.0
    var high = (v + 25165824.0) - 25165824.0
    var a = abs(v)
    return a.lt(Vec(2.0)).select(low, a.lt(Vec(4.0)).select(middle, high))


@always_inline
def amax[n: Int](p: F32P) -> Float32:
    var m = abs(ld(p, 0))
    comptime for i in range(1, n // W):
        m = max(m, abs(ld(p, i * W)))
    return m.reduce_max()


def qdq_fp8(dst: F32P, src: F32P, n: Int, exact: Bool):
    """QDQ of n values in groups of 32, e4m3 with a UE8M0 scale; a copy when not exact."""
    for g in range(0, n, 32):
        var s = Float32(1.0)
        if exact:
            s = power_of_two_above(max(amax[32](src.unsafe_offset(g)), 1e-4) / 448)
        var inverse = 1 / s
        comptime for i in range(4):
            var v = ld(src, g + i * W)
            st(dst, g + i * W, round_e4m3(v * inverse) * s if exact else v)


def qdq_mxfp4(p: F32P, n: Int, exact: Bool):
    """In-place QDQ in groups of 32, e2m1 with a UE8M0 scale."""
    if not exact:
        return
    for g in range(0, n, 32):
        var q = p.unsafe_offset(g)
        var s = power_of_two_above(max(amax[32](q), 7.052966104933725e-38) / 6)
        comptime for i in range(4):
            st(q, i * W, round_e2m1(ld(q, i * W) / s) * s)


def qdq_nvfp4(p: F32P, n: Int, exact: Bool):
    """In-place QDQ in groups of 16, e2m1 with an e4m3 scale and no global scale."""
    if not exact:
        return
    for g in range(0, n, 16):
        var q = p.unsafe_offset(g)
        var s = round_e4m3(Vec(max(amax[16](q), 0.01171875) / 6))[0]
        comptime for i in range(2):
            st(q, i * W, round_e2m1(ld(q, i * W) / s) * s)


def evens_first(dst: F32P, src: F32P, n: Int):
    """Puts the even columns of each eight before the odd ones, the order in which E2M1 weights are decoded.

    `dst` may be `src`.
    """
    for i in range(0, n, W):
        st(dst, i, ld(src, i).shuffle[0, 2, 4, 6, 1, 3, 5, 7]())
