"""Engram: hashed n-gram tables, looked up by the last tokens and added to every residual copy by a gate."""

from __future__ import annotations

from collections.abc import Sequence

import quant
import torch
import torch.nn.functional as F
from config import Config
from engram_hash import hash_multipliers, table_primes
from fused import fused
from layers import Linear, Mode
from torch import Tensor, nn


@fused
def gate_and_add(h_BTCD: Tensor, key_BTCD: Tensor, value_BTD: Tensor, weight_CD: Tensor, eps: float) -> Tensor:
    """Add the value to each copy, gated by how well the copy matches its key."""
    h, key = h_BTCD.float(), key_BTCD.float()
    scale = torch.rsqrt(h.square().mean(-1) + eps) * torch.rsqrt(key.square().mean(-1) + eps)
    dot = (h * weight_CD * key).sum(-1) * scale * h.shape[-1] ** -0.5
    gate = torch.sigmoid(torch.sign(dot) * dot.abs().clamp_min(1e-6).sqrt())
    return (h + gate.unsqueeze(-1) * value_BTD.float().unsqueeze(-2)).to(h_BTCD.dtype)


class Table(nn.Module):
    """The embedding rows of one Engram layer, FP8 per row and 32 columns."""

    def __init__(self, rows: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, size) * 0.5)


class Engram(nn.Module):
    """One Engram layer."""

    multipliers: Tensor
    primes: Tensor
    offsets: Tensor

    def __init__(self, config: Config, layer: int, mode: Mode) -> None:
        super().__init__()
        self.mode, self.eps, self.copies = mode, config.rms_norm_eps, config.hc_mult
        number = config.engram_layer_ids.index(layer)
        grams, heads, size = config.engram_max_ngram_size, config.engram_n_heads, config.engram_head_dim
        layers = len(config.engram_layer_ids)
        flat = torch.tensor(table_primes(layers, grams, heads, config.engram_vocab_size)[number]).flatten()
        multipliers = hash_multipliers(layer, config.engram_compressed_vocab_size, grams)
        self.register_buffer("primes", flat, persistent=False)
        self.register_buffer("offsets", flat.cumsum(0) - flat, persistent=False)
        self.register_buffer("multipliers", torch.from_numpy(multipliers), persistent=False)
        self.heads = heads
        hidden = config.hidden_size
        self.embed = Table(config.engram_num_embeddings[number], size)
        self.wkv = Linear(len(flat) * size, (self.copies + 1) * hidden, mode)
        self.q_weight = nn.Parameter(torch.ones(self.copies, hidden))
        self.k_weight = nn.Parameter(torch.ones(self.copies, hidden))

    def rows(self, lookback: Sequence[Tensor]) -> Tensor:
        """Return row numbers [...,(n-1)*heads] from compressed ids; lookback[s] is the id s tokens ago."""
        running = lookback[0] * self.multipliers[0]
        hashes = []
        for number in range(1, len(lookback)):
            running = running ^ (lookback[number] * self.multipliers[number])
            hashes += [running] * self.heads
        return torch.stack(hashes, -1) % self.primes + self.offsets

    def forward(self, h_BTCD: Tensor, lookback: Sequence[Tensor]) -> Tensor:
        """Add the looked-up values to the streams."""
        table = self.embed.weight
        if self.mode.quant_weights:
            table = quant.fp8_rows(table)
        found = F.embedding(self.rows(lookback), table).flatten(-2).to(h_BTCD.dtype)
        both = self.wkv(found).unflatten(-1, (self.copies + 1, -1))
        weight = self.q_weight.float() * self.k_weight.float()
        return gate_and_add(h_BTCD, both[..., : self.copies, :], both[..., self.copies, :], weight, self.eps)


def lookback_ids(compressed_BT: Tensor, pad: int, depth: int) -> list[Tensor]:
    """Return the compressed ids 0..depth-1 tokens ago, `pad` before the start."""
    length = compressed_BT.shape[1]
    padded = F.pad(compressed_BT, (depth - 1, 0), value=pad)
    return [padded[:, depth - 1 - s : depth - 1 - s + length] for s in range(depth)]
