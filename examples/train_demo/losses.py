"""Losses: next token for the target, distribution matching for the drafter, matches for confidence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from drafter import confidence, draft_block, markov
from fused import fused
from model import Model
from torch import Tensor


@fused
def next_token_loss(logits_BTV: Tensor, ids_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy and the mean entropy of the predictions, in nats."""
    log_p = logits_BTV[:, :-1].float().log_softmax(-1)
    loss = -log_p.gather(-1, ids_BT[:, 1:].unsqueeze(-1)).mean()
    entropy = -(log_p.exp() * log_p).sum(-1).mean()
    return loss, entropy


@fused
def distances(p_logits: Tensor, q_logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return KL(p||q) and total variation, elementwise over the leading axes."""
    log_p, log_q = p_logits.log_softmax(-1), q_logits.log_softmax(-1)
    p, q = log_p.exp(), log_q.exp()
    return (p * (log_p - log_q)).sum(-1), 0.5 * (p - q).abs().sum(-1)


@fused
def match_label(p_logits: Tensor, q_logits: Tensor, noise: Tensor) -> Tensor:
    """Return 1 where both laws pick the same token under the same noise: an unbiased acceptance label."""
    return ((p_logits + noise).argmax(-1) == (q_logits + noise).argmax(-1)).float()


@dataclass
class DraftLoss:
    """Scalars of one drafter step; `tv_G` and `match_G` are means by draft position."""

    total: Tensor
    tv_G: Tensor
    match_G: Tensor


def draft_loss(
    model: Model,
    taps: Tensor,
    logits_BTV: Tensor,
    ids_BT: Tensor,
    anchors_BA: Tensor,
    decay: float,
    tv: float,
) -> DraftLoss:
    """Match the target's law at five positions after each anchor, with its own tokens before them.

    A draft is only judged when every earlier draft was accepted, which means they equal the sequence; so the
    sequence's tokens are what the Markov head will see.
    """
    block = model.config.dspark_block_size
    ahead = anchors_BA.unsqueeze(-1) + 1 + torch.arange(block, device=ids_BT.device)
    flat = ahead.flatten(1)
    tokens = ids_BT.gather(1, flat).view(ahead.shape)
    p = logits_BTV.gather(1, flat.unsqueeze(-1).expand(-1, -1, logits_BTV.shape[-1])).view(*ahead.shape, -1)
    result = draft_block(model, taps, tokens[..., 0], anchors_BA)
    term, row = markov(model, tokens)
    q = result.base + term
    kl, distance = distances(p, q)
    weight = decay ** torch.arange(block, device=kl.device, dtype=torch.float32)
    weight = weight / weight.sum()
    noise = -torch.log(-torch.log(torch.rand_like(q).clamp(1e-9, 1 - 1e-7)))
    match = match_label(p.detach(), q.detach(), noise)
    score = confidence(model, result.state.detach(), row.detach())
    sure = F.binary_cross_entropy_with_logits(score, match)
    total = (((1 - tv) * kl + tv * distance).mean((0, 1)) * weight).sum() + 0.1 * sure
    return DraftLoss(total, distance.detach().mean((0, 1)), match.mean((0, 1)))
