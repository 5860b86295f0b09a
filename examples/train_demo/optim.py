"""Muon for matrices, Adam for the rest, all state on the device so that a CUDA graph can hold a step."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
MATRIX_NAMES = ("attn.w", "experts.w", "engram.wkv", "main_proj", "eagle.fc.", "eagle.back.", "eagle.proj.")


def orthogonalise(g_NRC: Tensor) -> Tensor:
    """Push the singular values of each matrix towards one (five Newton-Schulz steps in bfloat16)."""
    a, b, c = NEWTON_SCHULZ
    x = g_NRC.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Optimizer:
    """One step over a model's trainable parameters; `lr` is a multiplier in 0..1 to fill before each step."""

    def __init__(self, model: nn.Module, device: torch.device, muon_lr: float, adam_lr: float) -> None:
        self.muon_lr, self.adam_lr, self.decay = muon_lr, adam_lr, 0.1
        self.momentum, self.betas, self.eps, self.clip = 0.95, (0.9, 0.98), 1e-10, 1.0
        self.lr = torch.zeros((), device=device)
        self.count = torch.zeros((), device=device)
        self.groups: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        self.plain: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            is_matrix = any(part in name for part in MATRIX_NAMES) and parameter.ndim >= 2
            if is_matrix and "norm" not in name:
                self.groups[parameter.shape].append(parameter)
            else:
                self.plain.append(parameter)
        self.velocity = {shape: [torch.zeros_like(p) for p in group] for shape, group in self.groups.items()}
        self.first = [torch.zeros_like(p) for p in self.plain]
        self.second = [torch.zeros_like(p) for p in self.plain]

    def parameters(self) -> list[nn.Parameter]:
        """Return all parameters this optimizer moves."""
        return self.plain + [p for group in self.groups.values() for p in group]

    @torch.no_grad()
    def step(self) -> None:
        """Clip the gradients, then update every parameter."""
        gradients = [p.grad for p in self.parameters()]
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        torch._foreach_mul_(gradients, (self.clip / (norm + 1e-6)).clamp(max=1.0))
        self.count += 1
        self._adam()
        for shape, group in self.groups.items():
            self._muon(shape, group)

    def _adam(self) -> None:
        gradients = [p.grad for p in self.plain]
        slow, fast = self.betas
        torch._foreach_lerp_(self.first, gradients, 1 - slow)
        torch._foreach_mul_(self.second, fast)
        torch._foreach_addcmul_(self.second, gradients, gradients, 1 - fast)
        root = torch._foreach_sqrt(self.second)
        torch._foreach_add_(root, self.eps)
        update = torch._foreach_div(self.first, root)
        correction = (1 - fast**self.count).sqrt() / (1 - slow**self.count)
        torch._foreach_mul_(update, -self.lr * self.adam_lr * correction)
        torch._foreach_add_(self.plain, update)

    def _muon(self, shape: torch.Size, group: list[nn.Parameter]) -> None:
        velocity, gradients = self.velocity[shape], [p.grad for p in group]
        torch._foreach_lerp_(velocity, gradients, 1 - self.momentum)
        nesterov = torch._foreach_lerp(gradients, velocity, self.momentum)
        rows, columns = shape[-2:]
        direction = orthogonalise(torch.stack(nesterov).reshape(-1, rows, columns))
        # This factor gives the update the root mean square that AdamW's would have (about 0.2 of lr).
        direction = direction.view(len(group), *shape) * (0.2 * max(rows, columns) ** 0.5)
        rate = self.lr * self.muon_lr
        torch._foreach_mul_(group, 1 - rate * self.decay)
        torch._foreach_add_(group, list((-rate * direction).unbind()))
