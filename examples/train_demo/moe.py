"""Mixture of experts with a shared expert: sqrt-softplus scores, a bias that only chooses (noaux_tc).

All experts run on all tokens and the routing weight is zero where an expert was not chosen. That wastes
arithmetic, which a GPU has plenty of at this size, and needs no sorting.
"""

from __future__ import annotations

import quant
import torch
import torch.nn.functional as F
from fused import fused
from layers import Linear, Mode
from torch import Tensor, nn


@fused
def swiglu(gate: Tensor, up: Tensor, weight: Tensor, limit: float) -> Tensor:
    """Clamp (gate from above, up both ways), activate, weigh; all in float32."""
    gate, up = gate.float().clamp(max=limit), up.float().clamp(-limit, limit)
    return weight * F.silu(gate) * up


class Gate(nn.Module):
    """Scores and the choosing biases (text and image)."""

    bias: Tensor
    bias_vl: Tensor
    load: Tensor

    def __init__(self, hidden: int, experts: int, top: int, scaling: float, mode: Mode) -> None:
        super().__init__()
        self.top, self.scaling, self.mode = top, scaling, mode
        self.weight = nn.Parameter(torch.randn(experts, hidden) * hidden**-0.5)
        self.register_buffer("bias", torch.zeros(experts))
        self.register_buffer("bias_vl", torch.zeros(experts))
        self.register_buffer("load", torch.zeros(experts), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return routing weights [..., E], zero where an expert is not chosen."""
        weight = self.weight.bfloat16() if self.mode.quant_weights else self.weight
        score = F.softplus(F.linear(x.float(), weight.float())).sqrt()
        chosen = (score + self.bias).detach().topk(self.top, -1).indices
        mask = torch.zeros_like(score).scatter_(-1, chosen, 1.0)
        if self.training:
            self.load.copy_(mask.detach().flatten(0, -2).mean(0))
        kept = score * mask
        return kept / (kept.sum(-1, keepdim=True) + 1e-20) * self.scaling

    def balance(self, rate: float) -> None:
        """Move the bias of over- and underloaded experts by the sign of their load error."""
        self.bias.add_(torch.sign(self.load.mean() - self.load), alpha=rate)
        self.bias_vl.copy_(self.bias)


class Experts(nn.Module):
    """All routed experts as three stacked weights: w1, w3 [E,I,D] and w2 [E,D,I], exported as FP4."""

    def __init__(self, hidden: int, width: int, experts: int, mode: Mode) -> None:
        super().__init__()
        self.mode = mode
        self.w1 = nn.Parameter(torch.randn(experts, width, hidden) * hidden**-0.5)
        self.w3 = nn.Parameter(torch.randn(experts, width, hidden) * hidden**-0.5)
        self.w2 = nn.Parameter(torch.randn(experts, hidden, width) * width**-0.5)

    def forward(self, x: Tensor, weight_E: Tensor, limit: float) -> Tensor:
        """Return the weighted sum of the chosen experts' outputs [...,D]."""
        w1, w3, w2 = self.w1, self.w3, self.w2
        if self.mode.quant_weights:
            w1, w3, w2 = quant.mxfp4(w1), quant.mxfp4(w3), quant.mxfp4(w2)
        experts, width, hidden = w1.shape
        if self.mode.quant_acts:
            x = quant.fp8(x)
        gate = F.linear(x, w1.reshape(-1, hidden).to(x.dtype)).unflatten(-1, (experts, width))
        up = F.linear(x, w3.reshape(-1, hidden).to(x.dtype)).unflatten(-1, (experts, width))
        inner = swiglu(gate, up, weight_E.unsqueeze(-1), limit).to(x.dtype)
        if self.mode.quant_acts:
            inner = quant.fp8(inner)
        return F.linear(inner.flatten(-2), w2.transpose(0, 1).reshape(hidden, -1).to(x.dtype))


class SharedExpert(nn.Module):
    """The expert every token uses, ungated, FP8."""

    def __init__(self, hidden: int, width: int, mode: Mode) -> None:
        super().__init__()
        self.w1, self.w3 = Linear(hidden, width, mode), Linear(hidden, width, mode)
        self.w2 = Linear(width, hidden, mode)

    def forward(self, x: Tensor, limit: float) -> Tensor:
        one = torch.ones((), device=x.device)
        return self.w2(swiglu(self.w1(x), self.w3(x), one, limit).to(x.dtype))


class MoE(nn.Module):
    """Gate, routed experts and shared expert of one layer."""

    def __init__(
        self, hidden: int, width: int, experts: int, top: int, scaling: float, limit: float, mode: Mode
    ) -> None:
        super().__init__()
        self.limit = limit
        self.gate = Gate(hidden, experts, top, scaling, mode)
        self.experts = Experts(hidden, width, experts, mode)
        self.shared_experts = SharedExpert(hidden, width, mode)

    def forward(self, x: Tensor) -> Tensor:
        routed = self.experts(x, self.gate(x), self.limit)
        return (routed.float() + self.shared_experts(x, self.limit).float()).to(x.dtype)
