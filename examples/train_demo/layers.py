"""Small modules shared by target and drafter: precision mode, quantised linear, RMS norm, rotary tables.

Shape suffixes: B batch, T tokens, D hidden, C residual copies, H heads, K head_dim, S keys, J compressed
rows, E experts, I expert width, A anchors, G draft positions, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import quant
import torch
import torch.nn.functional as F
from config import Config
from fused import fused
from torch import Tensor, nn


@dataclass
class Mode:
    """How to compute: the residual dtype and which fake quantisers act. One object shared by all modules.

    Without `exact_scores`, attention scores have the residual dtype and top-k leaves ties open: faster to train.
    """

    dtype: torch.dtype = torch.float32
    quant_acts: bool = False
    quant_weights: bool = False
    exact_scores: bool = True
    dense: bool = False

    @property
    def score_dtype(self) -> torch.dtype:
        """Dtype of attention scores; bfloat16 halves the training traffic, float32 is the reference."""
        return torch.float32 if self.exact_scores else self.dtype


class Linear(nn.Module):
    """A bias-free linear layer with the storage format it will be exported in: fp8, fp4 or bf16."""

    def __init__(self, inputs: int, outputs: int, mode: Mode, kind: str = "fp8", gain: float = 1.0) -> None:
        super().__init__()
        self.mode, self.kind = mode, kind
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * (gain / math.sqrt(inputs)))

    def value(self) -> Tensor:
        """Return the weight as the exported file will hold it."""
        if not self.mode.quant_weights:
            return self.weight
        return quant.fp8_weight(self.weight) if self.kind == "fp8" else self.weight.bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "fp8" and self.mode.quant_acts:
            x = quant.fp8(x)
        return F.linear(x, self.value().to(x.dtype))


@fused
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last axis in float32, scale, return x's dtype."""
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


class Norm(nn.Module):
    """RMS norm with a learned scale."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def rotary_frequencies(config: Config, compressed: bool) -> Tensor:
    """Return the angles per position step [rope/2]; YaRN only in layers that read compressed rows."""
    size = config.qk_rope_head_dim
    theta = config.compress_rope_theta if compressed else config.rope_theta
    frequency = theta ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    if not compressed:
        return frequency
    scaling = config.rope_scaling
    original = scaling["original_max_position_embeddings"]

    def corner(rotations: float) -> float:
        return size * math.log(original / (2 * math.pi * rotations)) / (2 * math.log(theta))

    low = max(math.floor(corner(scaling["beta_fast"])), 0)
    high = min(math.ceil(corner(scaling["beta_slow"])), size - 1)
    ramp = ((torch.arange(size // 2) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return frequency / scaling["factor"] * ramp + frequency * (1 - ramp)


class Rotary(nn.Module):
    """Tables of cosines and sines, and rotation of the last dimensions in adjacent pairs."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: Config, compressed: bool) -> None:
        super().__init__()
        positions = torch.arange(config.max_position_embeddings + 16, dtype=torch.float32)
        angles = torch.outer(positions, rotary_frequencies(config, compressed))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor, positions: Tensor, inverse: bool = False) -> Tensor:
        """Rotate x [..., K] at positions broadcastable to x's leading axes."""
        cos, sin = self.cos[positions], self.sin[positions]
        return rotate(x, cos, -sin if inverse else sin)


@fused
def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the last 2*cos.shape[-1] entries of x as complex numbers, in float32."""
    size = 2 * cos.shape[-1]
    plain, pairs = x[..., :-size], x[..., -size:].float().unflatten(-1, (-1, 2))
    real, imaginary = pairs[..., 0], pairs[..., 1]
    turned = torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], -1)
    return torch.cat([plain, turned.flatten(-2).to(x.dtype)], -1)
