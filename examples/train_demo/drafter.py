"""The DSpark drafter: three stages that guess a block at once, a Markov head and a confidence head.

Training runs many anchors of one sequence in parallel. An anchor p is the last position whose taps exist; its
block starts with the known token at p+1 and noise tokens after it, and guesses the tokens at p+2 ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from attention import MLA, masked_softmax
from config import Config
from hyper import HyperMix, collapse, expand
from layers import Linear, Mode, Norm
from moe import MoE
from torch import Tensor, nn

if TYPE_CHECKING:
    from model import Model


class MarkovHead(nn.Module):
    """A low-rank bigram: the previous token's row, and a projection to the vocabulary."""

    def __init__(self, vocab: int, rank: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, rank)
        self.head = nn.Linear(rank, vocab, bias=False)
        nn.init.normal_(self.embed.weight, std=0.5)
        nn.init.normal_(self.head.weight, std=0.02)


class ConfidenceHead(nn.Module):
    """One logit from the un-normed collapsed state and the Markov row of the previous token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1, bias=False)
        nn.init.zeros_(self.proj.weight)


class Stage(nn.Module):
    """One drafter layer; the first also projects the taps, the last holds the heads."""

    def __init__(self, config: Config, number: int, mode: Mode) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.config, self.mode = config, mode
        self.attn_norm, self.ffn_norm = Norm(hidden, eps), Norm(hidden, eps)
        self.attn = MLA(config, mode, compressed=False)
        self.ffn = MoE(
            hidden,
            config.moe_intermediate_size,
            config.dspark_n_routed_experts,
            config.dspark_num_experts_per_tok,
            config.routed_scaling_factor,
            config.swiglu_limit,
            mode,
        )
        self.hc_attn, self.hc_ffn = HyperMix(config), HyperMix(config)
        if number == 0:
            self.main_proj = Linear(len(config.dspark_target_layer_ids) * hidden, hidden, mode)
            self.main_norm = Norm(hidden, eps)
        if number == config.num_nextn_predict_layers - 1:
            self.norm = Norm(hidden, eps)
            self.markov_head = MarkovHead(config.vocab_size, config.dspark_markov_rank)
            self.confidence_head = ConfidenceHead(hidden + config.dspark_markov_rank)

    def attend(self, x_BAGD: Tensor, context_BSD: Tensor, anchors_BA: Tensor) -> Tensor:
        """Attend from each block to its window of context rows and to the whole block itself."""
        attn, (batch, blocks, block, _) = self.attn, x_BAGD.shape
        rows = context_BSD.shape[1]
        s = torch.arange(rows, device=x_BAGD.device)
        positions = anchors_BA.unsqueeze(-1) + 1 + torch.arange(block, device=s.device)
        dtype = self.mode.score_dtype
        q = attn.queries(attn.query_latent(x_BAGD), positions).to(dtype) * self.config.head_dim**-0.5
        context = attn.keys(context_BSD, s).to(dtype)
        own = attn.keys(x_BAGD, positions).to(dtype)
        z_context = torch.einsum("baghk,bsk->bhags", q, context)
        z_own = torch.einsum("baghk,balk->bhagl", q, own)
        z = torch.cat([z_context, z_own], -1).flatten(2, 3)
        age = anchors_BA.unsqueeze(-1) - s
        mask = (age >= 0) & (age < self.config.sliding_window)
        mask = torch.cat([mask, torch.ones(batch, blocks, block, dtype=torch.bool, device=s.device)], -1)
        p = masked_softmax(z, mask.repeat_interleave(block, 1).unsqueeze(1), attn.attn_sink)
        p = p.to(x_BAGD.dtype).to(dtype).unflatten(2, (blocks, block))
        o = torch.einsum("bhags,bsk->baghk", p[..., :rows], context)
        o = o + torch.einsum("bhagl,balk->baghk", p[..., rows:], own)
        return attn.output(o.to(x_BAGD.dtype), positions)

    def forward(self, h: Tensor, pre: Tensor, context: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        """Run both sublayers on block streams [B,A,G,C,D]."""
        attn_pre, post, comb = self.hc_attn(h)
        h = expand(self.attend(self.attn_norm(collapse(h, pre)), context, anchors), h, post, comb)
        ffn_pre, post, comb = self.hc_ffn(h)
        h = expand(self.ffn(self.ffn_norm(collapse(h, attn_pre))), h, post, comb)
        return h, ffn_pre


@dataclass
class Block:
    """A drafter pass: base logits [B,A,G,V] without the Markov term, and collapsed un-normed states."""

    base: Tensor
    state: Tensor


def draft_block(model: Model, taps_BTF: Tensor, first_BA: Tensor, anchors_BA: Tensor) -> Block:
    """Run the stages; `first` is the known token at anchor + 1, taps cover at least 0..max(anchors)."""
    config, stages = model.config, model.mtp
    context = stages[0].main_norm(stages[0].main_proj(taps_BTF))
    noise = torch.full_like(first_BA, config.dspark_noise_token_id)
    ids = torch.stack([first_BA] + [noise] * (config.dspark_block_size - 1), -1)
    h, pre = model.streams(ids)
    for stage in stages:
        h, pre = stage(h, pre, context, anchors_BA)
    state = collapse(h, pre)
    return Block(model.logits(stages[-1].norm(state)), state)


def _stored(weight: Tensor, mode: Mode) -> Tensor:
    return (weight.bfloat16() if mode.quant_weights else weight).float()


def markov_term(head: MarkovHead, previous: Tensor, mode: Mode) -> tuple[Tensor, Tensor]:
    """Return the previous token's logits term [...,V] and its Markov row [...,rank]."""
    row = nn.functional.embedding(previous, _stored(head.embed.weight, mode))
    return nn.functional.linear(row, _stored(head.head.weight, mode)), row


def confidence_logit(head: ConfidenceHead, state: Tensor, row: Tensor, mode: Mode) -> Tensor:
    """Return the confidence logits [...] of draft tokens that follow `row`'s tokens."""
    weight = _stored(head.proj.weight, mode)
    return nn.functional.linear(torch.cat([state.float(), row], -1), weight).squeeze(-1)


def markov(model: Model, previous: Tensor) -> tuple[Tensor, Tensor]:
    """Return DSpark's Markov term and row."""
    return markov_term(model.mtp[-1].markov_head, previous, model.mode)


def confidence(model: Model, state: Tensor, row: Tensor) -> Tensor:
    """Return DSpark's confidence logits."""
    return confidence_logit(model.mtp[-1].confidence_head, state, row, model.mode)
