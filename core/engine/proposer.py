"""Drafters that are not part of the model's graph: any code that guesses tokens from tokens."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specdecode.core.engine.step import StepModel


class TokenProposer(Protocol):
    """Proposes one request's drafts on the host, from its tokens alone.

    Whatever it proposes, the request's tokens stay those of plain decoding: a draft is only ever accepted when it is
    the target's own draw. A bad proposer costs time, never text. Under a ratio test its drafts count as certain.
    """

    def propose(self, tokens: Sequence[int], width: int) -> Sequence[int]:
        """At most `width` tokens that may follow `tokens`: prompt and output so far, a copy. Called once a round.

        What it raises comes out of `Engine.step`, before that step has changed anything.
        """
        ...


def checked(drafts: Sequence[int], model: StepModel) -> list[int]:
    """A proposer's drafts as plain integers, as far as the model has room for them.

    Raises:
        TypeError: they are no sequence of whole numbers.
        ValueError: a draft that the vocabulary lacks: kernels would read past the embedding.
    """
    try:
        whole = [index(token) for token in drafts]
    except TypeError:
        raise TypeError(f"a proposer drafted {drafts!r}; it gives a sequence of whole numbers") from None
    beyond = next((token for token in whole if not 0 <= token < model.vocab_size), None)
    if beyond is not None:
        raise ValueError(f"a proposer drafted the token {beyond}, and ids run from 0 to {model.vocab_size - 1}")
    return whole[: model.block_size]


def certain(drafts: Sequence[int], vocab_size: int) -> NDArray[np.float32] | None:
    """The probabilities of drafts without chance, float32 [drafts, V]; None without drafts."""
    if not drafts:
        return None
    probabilities = np.zeros((len(drafts), vocab_size), np.float32)
    probabilities[np.arange(len(drafts)), list(drafts)] = 1
    return probabilities
