"""The whole model for training: target over a sequence in parallel, with taps for the drafter.

Shape suffixes as in `layers.py`. Submodule names follow the released tensors; `checkpoint.py` maps the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from attention import Attention
from compress import Published
from config import Config
from drafter import Stage
from engram import Engram, lookback_ids
from hyper import HyperMix, collapse, expand
from layers import Mode, Norm
from moe import MoE
from torch import Tensor, nn


class Layer(nn.Module):
    """One target layer: Engram on some, attention, mixture of experts."""

    def __init__(self, config: Config, layer: int, mode: Mode) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.attn_norm, self.ffn_norm = Norm(hidden, eps), Norm(hidden, eps)
        self.attn = Attention(config, layer, mode)
        self.ffn = MoE(
            hidden,
            config.moe_intermediate_size,
            config.n_routed_experts,
            config.num_experts_per_tok,
            config.routed_scaling_factor,
            config.swiglu_limit,
            mode,
        )
        self.hc_attn, self.hc_ffn = HyperMix(config), HyperMix(config)
        if layer in config.engram_layer_ids:
            self.engram = Engram(config, layer, mode)

    def forward(self, h: Tensor, pre: Tensor, shared: Published) -> tuple[Tensor, Tensor]:
        """Run both sublayers on streams [B,T,C,D]; `pre` comes from the sublayer before."""
        attn_pre, post, comb = self.hc_attn(h)
        h = expand(self.attn(self.attn_norm(collapse(h, pre)), shared), h, post, comb)
        ffn_pre, post, comb = self.hc_ffn(h)
        h = expand(self.ffn(self.ffn_norm(collapse(h, attn_pre))), h, post, comb)
        return h, ffn_pre


@dataclass
class Output:
    """What one pass over T tokens gives."""

    hidden_BTD: Tensor
    taps_BTF: Tensor
    index_losses: list[Tensor]


class Model(nn.Module):
    """Target and drafter, sharing embedding and head."""

    compressed: Tensor

    def __init__(self, config: Config, compressed_map: list[int], mode: Mode) -> None:
        super().__init__()
        self.config, self.mode = config, mode
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.normal_(self.embed.weight, std=0.5)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        nn.init.normal_(self.head.weight, std=0.5 * config.hidden_size**-0.5)
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(config, i, mode) for i in range(config.num_hidden_layers))
        self.mtp = nn.ModuleList(Stage(config, k, mode) for k in range(config.num_nextn_predict_layers))
        self.register_buffer("compressed", torch.tensor(compressed_map), persistent=False)
        self.pad = compressed_map[config.engram_pad_token_id]

    def streams(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first residual copies [...,C,D] of embedded tokens and the first pre."""
        return self.copies(self.embed(ids).to(self.mode.dtype))

    def copies(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return residual copies [...,C,D] of x [...,D] and a pre that reads copy 0."""
        copies = self.config.hc_mult
        h = x.unsqueeze(-2).expand(*x.shape[:-1], copies, -1)
        pre = torch.zeros(*x.shape[:-1], copies, device=x.device)
        pre[..., 0] = 1.0
        return h, pre

    def logits(self, x: Tensor) -> Tensor:
        """Return float32 logits of normed states [...,D]."""
        weight = self.head.weight
        if self.mode.quant_weights:
            weight = weight.bfloat16()
        return nn.functional.linear(x.float(), weight.float())

    def forward(self, ids_BT: Tensor, shared: Published | None = None) -> Output:
        """Run the target on a whole sequence from position 0.

        With `shared` in decoding, ids end with the one new token and begin with its Engram lookback.
        """
        config = self.config
        depth = config.engram_max_ngram_size
        past = lookback_ids(self.compressed[ids_BT], self.pad, depth)
        if shared is None:
            shared = Published(index_losses=[] if self.training else None)
        elif shared.position is not None:
            known = shared.position >= torch.arange(depth, device=ids_BT.device)
            past = [torch.where(known[s], ids[:, -1:], self.pad) for s, ids in enumerate(past)]
            ids_BT = ids_BT[:, -1:]
        h, pre = self.streams(ids_BT)
        taps = []
        for number, layer in enumerate(self.layers):
            if number in config.engram_layer_ids:
                h = layer.engram(h, past)
            if number in config.dspark_target_layer_ids:
                taps.append(h.float().mean(-2).to(h.dtype))
            h, pre = layer(h, pre, shared)
        hidden = self.norm(collapse(h, pre))
        return Output(hidden, torch.cat(taps, -1), shared.index_losses or [])
