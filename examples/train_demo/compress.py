"""Compressed key-value rows and the indexer that chooses among them, in two levels."""

from __future__ import annotations

from dataclasses import dataclass, field

import quant
import torch
import torch.nn.functional as F
from config import Config
from fused import fused
from layers import Linear, Mode, Norm, Rotary
from torch import Tensor, nn


@dataclass
class Published:
    """What layers hand to later layers in one pass.

    In a decoding pass `position` is the one new token's position, a tensor so that a CUDA graph can be
    replayed at every position, and `cache` keeps one row per position (or group) up to `capacity`.
    """

    cache: dict[str, Tensor] = field(default_factory=dict)
    position: Tensor | None = None
    capacity: int = 0
    rows: dict[int, Tensor] = field(default_factory=dict)
    index_keys: dict[int, Tensor] = field(default_factory=dict)
    chosen: Tensor | None = None
    candidates: Tensor | None = None
    index_losses: list[Tensor] | None = None

    def positions(self, length: int, device: torch.device) -> Tensor:
        """Return the positions of this pass's tokens [T]."""
        return torch.arange(length, device=device) if self.position is None else self.position.view(1)

    def extend(self, name: str, new: Tensor, ratio: int = 1) -> Tensor:
        """Return all rows under `name`, this pass's included; rows past the newest are stale."""
        if self.position is None:
            return new
        if name not in self.cache:
            shape = (new.shape[0], self.capacity // ratio, *new.shape[2:])
            self.cache[name] = torch.zeros(shape, dtype=new.dtype, device=new.device)
        return self.cache[name].index_copy_(1, self.position.view(1) // ratio, new)


class Compressor(nn.Module):
    """Pool `ratio` neighbouring tokens into one row (channelwise softmax gate), or project one token."""

    def __init__(self, config: Config, ratio: int, mode: Mode) -> None:
        super().__init__()
        self.ratio, self.mode = ratio, mode
        self.wkv = Linear(config.hidden_size, config.head_dim, mode, "bf16")
        self.norm = Norm(config.head_dim, config.rms_norm_eps)
        if ratio > 1:
            self.wgate = Linear(config.hidden_size, config.head_dim, mode, "bf16")

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return latents [B,T/ratio,K] before rotation; T is a multiple of ratio."""
        if self.ratio == 1:
            return self.norm(self.wkv(x_BTD))
        x = x_BTD.float().unflatten(1, (-1, self.ratio))
        pooled = (self.wgate(x).softmax(2) * self.wkv(x)).sum(2)
        return self.norm(pooled.to(x_BTD.dtype))


@fused
def weigh_heads(dots_BTHJ: Tensor, weights_BTH: Tensor) -> Tensor:
    """Sum relu'd dots over heads, weighted: [B,T,J]."""
    return (dots_BTHJ.relu() * weights_BTH.unsqueeze(-1)).float().sum(-2)


class Indexer(nn.Module):
    """Scores every compressed row for every query. It learns only from `index_loss`."""

    def __init__(self, config: Config, mode: Mode, owns_keys: bool) -> None:
        super().__init__()
        heads, size = config.index_n_heads, config.index_head_dim
        self.heads, self.size, self.mode = heads, size, mode
        self.wq_b = Linear(config.q_lora_rank, heads * size, mode)
        self.weights_proj = Linear(config.hidden_size, heads, mode, "bf16")
        if owns_keys:
            self.wk = Linear(config.head_dim, size, mode, "bf16")
            self.k_norm = Norm(size, config.rms_norm_eps)

    def keys(self, latent: Tensor, positions: Tensor, rotary: Rotary) -> Tensor:
        """Return rotated index keys [B,J,index_head_dim]."""
        return rotary(self.k_norm(self.wk(latent)), positions)

    def forward(self, x: Tensor, latent: Tensor, t: Tensor, keys_BJK: Tensor, rotary: Rotary) -> Tensor:
        """Return scores [B,T,J], larger is better."""
        q = rotary(self.wq_b(latent).unflatten(-1, (self.heads, self.size)), t.unsqueeze(-1))
        if self.mode.quant_acts:
            q = quant.mxfp4(q)
        weights = self.weights_proj(x) * (self.size**-0.5 * self.heads**-0.5)
        return weigh_heads(torch.einsum("bthk,bjk->bthj", q, keys_BJK), weights)


def top_mask(ranked_BTJ: Tensor, count: int, first: bool) -> Tensor:
    """Mark the `count` best entries of each row, never one that is -inf.

    Scores of exactly zero are common. With `first` the lower number wins among equals, which is the law; a
    faster choice leaves it open.
    """
    count = min(count, ranked_BTJ.shape[-1])
    if first:
        ordered = ranked_BTJ.sort(stable=True, dim=-1, descending=True)
        values, indices = ordered.values[..., :count], ordered.indices[..., :count]
    else:
        values, indices = ranked_BTJ.topk(count, -1)
    mask = torch.zeros_like(ranked_BTJ, dtype=torch.bool)
    return mask.scatter_(-1, indices, values > float("-inf"))


def candidate_mask(ranked_BTJ: Tensor, newest_T: Tensor, blocks: int, size: int, first: bool) -> Tensor:
    """Keep the best `blocks` blocks of `size` rows by their maximum; the newest row's block always stays."""
    rows = ranked_BTJ.shape[-1]
    padded = F.pad(ranked_BTJ, (0, -rows % size), value=float("-inf"))
    block = padded.unflatten(-1, (-1, size)).amax(-1)
    number = torch.arange(block.shape[-1], device=block.device)
    block = block.masked_fill(number == (newest_T // size).unsqueeze(-1), float("inf"))
    return top_mask(block, blocks, first).repeat_interleave(size, -1)[..., :rows]


@fused
def index_loss(score_BTJ: Tensor, p_BHTJ: Tensor, chosen_BTJ: Tensor) -> Tensor:
    """KL from the attention mass on the chosen rows (summed over heads) to the indexer's softmax."""
    mass = p_BHTJ.detach().float().sum(1)
    target = mass / mass.sum(-1, keepdim=True).clamp_min(1e-9)
    log_q = score_BTJ.float().masked_fill(~chosen_BTJ, -1e9).log_softmax(-1)
    kl = torch.where(target > 1e-9, target * (target.clamp_min(1e-9).log() - log_q), 0.0).sum(-1)
    return kl.mean()
