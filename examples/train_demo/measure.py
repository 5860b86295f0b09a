"""Held-out measurements: bits per byte, and acceptance on the target's own continuations.

Speculation never changes the output (sample and match), so the continuation is made by plain decoding first,
and every possible round is then judged in parallel: a draft is accepted if it equals the continuation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from drafter import confidence, draft_block, markov
from fused import enable
from generate import generate, gumbel
from model import Model
from torch import Tensor


@torch.no_grad()
def bits_per_byte(
    model: Model, documents: list[np.ndarray], sizes: list[int], length: int = 512, rows: int = 64
) -> float:
    """Score every token of the documents once, in windows of `length` with half of it as context."""
    device = model.head.weight.device
    model.eval()
    enable(False)
    windows, firsts = [], []
    for document in documents:
        for start in range(0, max(len(document) - length // 2, 1), length // 2):
            missing = max(0, start + length - len(document))
            windows.append(np.pad(document[start : start + length], (0, missing)))
            firsts.append((0 if start == 0 else length // 2 - 1, min(len(document) - start, length)))
    nats = 0.0
    for at in range(0, len(windows), rows):
        ids = torch.from_numpy(np.stack(windows[at : at + rows])).to(device)
        log_p = model.logits(model(ids).hidden_BTD)[:, :-1].log_softmax(-1)
        loss = -log_p.gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
        for row, (first, end) in enumerate(firsts[at : at + rows]):
            nats += loss[row, first : end - 1].sum().item()
    return nats / math.log(2) / sum(sizes)


@dataclass
class Acceptance:
    """Speculation at one temperature. `length` counts the bonus token."""

    length: float
    by_position: list[float]
    conditional: list[float]
    scores: list[float] = field(default_factory=list)
    outcomes: list[float] = field(default_factory=list)


def coupled(logits_BAGV: Tensor, ahead_BAG: Tensor, prompt: int, temperature: float, seed: int) -> Tensor:
    """Divide by the temperature and add the noise with which the token after `ahead` was drawn."""
    if temperature == 0:
        return logits_BAGV
    rows, vocab = len(ahead_BAG), logits_BAGV.shape[-1]
    last = int(ahead_BAG.max()) + 1
    noise = [gumbel(seed, t, rows, vocab, logits_BAGV.device) for t in range(prompt + 1, last + 1)]
    index = (ahead_BAG - prompt).flatten(1).unsqueeze(-1).expand(-1, -1, vocab)
    return logits_BAGV / temperature + torch.stack(noise, 1).gather(1, index).view(logits_BAGV.shape)


@torch.no_grad()
def judge(model: Model, ids_BT: Tensor, prompt: int, temperature: float, seed: int) -> tuple[Tensor, Tensor]:
    """Draft at every anchor of finished sequences; return matches and confidence logits [B,A,G]."""
    device, block = ids_BT.device, model.config.dspark_block_size
    anchors = torch.arange(prompt - 1, ids_BT.shape[1] - block - 1, device=device).expand(len(ids_BT), -1)
    taps = model(ids_BT).taps_BTF
    ahead = anchors.unsqueeze(-1) + 1 + torch.arange(block, device=device)
    tokens = ids_BT.gather(1, ahead.flatten(1)).view(ahead.shape)
    result = draft_block(model, taps, tokens[..., 0], anchors)
    term, row = markov(model, tokens)
    logits = coupled(result.base + term, ahead, prompt, temperature, seed)
    following = ids_BT.gather(1, (ahead + 1).flatten(1)).view(ahead.shape)
    return logits.argmax(-1) == following, confidence(model, result.state, row)


def continuations(
    model: Model, prompts: np.ndarray, new: int, temperature: float, seed: int, rows: int
) -> list[Tensor]:
    """Generate after every prompt, `rows` at a time; the noise of a batch belongs to its rows."""
    device = model.head.weight.device
    model.eval()
    enable(False)
    batches = [torch.from_numpy(prompts[at : at + rows]).to(device) for at in range(0, len(prompts), rows)]
    return [generate(model, batch, new, temperature, seed) for batch in batches]


def tally(judged: Iterable[tuple[Tensor, Tensor]]) -> Acceptance:
    """Run the rounds of every batch's matches and confidence logits [B,A,G], one after the other."""
    rounds, accepted, kept = 0, 0, torch.zeros(1)
    result = Acceptance(0.0, [], [])
    for match, score in judged:
        alive = match.cumprod(-1)
        count, alive, score = alive.sum(-1).cpu(), alive.cpu(), score.cpu()
        before = torch.cat([torch.ones_like(alive[..., :1]), alive[..., :-1]], -1)
        for row in range(len(match)):
            anchor = 0
            while anchor < count.shape[1]:
                rounds += 1
                accepted += int(count[row, anchor])
                kept = kept + alive[row, anchor]
                open_yet = before[row, anchor].bool()
                result.scores += score[row, anchor][open_yet].tolist()
                result.outcomes += alive[row, anchor][open_yet].float().tolist()
                anchor += int(count[row, anchor]) + 1
    result.length = 1 + accepted / rounds
    result.by_position = (kept / rounds).tolist()
    previous = [1.0, *result.by_position[:-1]]
    result.conditional = [a / max(b, 1e-9) for a, b in zip(result.by_position, previous, strict=True)]
    return result


def acceptance(
    model: Model, prompts: np.ndarray, new: int, temperature: float, seed: int = 1, rows: int = 64
) -> tuple[Acceptance, Tensor]:
    """Generate after every prompt, run DSpark's rounds, and return the figures and the sequences."""
    texts = continuations(model, prompts, new, temperature, seed, rows)
    found = tally(judge(model, ids, prompts.shape[1], temperature, seed) for ids in texts)
    return found, torch.cat(texts).cpu()


def calibration(scores: list[float], outcomes: list[float], bins: int = 10) -> tuple[float, list[list[float]]]:
    """Return the expected calibration error and rows [mean confidence, accepted share, count] by bin."""
    probability = torch.tensor(scores).sigmoid()
    outcome = torch.tensor(outcomes)
    number = (probability * bins).long().clamp(max=bins - 1)
    table, error = [], 0.0
    for k in range(bins):
        chosen = number == k
        if chosen.any():
            mean, rate = probability[chosen].mean().item(), outcome[chosen].mean().item()
            table.append([round(mean, 4), round(rate, 4), int(chosen.sum())])
            error += abs(mean - rate) * int(chosen.sum()) / len(outcome)
    return error, table
