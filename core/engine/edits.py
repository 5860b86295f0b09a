"""Edits of the target's logits that a request asks for: bans, biases and penalties.

They hold at every verified row alike; the tokens that a step drafts are counted by the kernels, those that it has
committed here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specdecode.core.errors import UsageError

if TYPE_CHECKING:
    from specdecode.core.engine.request import Request

BANNED, SEEN, OUTPUT = 1, 2, 4
"""Marks of a token: banned for now, in the prompt or the output, and each time in the output."""


@dataclass(frozen=True, kw_only=True)
class Penalties:
    """How much tokens that occurred lose.

    Attributes:
        repetition: logits of tokens in the prompt or the output are divided by it if positive, else multiplied.
        frequency: subtracted for each time that a token is in the output.
        presence: subtracted once if it is.
    """

    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0

    def __bool__(self) -> bool:
        return self != _NONE


_NONE = Penalties()


@dataclass(frozen=True, kw_only=True)
class LogitEdits:
    """Edits of one request in one step; E entries.

    Attributes:
        tokens: int32 [E], each token once.
        marks: int32 [E], `BANNED`, `SEEN` and `OUTPUT` times a count, added up.
        bias: float32 [E], added to the logit.
        penalties: for marked tokens, and for drafts of the step.
        free_from: the position from which banned tokens are allowed.
    """

    tokens: NDArray[np.int32]
    marks: NDArray[np.int32]
    bias: NDArray[np.float32]
    penalties: Penalties = _NONE
    free_from: int = 0


class EditState:
    """The edits of a request as its output grows.

    Args:
        bias: token -> what is added to its logit.
        banned: tokens that may not come before position `free_from`.
        penalties: what tokens that occurred lose.
        prompt: its tokens count as seen if there are penalties.
    """

    def __init__(
        self,
        *,
        bias: Mapping[int, float],
        banned: Sequence[int],
        free_from: int,
        penalties: Penalties,
        prompt: Sequence[int],
    ) -> None:
        self._penalties, self._free_from = penalties, free_from
        self._places: dict[int, int] = {}
        self._done = len(prompt)
        self._tokens: NDArray[Any] = np.zeros(16, np.int32)
        self._marks: NDArray[Any] = np.zeros(16, np.int32)
        self._bias: NDArray[Any] = np.zeros(16, np.float32)
        # Places first: a new one may replace the arrays.
        for token, value in bias.items():
            place = self._place(token)
            self._bias[place] = value
        for token in banned:
            place = self._place(token)
            self._marks[place] |= BANNED
        for token in dict.fromkeys(prompt) if penalties else ():
            place = self._place(token)
            self._marks[place] |= SEEN

    def edits(self, tokens: Sequence[int]) -> LogitEdits:
        """The edits behind `tokens`, prompt and output; valid until the next call."""
        if self._penalties:
            for token in tokens[self._done :]:
                place = self._place(token)
                self._marks[place] = (self._marks[place] | SEEN) + OUTPUT
            self._done = max(self._done, len(tokens))
        n = len(self._places)
        return LogitEdits(
            tokens=self._tokens[:n],
            marks=self._marks[:n],
            bias=self._bias[:n],
            penalties=self._penalties,
            free_from=self._free_from,
        )

    def _place(self, token: int) -> int:
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = len(self._places)
            if place == len(self._tokens):
                self._tokens, self._marks, self._bias = (
                    np.concatenate([array, np.zeros_like(array)]) for array in (self._tokens, self._marks, self._bias)
                )
            self._tokens[place] = token
        return place


def edit_state(request: Request, vocab_size: int) -> EditState | None:
    """The edits that a request asks for; None where it asks for none.

    Raises:
        UsageError: a bias of a token that the vocabulary lacks.
    """
    beyond = next((token for token in request.logit_bias if token >= vocab_size), None)
    if beyond is not None:
        raise UsageError(f"logit_bias names the token {beyond}, and ids run below {vocab_size} (vocab_size).")
    penalties = Penalties(
        repetition=request.repetition_penalty,
        frequency=request.frequency_penalty,
        presence=request.presence_penalty,
    )
    return edits_for(
        prompt=request.prompt,
        bias=request.logit_bias,
        penalties=penalties,
        ends=request.stop_ids,
        min_tokens=request.min_tokens,
        vocab_size=vocab_size,
    )


def edits_for(
    *,
    prompt: Sequence[int],
    bias: Mapping[int, float],
    penalties: Penalties,
    ends: Collection[int],
    min_tokens: int,
    vocab_size: int,
) -> EditState | None:
    """The edits of a bias, penalties and a least number of tokens before any of `ends`; None where there are none."""
    banned = sorted(token for token in ends if token < vocab_size) if min_tokens else []
    if not (bias or banned or penalties):
        return None
    return EditState(bias=bias, banned=banned, free_from=len(prompt) + min_tokens, penalties=penalties, prompt=prompt)
