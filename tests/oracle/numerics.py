"""Rounding and quantisation as the model defines them, in NumPy.

`Numerics(exact=False)` is plain float32; `exact=True` adds the reference's rounding points: bfloat16 activations,
FP8 inputs of every quantised matmul, FP8 window rows, FP4 compressed rows, FP4 index queries and keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def round_bf16(x: F32) -> F32:
    """Round float32 to the nearest bfloat16 (ties to even), kept as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


def _power_of_two_above(x: F32) -> F32:
    """The smallest power of two >= x (x > 0, normal)."""
    bits = x.astype(np.float32).view(np.uint32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0)
    return (exponent << 23).astype(np.uint32).view(np.float32)


def _round_to_grid(x: F32, mantissa_bits: int, min_exponent: int, largest: float) -> F32:
    """Round to a small float format: nearest, ties to even, saturating."""
    magnitude = np.minimum(np.abs(x), largest)
    _, exponent = np.frexp(magnitude)
    exponent = np.maximum(exponent - 1, min_exponent)
    step = np.ldexp(np.float32(1), exponent - mantissa_bits)
    return np.copysign(np.minimum(np.round(magnitude / step) * step, largest), x).astype(np.float32)


def round_e4m3(x: F32) -> F32:
    return _round_to_grid(x, 3, -6, 448.0)


def round_e2m1(x: F32) -> F32:
    return _round_to_grid(x, 1, 0, 6.0)


def _grouped(x: F32, group: int) -> F32:
    return x.reshape(*x.shape[:-1], x.shape[-1] // group, group)


def qdq_fp8(x: F32, group: int = 32) -> F32:
    """e4m3 with a UE8M0 scale per group, amax / 448 rounded up to a power of two."""
    g = _grouped(x, group)
    scale = _power_of_two_above(np.maximum(np.abs(g).max(-1, keepdims=True), 1e-4) / np.float32(448))
    return (round_e4m3(g / scale) * scale).reshape(x.shape)


def qdq_mxfp4(x: F32, group: int = 32) -> F32:
    """e2m1 with a UE8M0 scale per group, amax / 6 rounded up to a power of two."""
    g = _grouped(x, group)
    amax = np.maximum(np.abs(g).max(-1, keepdims=True), np.float32(6 * 2.0**-126))
    scale = _power_of_two_above(amax / np.float32(6))
    return (round_e2m1(g / scale) * scale).reshape(x.shape)


def qdq_nvfp4(x: F32, group: int = 16) -> F32:
    """e2m1 with an E4M3 scale per group, max(amax, 6 * 2^-9) / 6."""
    g = _grouped(x, group)
    amax = np.maximum(np.abs(g).max(-1, keepdims=True), np.float32(6 * 2.0**-9))
    scale = round_e4m3(amax / np.float32(6))
    return (round_e2m1(g / scale) * scale).reshape(x.shape)


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """Which of the reference's rounding points are active."""

    exact: bool

    def bf16(self, x: F32) -> F32:
        return round_bf16(x) if self.exact else x

    def fp8(self, x: F32) -> F32:
        return qdq_fp8(x) if self.exact else x

    def mxfp4(self, x: F32) -> F32:
        return qdq_mxfp4(x) if self.exact else x

    def nvfp4(self, x: F32) -> F32:
        return qdq_nvfp4(x) if self.exact else x
