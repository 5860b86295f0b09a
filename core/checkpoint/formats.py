"""The number formats of a DeepSeek-V4.1 checkpoint, decoded and encoded with NumPy, bit for bit.

Elements: bfloat16 as uint16 bits, E4M3 (finite, one NaN), E2M1 in nibbles (low nibble = even column)
and the scale exponents UE8M0, 2^(byte-127). Groups: FP8 weights carry one UE8M0 scale per 32×32 block,
rows of FP8 or MXFP4 one per 32 columns, NVFP4 one E4M3 scale per 16 columns. UE8M0 scales round up,
elements and E4M3 scales to nearest with ties to even (the released reference, `inference/kernel.py`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Bits16 = NDArray[np.uint16]
Floats = NDArray[np.float32]

GROUP = 32
NVFP4_GROUP = 16
_E4M3_MAX = np.float32(448)
_E2M1_MAX = np.float32(6)
_E4M3_AMAX_FLOOR = np.float32(1e-4)
_MXFP4_AMAX_FLOOR = np.float32(6 * 2.0**-126)
_NVFP4_AMAX_FLOOR = np.float32(6 * 2.0**-9)


def _e4m3_table() -> Floats:
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    value[(code & 127) == 127] = np.nan
    return np.where(code >= 128, -value, value).astype(np.float32)


_E4M3 = _e4m3_table()
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_UE8M0 = np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.float32(np.nan))


def bf16_to_f32(bits: Bits16) -> Floats:
    """Widen bfloat16 bits; exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(values: Floats) -> Bits16:
    """Round to bfloat16 bits, nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)


def e4m3_to_f32(codes: Bytes) -> Floats:
    """Decode E4M3 bytes; exact."""
    return np.asarray(_E4M3[codes], np.float32)


def f32_to_e4m3(values: Floats) -> Bytes:
    """Round to E4M3, nearest, ties to even, saturating at ±448; NaN becomes 0x7F."""
    magnitude = np.minimum(np.abs(np.asarray(values, np.float32)), _E4M3_MAX)
    with np.errstate(invalid="ignore"):
        exponent = np.frexp(np.maximum(magnitude, np.float32(2.0**-6)))[1] - 1  # subnormals share -6
        eighths = np.rint(np.ldexp(magnitude, 3 - exponent)).astype(np.int32)
    # A normal number has 8..15 eighths; 16 carries into the exponent by plain addition, and so does 8
    # from below.
    code = (exponent + 6) * 8 + eighths
    code = np.where(np.isnan(values), 0x7F, code)
    return np.asarray(code | np.where(np.signbit(values), 0x80, 0), np.uint8)


def ue8m0_to_f32(codes: Bytes) -> Floats:
    """Decode scale bytes, 2^(byte-127); exact, byte 0 being a subnormal float32 and 255 NaN."""
    return np.asarray(_UE8M0[codes], np.float32)


def f32_to_ue8m0(values: Floats) -> Bytes:
    """The smallest power of two not below each positive normal value, as its exponent byte."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return np.asarray(((bits >> 23) & 0xFF) + ((bits & 0x7FFFFF) != 0)).astype(np.uint8)


def f32_to_e2m1(values: Floats) -> Bytes:
    """Round to 4-bit codes (sign in bit 3), nearest, ties to even mantissa, saturating at ±6."""
    magnitude = np.minimum(np.abs(np.asarray(values, np.float32)), _E2M1_MAX)
    exponent = np.maximum(np.frexp(magnitude)[1] - 1, 0)
    code = exponent * 2 + np.rint(np.ldexp(magnitude, 1 - exponent)).astype(np.int32)
    return np.asarray(code | np.where(np.signbit(values), 8, 0), np.uint8)


def unpack_e2m1(packed: Bytes) -> Floats:
    """Decode packed pairs [..., K/2] to values [..., K]."""
    codes = np.stack([packed & 15, packed >> 4], axis=-1)
    return np.asarray(_E2M1[codes], np.float32).reshape(*packed.shape[:-1], -1)


def pack_e2m1(codes: Bytes) -> Bytes:
    """Pack 4-bit codes [..., K] into bytes [..., K/2], low nibble = even column."""
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)


