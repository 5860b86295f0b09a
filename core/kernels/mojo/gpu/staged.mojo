"""Activations on their way into the tensor cores: bfloat16 planes [3, T, K].

With the model's own rounding an activation is a bfloat16 or FP8 value already, so plane 0 holds it exactly. Without
it, three planes add up to the float32 value (8 bits each), and a product with three MMAs is as good as float32.
"""

from std.memory import bitcast
from max.gpu import block_idx, lane_id, thread_idx, warp_id
from ..common import F32P, I32P, at, bf16
from ..quant import power_of_two_above
from .base import BF16P, WARPS, is_exact, warp_max

comptime PLANES = 3


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
    return tiny if abs(v) < 0.015625 else normal


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


def stage_kernel(planes: BF16P, x: F32P, ldx: Int32, k: Int32, stride: Int32, quantise: Int32, mode: I32P):
    """Rows x [T, K] (leading dimension ldx) into planes; grid (T, ceildiv(K, 32 WARPS)). `quantise`: FP8 first."""
    var exact = is_exact(mode)
    var r = Int(block_idx.x)
    var i = (Int(block_idx.y) * WARPS + Int(warp_id())) * 32 + Int(lane_id())
    if i >= Int(k):
        return
    var v = at(x, r * Int(ldx) + i)
    if quantise != 0:
        v = fp8_in_warp(v, exact)
    put(planes, Int(stride), r * Int(k) + i, v, exact)
