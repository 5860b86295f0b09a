"""Fake quantisation with straight-through gradients: FP8 and FP4 values that a real kernel would see.

Every function returns its input's shape and dtype. Scales are powers of two rounded up (UE8M0), except
nvfp4's, which are E4M3 numbers.
"""

from __future__ import annotations

import torch
from fused import fused
from torch import Tensor

FP8_MAX, FP4_MAX = 448.0, 6.0
ACTIVATION_FLOOR, NVFP4_FLOOR = 1e-4, 6 * 2.0**-9
MXFP4_FLOOR, WEIGHT_FLOOR = 6 * 2.0**-126, 1e-20


def power_of_two_up(x: Tensor) -> Tensor:
    """Round positive float32 up to a power of two, by exponent and mantissa bits."""
    bits = x.view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent << 23).view(torch.float32)


def round_fp4(x: Tensor) -> Tensor:
    """Round |x| <= 6 to e2m1, ties to the even mantissa."""
    size = x.abs()
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return torch.round(x / step) * step


def round_fp8(x: Tensor) -> Tensor:
    """Round to e4m3."""
    return x.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).float()


def straight_through(x: Tensor, value: Tensor) -> Tensor:
    """Return `value` exactly, with the gradient of `x`."""
    return value.detach().to(x.dtype) + (x - x.detach())


def _amax(x: Tensor, floor: float) -> Tensor:
    return x.abs().amax(-1, keepdim=True).clamp_min(floor)


def _fp8_groups(x: Tensor) -> Tensor:
    """Quantise rows of 32."""
    y = x.detach().float()
    scale = power_of_two_up(_amax(y, ACTIVATION_FLOOR) / FP8_MAX)
    return straight_through(x, round_fp8(y / scale) * scale)


def _mxfp4_groups(x: Tensor) -> Tensor:
    """Quantise rows of 32."""
    y = x.detach().float()
    scale = power_of_two_up(_amax(y, MXFP4_FLOOR) / FP4_MAX)
    return straight_through(x, round_fp4(y / scale) * scale)


def _nvfp4_groups(x: Tensor) -> Tensor:
    """Quantise rows of 16."""
    y = x.detach().float()
    scale = round_fp8(_amax(y, NVFP4_FLOOR) / FP4_MAX)
    return straight_through(x, round_fp4((y / scale).clamp(-6, 6)) * scale)


# Groups are the only axis that matters, so one compiled region with a free row count serves every tensor.
_fast_fp8, _fast_mxfp4 = fused(_fp8_groups, True), fused(_mxfp4_groups, True)
_fast_nvfp4 = fused(_nvfp4_groups, True)


def fp8(x: Tensor) -> Tensor:
    """Quantise activations or window KV: e4m3, 32-groups, UE8M0."""
    return _fast_fp8(x.reshape(-1, 32)).view(x.shape)


def mxfp4(x: Tensor) -> Tensor:
    """Quantise index queries, index keys and expert weights: e2m1, 32-groups, UE8M0."""
    return _fast_mxfp4(x.reshape(-1, 32)).view(x.shape)


def nvfp4(x: Tensor) -> Tensor:
    """Quantise compressed KV: e2m1, 16-groups, E4M3 scale, no global scale."""
    return _fast_nvfp4(x.reshape(-1, 16)).view(x.shape)


def fp8_block_scales(weight: Tensor) -> Tensor:
    """Return the scales of a dense weight [N,K], one per 32x32 block: [N/32,K/32]."""
    rows, columns = weight.shape
    blocks = weight.detach().float().abs().reshape(rows // 32, 32, columns // 32, 32)
    return power_of_two_up(blocks.amax((1, 3)).clamp_min(WEIGHT_FLOOR) / FP8_MAX)


def fp8_weight(weight: Tensor) -> Tensor:
    """Quantise a dense weight [N,K]."""
    scale = fp8_block_scales(weight).repeat_interleave(32, 0).repeat_interleave(32, 1)
    return straight_through(weight, round_fp8(weight.detach().float() / scale) * scale)


def fp8_row_scales(table: Tensor) -> Tensor:
    """Return an Engram table's scales, per row and 32 columns: [R,dim/32]."""
    groups = table.detach().float().unflatten(-1, (-1, 32))
    return power_of_two_up(_amax(groups, WEIGHT_FLOOR) / FP8_MAX).squeeze(-1)


def fp8_rows(table: Tensor) -> Tensor:
    """Quantise an Engram table [R,dim]."""
    scale = fp8_row_scales(table).repeat_interleave(32, -1)
    return straight_through(table, round_fp8(table.detach().float() / scale) * scale)
