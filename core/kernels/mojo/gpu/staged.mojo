"""Activations on their way into the tensor cores: bfloat16 planes [3, T, K].

With the model's own rounding an activation is a bfloat16 or FP8 value already, so plane 0 holds it exactly. Without
it, three planes add up to the float32 value (8 bits each), and a product with three MMAs is as good as float32.
"""

from std.math import ceildiv
from std.memory import bitcast
from max.gpu import block_idx, thread_idx
from max.gpu.host import DeviceContext
from max.gpu.primitives.warp import shuffle_xor
from ..common import F32P, I32P, at, bf16
from ..quant import power_of_two_above
from .base import BF16P, BLOCK_THREADS, is_exact, warp_max
from .vectors import Four, load4, put_many, store4

comptime PLANES = 3
comptime STAGED = 4 * BLOCK_THREADS  # columns of a block


@always_inline
def round_bf16(x: Float32) -> Float32:
    return bf16(x, True)


@always_inline
def put(planes: BF16P, stride: Int, i: Int, x: Float32, exact: Bool):
    """Stores value x as element i of every plane in use; planes lie `stride` elements apart."""
    var high = round_bf16(x)
    planes[unsafe_offset=i] = high.cast[DType.bfloat16]()
    if not exact:
        var rest = x - high
        var middle = round_bf16(rest)
        planes[unsafe_offset=stride + i] = middle.cast[DType.bfloat16]()
        planes[unsafe_offset=2 * stride + i] = (rest - middle).cast[DType.bfloat16]()


@always_inline
def e4m3_of(x: Float32) -> Float32:
    """The nearest e4m3 value, ties to even, saturating; a NaN stays one."""
    var v = Float32(448) if x > 448 else (Float32(-448) if x < -448 else x)
    var bits = bitcast[DType.uint32](v)
    var normal = bitcast[DType.float32]((bits + 0x7FFFF + ((bits >> 20) & 1)) & 0xFFF00000)
    var tiny = (v + 24576.0) - 24576.0
    return normal if abs(v) >= 0.015625 else tiny


@always_inline
def e2m1_of(x: Float32) -> Float32:
    """The nearest e2m1 value, ties to even, saturating."""
    var v = Float32(6) if x > 6 else (Float32(-6) if x < -6 else x)
    var a = abs(v)
    if a < 2:
        return (v + 6291456.0) - 6291456.0
    if a < 4:
        return (v + 12582912.0) - 12582912.0
    return (v + 25165824.0) - 25165824.0


@always_inline
def fp8_in_warp(x: Float32, exact: Bool) -> Float32:
    """QDQ of one value a lane, the warp being one group of 32: e4m3 with a UE8M0 scale."""
    if not exact:
        return x
    var s = power_of_two_above(max(warp_max(abs(x)), 1e-4) / 448)
    return e4m3_of(x * (1 / s)) * s


@always_inline
def mxfp4_in_warp(x: Float32, exact: Bool) -> Float32:
    """QDQ of one value a lane in a group of 32: e2m1 with a UE8M0 scale."""
    if not exact:
        return x
    var s = power_of_two_above(max(warp_max(abs(x)), 7.052966104933725e-38) / 6)
    return e2m1_of(x / s) * s


@always_inline
def quad_top[lanes: Int](v: Four) -> Float32:
    """The largest magnitude among four values in each of `lanes` neighbouring lanes; a NaN does not count."""
    var a = abs(v)
    var top = max(max(a[0], a[1]), max(a[2], a[3]))
    comptime for i in range(3):
        comptime if 1 << i < lanes:
            top = max(top, shuffle_xor(top, UInt32(1 << i)))
    return top


@always_inline
def fp8_quad(v: Four, exact: Bool) -> Four:
    """QDQ as `fp8_in_warp`, a group of 32 being four values in each of eight lanes."""
    if not exact:
        return v
    var s = power_of_two_above(max(quad_top[8](v), 1e-4) / 448)
    var inverse = 1 / s
    var y = Four(0)
    comptime for i in range(4):
        y[i] = e4m3_of(v[i] * inverse) * s
    return y


