"""The EAGLE drafter: one layer that reads the target's taps and then its own output, a token a step.

The row at position p stands for (taps at p, token at p+1) and guesses the token at p+2. Training and drafting
share one code: `start` runs over all rows with taps, `extend` adds one drafted row to every branch, where a
branch begins at an anchor p and its j-th row stands at p+j.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import torch
from attention import MLA, masked_softmax
from config import Config
from drafter import ConfidenceHead, MarkovHead, confidence_logit, markov_term
from hyper import HyperMix, collapse, expand
from layers import Linear, Mode, Norm
from model import Model
from moe import MoE
from torch import Tensor, nn


@dataclass(frozen=True)
class EagleConfig:
    """The drafter's config.json; everything else is the target's."""

    model_type: str = "specdecode_eagle"
    num_draft_tokens: int = 3
    markov_rank: int = 32
    target_layer_ids: tuple[int, ...] = (9, 10, 11)
    n_routed_experts: int = 8
    num_experts_per_tok: int = 2
    sliding_window: int = 64
    hidden_size: int = 192
    vocab_size: int = 2048

    @classmethod
    def load(cls, folder: Path) -> EagleConfig:
        """Read `folder/config.json`."""
        text = json.loads((folder / "config.json").read_text())
        values = {field.name: text[field.name] for field in fields(cls)}
        return cls(**values | {"target_layer_ids": tuple(text["target_layer_ids"])})

    def text(self) -> str:
        """Return the JSON document."""
        return json.dumps(asdict(self), indent=2) + "\n"


@dataclass
class Guess:
    """What rows [B,A] predict: logits [B,A,V], Markov term included, un-normed states [B,A,D], Markov rows."""

    logits: Tensor
    state: Tensor
    row: Tensor


@dataclass
class Branches:
    """Where drafting stands: anchors [A], keys of all real rows [B,S,K], drafted rows' keys, last outputs [B,A,D]."""

    anchors: Tensor
    context: Tensor
    own: list[Tensor]
    output: Tensor

    def last(self) -> Branches:
        """Keep the newest anchor only, before anything is drafted."""
        return replace(self, anchors=self.anchors[-1:], output=self.output[:, -1:])


class EagleLayer(nn.Module):
    """One ordinary window layer, whose rows may belong to branches."""

    def __init__(self, config: Config, eagle: EagleConfig, mode: Mode) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.head_dim, self.window, self.mode = config.head_dim, eagle.sliding_window, mode
        self.attn_norm, self.ffn_norm = Norm(hidden, eps), Norm(hidden, eps)
        self.attn = MLA(config, mode, compressed=False)
        self.ffn = MoE(
            hidden,
            config.moe_intermediate_size,
            eagle.n_routed_experts,
            eagle.num_experts_per_tok,
            config.routed_scaling_factor,
            config.swiglu_limit,
            mode,
        )
        self.hc_attn, self.hc_ffn = HyperMix(config), HyperMix(config)

    def attend(self, x_BAD: Tensor, branches: Branches) -> Tensor:
        """Attend within the window to the real rows up to the anchor and to the branch's own rows.

        The first call, with `context` empty, publishes the keys of its rows there; later ones add to `own`.
        """
        attn, anchors, dtype = self.attn, branches.anchors, self.mode.score_dtype
        first = branches.context.shape[1] == 0
        positions = anchors if first else anchors + len(branches.own) + 1
        q = attn.queries(attn.query_latent(x_BAD), positions).to(dtype) * self.head_dim**-0.5
        keys = attn.keys(x_BAD, positions)
        if first:
            branches.context = keys
        else:
            branches.own.append(keys)
        context = branches.context.to(dtype)
        rows = torch.arange(context.shape[1], device=keys.device)
        mask = (rows <= anchors[:, None]) & (positions[:, None] - rows < self.window)
        z = torch.einsum("bahk,bsk->bhas", q, context)
        if first:
            p = masked_softmax(z, mask, attn.attn_sink).to(x_BAD.dtype).to(dtype)
            return attn.output(torch.einsum("bhas,bsk->bahk", p, context).to(x_BAD.dtype), positions)
        own = torch.stack(branches.own, 2).to(dtype)
        z = torch.cat([z, torch.einsum("bahk,balk->bhal", q, own)], -1)
        mask = nn.functional.pad(mask, (0, own.shape[2]), value=True)
        p = masked_softmax(z, mask, attn.attn_sink).to(x_BAD.dtype).to(dtype)
        o = torch.einsum("bhas,bsk->bahk", p[..., : len(rows)], context)
        o = o + torch.einsum("bhal,balk->bahk", p[..., len(rows) :], own)
        return attn.output(o.to(x_BAD.dtype), positions)

    def forward(self, h: Tensor, pre: Tensor, branches: Branches) -> tuple[Tensor, Tensor]:
        """Run both sublayers on streams [B,A,C,D]."""
        attn_pre, post, comb = self.hc_attn(h)
        h = expand(self.attend(self.attn_norm(collapse(h, pre)), branches), h, post, comb)
        ffn_pre, post, comb = self.hc_ffn(h)
        h = expand(self.ffn(self.ffn_norm(collapse(h, attn_pre))), h, post, comb)
        return h, ffn_pre


