"""Hyper-connections: four residual copies, mixed by small data-dependent matrices.

Every sublayer computes pre, post and comb from its own input streams, but reads the streams through the pre
of the sublayer before it.
"""

from __future__ import annotations

import torch
from config import Config
from fused import fused
from torch import Tensor, nn


@fused
def mixes(m: Tensor, base: Tensor, scale: Tensor, copies: int, rounds: int, eps: float) -> tuple[Tensor, ...]:
    """Turn raw mixes [..., C*(C+2)] into pre [...,C], post [...,C] and comb [...,C(source),C(target)]."""
    sizes = (copies, copies, copies**2)
    factor = torch.cat([scale[k : k + 1].expand(size) for k, size in enumerate(sizes)])
    m = m * factor + base
    pre = torch.sigmoid(m[..., :copies]) + eps
    post = 2 * torch.sigmoid(m[..., copies : 2 * copies])
    comb = m[..., 2 * copies :].unflatten(-1, (copies, copies)).softmax(-1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(rounds - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return pre, post, comb


@fused
def inverse_rms(u: Tensor, eps: float) -> Tensor:
    """Return 1/rms over the last axis, float32."""
    return torch.rsqrt(u.float().square().mean(-1, keepdim=True) + eps)


@fused
def collapse(h_BTCD: Tensor, pre_BTC: Tensor) -> Tensor:
    """Read one stream out of the copies: [...,D]."""
    return (h_BTCD.float() * pre_BTC.unsqueeze(-1)).sum(-2).to(h_BTCD.dtype)


@fused
def expand(y_BTD: Tensor, h_BTCD: Tensor, post_BTC: Tensor, comb_BTCC: Tensor) -> Tensor:
    """Write a sublayer's output back to the copies and mix the copies."""
    h = h_BTCD.float()
    mixed = (comb_BTCC.unsqueeze(-1) * h.unsqueeze(-2)).sum(-3)
    return (mixed + post_BTC.unsqueeze(-1) * y_BTD.float().unsqueeze(-2)).to(h_BTCD.dtype)


class HyperMix(nn.Module):
    """The three tensors of one sublayer's mixing."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.copies, self.rounds, self.eps = config.hc_mult, config.hc_sinkhorn_iters, config.hc_eps
        self.norm_eps = config.rms_norm_eps
        n, width = self.copies, self.copies * config.hidden_size
        self.fn = nn.Parameter(torch.randn(n * (n + 2), width) * width**-0.5)
        self.scale = nn.Parameter(torch.full((3,), 0.1))
        # Copies start apart, or they would receive equal gradients and stay equal.
        pre, post = -1.1 + 0.5 * torch.randn(n), 0.3 * torch.randn(n)
        self.base = nn.Parameter(torch.cat([pre, post, (4.0 * torch.eye(n)).flatten()]))

    def forward(self, h_BTCD: Tensor) -> tuple[Tensor, ...]:
        """Return pre, post, comb of these streams."""
        u = h_BTCD.flatten(-2)
        m = nn.functional.linear(u.float(), self.fn) * inverse_rms(u, self.norm_eps)
        return mixes(m, self.base, self.scale, self.copies, self.rounds, self.eps)
