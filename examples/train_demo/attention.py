"""Attention with one shared key-value head: a sliding window plus selected compressed rows, and sinks.

`MLA` holds the projections that target layers and drafter stages share. `Attention` is the target's layer;
its compressed rows come from a source layer (see `compress.py`).
"""

from __future__ import annotations

import quant
import torch
from compress import Compressor, Indexer, Published, candidate_mask, index_loss, top_mask
from config import Config
from fused import fused
from layers import Linear, Mode, Norm, Rotary
from torch import Tensor, nn


@fused
def masked_softmax(z_BHTS: Tensor, mask: Tensor, sink_H: Tensor) -> Tensor:
    """Softmax over visible keys with one extra logit per head in the denominator only; float32 inside."""
    z = z_BHTS.float().masked_fill(~mask, float("-inf"))
    sink = sink_H.view(-1, 1, 1)
    top = torch.maximum(z.detach().amax(-1, keepdim=True), sink.detach())
    e = (z - top).exp()
    return (e / (e.sum(-1, keepdim=True) + (sink - top).exp())).to(z_BHTS.dtype)


class MLA(nn.Module):
    """Low-rank query, one key that is also the value, grouped low-rank output."""

    def __init__(self, config: Config, mode: Mode, compressed: bool) -> None:
        super().__init__()
        self.mode, self.config = mode, config
        heads, size, eps = config.num_attention_heads, config.head_dim, config.rms_norm_eps
        self.wq_a = Linear(config.hidden_size, config.q_lora_rank, mode)
        self.q_norm = Norm(config.q_lora_rank, eps)
        self.wq_b = Linear(config.q_lora_rank, heads * size, mode)
        self.wkv = Linear(config.hidden_size, size, mode)
        self.kv_norm = Norm(size, eps)
        self.wo_a = Linear(heads * size // config.o_groups, config.o_groups * config.o_lora_rank, mode)
        self.wo_b = Linear(config.o_groups * config.o_lora_rank, config.hidden_size, mode)
        self.attn_sink = nn.Parameter(torch.zeros(heads))
        self.rotary = Rotary(config, compressed)

    def query_latent(self, x: Tensor) -> Tensor:
        """Return q' [...,q_lora]."""
        return self.q_norm(self.wq_a(x))

    def queries(self, latent: Tensor, positions: Tensor) -> Tensor:
        """Return rotated queries [...,H,K]."""
        q = self.wq_b(latent).unflatten(-1, (-1, self.config.head_dim))
        return self.rotary(q, positions.unsqueeze(-1))

    def keys(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return rotated window keys [...,K], as the FP8 cache will hold them."""
        key = self.rotary(self.kv_norm(self.wkv(x)), positions)
        return quant.fp8(key) if self.mode.quant_acts else key

    def output(self, o: Tensor, positions: Tensor) -> Tensor:
        """Rotate [...,H,K] back and project to [...,D]; wo_a's input is not quantised."""
        groups = self.config.o_groups
        o = self.rotary(o, positions.unsqueeze(-1), True).flatten(-2).unflatten(-1, (groups, -1))
        weight = self.wo_a.value().to(o.dtype).unflatten(0, (groups, -1))
        return self.wo_b(torch.einsum("...gk,grk->...gr", o, weight).flatten(-2))


class Attention(MLA):
    """One target layer's attention: window only, or window and compressed rows."""

    def __init__(self, config: Config, layer: int, mode: Mode) -> None:
        self.ratio = config.compress_ratios[layer]
        super().__init__(config, mode, self.ratio > 0)
        self.layer, self.source = layer, config.kv_source(layer)
        self.is_candidate_source = layer == config.candidate_source_layer_id
        if self.source == layer:
            self.compressor = Compressor(config, self.ratio, mode)
        if layer in config.index_source_layer_ids:
            self.indexer = Indexer(config, mode, owns_keys=self.source == layer)

    def forward(self, x_BTD: Tensor, shared: Published) -> Tensor:
        """Attend from a whole sequence, or from one new token to the cached rows before it."""
        config = self.config
        t = shared.positions(x_BTD.shape[1], x_BTD.device)
        latent = self.query_latent(x_BTD)
        q_BTHK = self.queries(latent, t)
        keys_BSK = shared.extend(f"window{self.layer}", self.keys(x_BTD, t))
        age = t[:, None] - torch.arange(keys_BSK.shape[1], device=t.device)
        mask = (age >= 0) & (age < config.sliding_window)
        window = keys_BSK.shape[1]
        if self.source is not None:
            self.publish(x_BTD, shared)
            rows = shared.rows[self.source]
            visible_TJ = torch.arange(rows.shape[1], device=t.device) < (t[:, None] + 1) // self.ratio
            score = self.select(x_BTD, latent, t, visible_TJ, shared)
            keys_BSK = torch.cat([keys_BSK, rows], 1)
            chosen = visible_TJ if self.mode.dense else shared.chosen
            chosen = chosen.expand(x_BTD.shape[0], -1, -1)
            mask = torch.cat([mask.expand(x_BTD.shape[0], -1, -1), chosen], -1)
        mask = mask.unsqueeze(-3)
        dtype = self.mode.score_dtype
        keys = keys_BSK.to(dtype)
        z = torch.einsum("bthk,bsk->bhts", q_BTHK.to(dtype) * config.head_dim**-0.5, keys)
        p_BHTS = masked_softmax(z, mask, self.attn_sink).to(x_BTD.dtype)
        if self.source is not None and score is not None and shared.index_losses is not None:
            shared.index_losses.append(index_loss(score, p_BHTS[..., window:], chosen))
        o = torch.einsum("bhts,bsk->bthk", p_BHTS.to(dtype), keys).to(x_BTD.dtype)
        return self.output(o, t)

    def publish(self, x_BTD: Tensor, shared: Published) -> None:
        """On a source layer, make this pass's compressed rows and index keys, and append them.

        A decoding pass rewrites its group's row every time; the row is invisible until the group is complete.
        """
        if self.source != self.layer:
            return
        ratio, device = self.ratio, x_BTD.device
        if shared.position is None:
            groups = torch.arange(x_BTD.shape[1] // ratio, device=device)
            inputs = x_BTD[:, : len(groups) * ratio]
        else:
            groups = shared.position.view(1) // ratio
            members = groups * ratio + torch.arange(ratio, device=device)
            inputs = shared.extend(f"inputs{self.layer}", x_BTD).index_select(1, members)
        latent = self.compressor(inputs)
        rows = self.rotary(latent, groups * ratio)
        keys = self.indexer.keys(latent.detach(), groups * ratio, self.rotary)
        if self.mode.quant_acts:
            rows, keys = quant.nvfp4(rows), quant.mxfp4(keys)
        shared.rows[self.layer] = shared.extend(f"rows{self.layer}", rows, ratio)
        shared.index_keys[self.layer] = shared.extend(f"keys{self.layer}", keys, ratio)

    def select(self, x_BTD: Tensor, latent: Tensor, t: Tensor, visible_TJ: Tensor, shared: Published) -> Tensor | None:
        """On an index source, choose compressed rows for this layer and its followers; return the scores."""
        if not hasattr(self, "indexer"):
            return None
        config = self.config
        keys = shared.index_keys[self.source]  # type: ignore[index]
        score = self.indexer(x_BTD.detach(), latent.detach(), t, keys, self.rotary)
        ranked = score.detach().float().masked_fill(~visible_TJ, float("-inf"))
        if self.is_candidate_source:
            newest = (t + 1) // self.ratio - 1
            blocks, size = config.candidate_topk_blocks, config.candidate_block_size
            shared.candidates = candidate_mask(ranked, newest, blocks, size, self.mode.exact_scores)
        elif shared.candidates is not None:
            ranked = ranked.masked_fill(~shared.candidates, float("-inf"))
        shared.chosen = top_mask(ranked, config.index_topk, self.mode.exact_scores)
        return score