@always_inline
def mxfp4_quad(v: Four, exact: Bool) -> Four:
    """QDQ as `mxfp4_in_warp`, a group of 32 being four values in each of eight lanes."""
    if not exact:
        return v
    var s = power_of_two_above(max(quad_top[8](v), 7.052966104933725e-38) / 6)
    var y = Four(0)
    comptime for i in range(4):
        y[i] = e2m1_of(v[i] / s) * s
    return y


def stage_kernel(planes: BF16P, x: F32P, ldx: Int32, columns: Int32, stride: Int32, quantise: Int32, mode: I32P):
    """Rows x [T, K], ldx apart, into planes, through FP8 if `quantise`; grid (T, ceildiv(K, STAGED)), K % 32 = 0."""
    var exact = is_exact(mode)
    var k = Int(columns)
    var r = Int(block_idx.x)
    var i = Int(block_idx.y) * STAGED + Int(thread_idx.x) * 4
    var v = load4(x, r * Int(ldx) + min(i, k - 4))
    if quantise != 0:
        v = fp8_quad(v, exact)
    if i < k:
        put_many[4](planes, Int(stride), r * k + i, v, exact)


def stage_both_kernel(plain: BF16P, quantised: BF16P, x: F32P, columns: Int32, stride: Int32, mode: I32P):
    """Rows x [T, K] as they are and through FP8; grid as `stage_kernel`."""
    var exact = is_exact(mode)
    var k = Int(columns)
    var r = Int(block_idx.x)
    var i = Int(block_idx.y) * STAGED + Int(thread_idx.x) * 4
    var v = load4(x, r * k + min(i, k - 4))
    var q = fp8_quad(v, exact)
    if i < k:
        put_many[4](plain, Int(stride), r * k + i, v, exact)
        put_many[4](quantised, Int(stride), r * k + i, q, exact)


def stage(ctx: DeviceContext, planes: BF16P, x: F32P, ldx: Int, t: Int, k: Int, quantise: Bool, mode: I32P) raises:
    """Rows x [t, k], ldx apart, into planes [3, t, k], through FP8 first when `quantise`."""
    if t == 0:
        return
    ctx.enqueue_function[stage_kernel](
        planes, x, Int32(ldx), Int32(k), Int32(t * k), Int32(1 if quantise else 0), mode,
        grid_dim=(t, ceildiv(k, STAGED)), block_dim=BLOCK_THREADS,
    )


def stage_both(ctx: DeviceContext, plain: BF16P, quantised: BF16P, x: F32P, t: Int, k: Int, mode: I32P) raises:
    """Rows x [t, k] into plain planes [3, t, k] and, through FP8, into quantised ones; t > 0."""
    ctx.enqueue_function[stage_both_kernel](
        plain, quantised, x, Int32(k), Int32(t * k), mode, grid_dim=(t, ceildiv(k, STAGED)), block_dim=BLOCK_THREADS
    )


def stage_back_kernel(x: F32P, columns: Int32, mode: I32P):
    """Rows x [T, K] through FP8, in place; grid as `stage_kernel`."""
    var k = Int(columns)
    var r = Int(block_idx.x)
    var i = Int(block_idx.y) * STAGED + Int(thread_idx.x) * 4
    var v = fp8_quad(load4(x, r * k + min(i, k - 4)), is_exact(mode))
    if i < k:
        store4(x, r * k + i, v)


def stage_back(ctx: DeviceContext, x: F32P, t: Int, k: Int, mode: I32P) raises:
    """Rows x [t, k] through FP8, in place; t > 0."""
    ctx.enqueue_function[stage_back_kernel](
        x, Int32(k), mode, grid_dim=(t, ceildiv(k, STAGED)), block_dim=BLOCK_THREADS
    )