def dequantize_fp8_blocks(codes: Bytes, scales: Bytes) -> Floats:
    """FP8 weight [N, K] with UE8M0 scales [⌈N/32⌉, ⌈K/32⌉] to float32 [N, K]."""
    rows, columns = codes.shape
    spread = ue8m0_to_f32(scales).repeat(GROUP, axis=0)[:rows].repeat(GROUP, axis=1)[:, :columns]
    return e4m3_to_f32(codes) * spread


def quantize_fp8_blocks(weight: Floats) -> tuple[Bytes, Bytes]:
    """Float32 weight [N, K], both multiples of 32, to FP8 codes [N, K] and UE8M0 scales [N/32, K/32]."""
    rows, columns = weight.shape
    blocks = weight.reshape(rows // GROUP, GROUP, columns // GROUP, GROUP)
    amax = np.maximum(np.abs(blocks).max(axis=(1, 3)), _E4M3_AMAX_FLOOR)
    scales = f32_to_ue8m0(amax / _E4M3_MAX)
    codes = f32_to_e4m3(blocks / ue8m0_to_f32(scales)[:, None, :, None])
    return codes.reshape(rows, columns), scales


def dequantize_fp8_rows(codes: Bytes, scales: Bytes) -> Floats:
    """FP8 rows [..., K] with UE8M0 scales [..., K/32] to float32; Engram tables, activations."""
    return _scale_groups(e4m3_to_f32(codes), ue8m0_to_f32(scales), GROUP)


def quantize_fp8_rows(values: Floats) -> tuple[Bytes, Bytes]:
    """Float32 [..., K] to FP8 codes [..., K] and UE8M0 scales [..., K/32]."""
    groups = _groups(values, GROUP)
    scales = f32_to_ue8m0(np.maximum(np.abs(groups).max(axis=-1), _E4M3_AMAX_FLOOR) / _E4M3_MAX)
    codes = f32_to_e4m3(groups / ue8m0_to_f32(scales)[..., None])
    return codes.reshape(values.shape), scales


def dequantize_mxfp4(packed: Bytes, scales: Bytes) -> Floats:
    """MXFP4 [..., K/2] with UE8M0 scales [..., K/32] to float32 [..., K]; routed experts, index keys."""
    return _scale_groups(unpack_e2m1(packed), ue8m0_to_f32(scales), GROUP)


def quantize_mxfp4(values: Floats) -> tuple[Bytes, Bytes]:
    """Float32 [..., K] to packed codes [..., K/2] and UE8M0 scales [..., K/32]."""
    groups = _groups(values, GROUP)
    scales = f32_to_ue8m0(np.maximum(np.abs(groups).max(axis=-1), _MXFP4_AMAX_FLOOR) / _E2M1_MAX)
    codes = f32_to_e2m1(groups / ue8m0_to_f32(scales)[..., None])
    return pack_e2m1(codes.reshape(values.shape)), scales


def dequantize_nvfp4(packed: Bytes, scales: Bytes) -> Floats:
    """NVFP4 [..., K/2] with E4M3 scales [..., K/16] to float32 [..., K]; compressed KV."""
    return _scale_groups(unpack_e2m1(packed), e4m3_to_f32(scales), NVFP4_GROUP)


def quantize_nvfp4(values: Floats) -> tuple[Bytes, Bytes]:
    """Float32 [..., K] to packed codes [..., K/2] and E4M3 scales [..., K/16]."""
    groups = _groups(values, NVFP4_GROUP)
    scales = f32_to_e4m3(np.maximum(np.abs(groups).max(axis=-1), _NVFP4_AMAX_FLOOR) / _E2M1_MAX)
    codes = f32_to_e2m1(groups / e4m3_to_f32(scales)[..., None])
    return pack_e2m1(codes.reshape(values.shape)), scales


def _groups(values: Floats, size: int) -> Floats:
    return values.reshape(*values.shape[:-1], values.shape[-1] // size, size)


def _scale_groups(values: Floats, scales: Floats, size: int) -> Floats:
    return (_groups(values, size) * scales[..., None]).reshape(values.shape)