class Eagle(nn.Module):
    """The drafter; embedding and head are the target's."""

    def __init__(self, config: Config, eagle: EagleConfig, mode: Mode) -> None:
        super().__init__()
        if list(eagle.target_layer_ids) != list(config.dspark_target_layer_ids):
            raise ValueError(f"taps of layers {eagle.target_layer_ids}, not {config.dspark_target_layer_ids}")
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.config, self.eagle_config, self.mode = config, eagle, mode
        self.fc, self.fc_norm = Linear(len(eagle.target_layer_ids) * hidden, hidden, mode), Norm(hidden, eps)
        self.back, self.back_norm = Linear(hidden, hidden, mode), Norm(hidden, eps)
        self.proj, self.proj_norm = Linear(2 * hidden, hidden, mode), Norm(hidden, eps)
        self.layer = EagleLayer(config, eagle, mode)
        self.norm = Norm(hidden, eps)
        self.markov_head = MarkovHead(eagle.vocab_size, eagle.markov_rank)
        self.confidence_head = ConfidenceHead(hidden + eagle.markov_rank)

    def start(self, model: Model, taps_BSF: Tensor, tokens_BS: Tensor) -> tuple[Guess, Branches]:
        """Run all rows 0..S-1; `tokens` are those one position later. Every row is an anchor."""
        u = self.fc_norm(self.fc(taps_BSF))
        anchors = torch.arange(tokens_BS.shape[1], device=u.device)
        nothing = u.new_zeros(len(u), 0, self.config.head_dim)
        return self._run(model, u, tokens_BS, Branches(anchors, nothing, [], u))

    def extend(self, model: Model, branches: Branches, tokens_BA: Tensor) -> tuple[Guess, Branches]:
        """Add one drafted row to every branch; `tokens` are what the rows before them guessed."""
        u = self.back_norm(self.back(branches.output))
        return self._run(model, u, tokens_BA, replace(branches, own=list(branches.own)))

    def _run(self, model: Model, u: Tensor, tokens: Tensor, branches: Branches) -> tuple[Guess, Branches]:
        x = torch.cat([model.embed(tokens).to(u.dtype), u], -1)
        h, pre = model.copies(self.proj_norm(self.proj(x)))
        h, pre = self.layer(h, pre, branches)
        branches.output = h.float().mean(-2).to(h.dtype)
        state = collapse(h, pre)
        term, row = markov_term(self.markov_head, tokens, self.mode)
        return Guess(model.logits(self.norm(state)) + term, state, row), branches

    def confidence(self, guess: Guess) -> Tensor:
        """Return the logits [B,A] of each guess being accepted, given that those before it were."""
        return confidence_logit(self.confidence_head, guess.state, guess.row, self.mode)


@torch.no_grad()
def draft(eagle: Eagle, model: Model, taps_BTF: Tensor, ids_BS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Draft greedily after ids 0..T (one more than taps); return ids [B,G], logits [B,G,V], confidences [B,G]."""
    guess, branches = eagle.start(model, taps_BTF, ids_BS[:, 1:])
    branches = branches.last()
    guess = Guess(guess.logits[:, -1:], guess.state[:, -1:], guess.row[:, -1:])
    guesses = [guess]
    for _ in range(eagle.eagle_config.num_draft_tokens - 1):
        guess, branches = eagle.extend(model, branches, guess.logits.argmax(-1))
        guesses.append(guess)
    logits = torch.cat([guess.logits for guess in guesses], 1)
    return logits.argmax(-1), logits, torch.cat([eagle.confidence(guess) for guess in guesses], 1)
