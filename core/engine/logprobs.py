"""Log-probabilities of output tokens: the model's own law, at temperature 1 and before edits and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class TokenLogprob:
    """A token's natural log-probability, and the likeliest tokens at its position with theirs, likeliest first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def logprobs(logits: NDArray[np.float32], tokens: Sequence[int], count: int) -> tuple[TokenLogprob, ...]:
    """Of each token at its own row.

    Args:
        logits: float32 [rows, V], row n being the law of tokens[n]; at least len(tokens) rows.
        tokens: ids.
        count: likeliest tokens to name; of equal ones the lower id goes first.
    """
    made = []
    for row, token in zip(logits.astype(np.float64), tokens, strict=False):
        top = row.max()
        values = row - top - np.log(np.exp(row - top).sum())
        order: list[int] = np.argsort(-values, kind="stable")[:count].tolist() if count else []
        likeliest = tuple((one, float(values[one])) for one in order)
        made.append(TokenLogprob(token=token, logprob=float(values[token]), top=likeliest))
    return tuple(made)


def draft_probabilities(logits: NDArray[np.float32], tokens: Sequence[int], temperature: float) -> NDArray[np.float32]:
    """What drafts were drawn from: float32 [n, V] of logits [n, V] and the n drafts."""
    if temperature < GREEDY_BELOW:
        return np.eye(logits.shape[1], dtype=np.float32)[np.asarray(tokens, np.int64)]
    scaled = logits.astype(np.float64) / np.float64(np.float32(temperature))
    mass = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    law: NDArray[np.float32] = (mass / mass.sum(axis=1, keepdims=True)).astype(np.float32)
    return law


GREEDY_BELOW = 1e-5
"""A lower temperature is argmax, for the kernels too."""
