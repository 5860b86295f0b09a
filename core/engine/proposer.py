"""Drafters that are not part of the model's graph: any code that guesses tokens from tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specdecode.core.engine.step import StepModel


class TokenProposer(Protocol):
    """Proposes one request's drafts on the host, from its tokens alone.

    Whatever it proposes, the request's tokens stay those of plain decoding: a draft is only ever accepted when it is
    the target's own draw. A bad proposer costs time, never text. Under a ratio test its drafts count as certain.
    """

    def propose(self, tokens: Sequence[int], width: int) -> list[int]:
        """At most `width` tokens that may follow `tokens`: prompt and output so far. Called once a round."""
        ...


def checked(drafts: Sequence[int], model: StepModel) -> list[int]:
    """A proposer's drafts, as far as the model has room for them.

    Raises:
        ValueError: a draft that the vocabulary lacks: kernels would read past the embedding.
    """
    beyond = next((token for token in drafts if not 0 <= token < model.vocab_size), None)
    if beyond is not None:
        raise ValueError(f"a proposer drafted the token {beyond}, and ids run from 0 to {model.vocab_size - 1}")
    return list(drafts[: model.block_size])
