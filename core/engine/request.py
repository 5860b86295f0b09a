"""What a caller asks for and what comes back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from specdecode.core.engine.logprobs import TokenLogprob
from specdecode.core.errors import UsageError
from specdecode.core.metrics import Round, Timing
from specdecode.core.text.grammar import Grammar

MOST, MOST_FACTOR = 1e6, 1e3
"""Bounds of temperatures, penalties and biases, so that float32 logits stay finite."""


class FinishReason(str, Enum):
    """Why a request ended."""

    STOP = "stop"
    """It produced a stop token or a stop string."""
    LENGTH = "length"
    """It produced `max_tokens` tokens."""
    CONTEXT = "context"
    """Prompt and output fill the model's context."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One sequence to continue.

    Attributes:
        prompt: token ids, begin-of-sequence included.
        max_tokens: the most output tokens.
        temperature: 0 for argmax.
        top_k: draw from the likeliest so many tokens; 0 = all. Of equal ones the lower id goes first.
        top_p: draw from the fewest likeliest tokens, at least one, that have this share of the probability at this
            temperature and within `top_k`; 1 = all.
        min_p: draw from tokens that have at least this share of the likeliest one's probability; 0 = all.
        logit_bias: token -> what is added to its logit.
        repetition_penalty: logits of tokens in the prompt or the output are divided by it if positive, else
            multiplied; 1 = none.
        frequency_penalty, presence_penalty: what a token in the output loses of its logit, for each time and once.
        logprobs: also say the model's own log-probabilities: of every token, and of so many likeliest ones.
        seed: key of the draws; the same request with the same seed gives the same tokens.
        stop_ids: ids that end the sequence; the id itself is kept as the last token.
        stop: strings that end the text; the token that completes one is kept as the last token.
        include_stop: whether the stop string or the stop token's text belongs to the text.
        min_tokens: tokens that must come before a stop token may be drawn or the end of a stop string counts.
        draft_tokens: the most drafts per round; 0 = plain decoding, None = what the model's block allows.
        grammar: what the answer must be; its end ends the request, whatever `stop_ids` and `min_tokens` say. See
            `core/text/constraint.py`.
        thinking_budget: the most tokens of reasoning, after which `</think>` is forced; None = no limit.
        starts_thinking: whether the prompt ends inside the reasoning; the grammar then begins after `</think>`.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logprobs: int | None = None
    seed: int = 0
    stop_ids: frozenset[int] = field(default_factory=frozenset)
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    draft_tokens: int | None = None
    grammar: Grammar | None = None
    thinking_budget: int | None = None
    starts_thinking: bool = False

    def __post_init__(self) -> None:
        if not self.prompt:
            raise UsageError("A request needs at least one prompt token.")
        if not _is_int(self.max_tokens) or self.max_tokens < 0:
            raise UsageError(f"max_tokens is {self.max_tokens!r}; it must be a whole number, 0 or more.")
        if not 0 <= self.temperature <= MOST:
            raise UsageError(f"temperature is {self.temperature!r}; it must be a number from 0 to {MOST:g}.")
        if not _is_int(self.top_k) or self.top_k < 0:
            raise UsageError(f"top_k is {self.top_k!r}; it must be a whole number, 0 (all tokens) or more.")
        if not 0 <= self.top_p <= 1:
            raise UsageError(f"top_p is {self.top_p!r}; it must be a number from 0 to 1 (all tokens).")
        self._check_law()
        if not _is_int(self.seed) or not 0 <= self.seed < 2**64:
            raise UsageError(f"seed is {self.seed!r}; it must be a whole number from 0 to 2^64-1.")
        if not all(isinstance(stop, str) and stop for stop in self.stop):
            raise UsageError("A stop string is empty, and that is everywhere. Leave it out.")
        if any("\ud800" <= character <= "\udfff" for stop in self.stop for character in stop):
            raise UsageError("A stop string is not UTF-8 text.")
        if not _is_int(self.min_tokens) or not 0 <= self.min_tokens <= self.max_tokens:
            raise UsageError(
                f"min_tokens is {self.min_tokens!r}; it must be a whole number from 0 to max_tokens, {self.max_tokens}."
            )
        if self.draft_tokens is not None and (not _is_int(self.draft_tokens) or self.draft_tokens < 0):
            raise UsageError(f"draft_tokens is {self.draft_tokens!r}; it must be a whole number, 0 or more.")
        budget = self.thinking_budget
        if budget is not None and (not _is_int(budget) or budget < 0):
            raise UsageError(f"thinking_budget is {budget!r}; it must be a whole number, 0 or more.")

    def _check_law(self) -> None:
        if not 0 <= self.min_p <= 1:
            raise UsageError(f"min_p is {self.min_p!r}; it must be a number from 0 (all tokens) to 1.")
        if not 1 / MOST_FACTOR <= self.repetition_penalty <= MOST_FACTOR:
            raise UsageError(
                f"repetition_penalty is {self.repetition_penalty!r}; it must be a number from {1 / MOST_FACTOR:g} to "
                f"{MOST_FACTOR:g}, and 1 changes nothing."
            )
        for name in ("frequency_penalty", "presence_penalty"):
            if not abs(getattr(self, name)) <= MOST:
                raise UsageError(f"{name} is {getattr(self, name)!r}; it must be a number from -{MOST:g} to {MOST:g}.")
        for token, bias in self.logit_bias.items():
            if not _is_int(token) or token < 0 or not abs(bias) <= MOST:
                raise UsageError(
                    f"logit_bias {token!r}: {bias!r} must be a token id and a number from -{MOST:g} to {MOST:g}."
                )
        if self.logprobs is not None and (not _is_int(self.logprobs) or self.logprobs < 0):
            raise UsageError(f"logprobs is {self.logprobs!r}; it must be a whole number, 0 or more.")


def sample_seed(seed: int, sample: int) -> int:
    """The seed of one of several samples of a prompt: `seed` itself for sample 0.

    Others take the first 6 bytes, big-endian, of the SHA-256 of the text "SEED/SAMPLE": samples of neighbouring seeds
    have nothing in common, and any JSON reader holds the number exactly.
    """
    if sample == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}/{sample}".encode()).digest()[:6], "big")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A finished request: its output tokens, why it ended, its rounds and times.

    Attributes:
        text: what the tokens say, without what a stop cuts off; empty where the engine has no tokenizer.
        logprobs: one a token where the request asks for them.
        stopped_by: the stop token or stop string that ended it.
    """

    tokens: tuple[int, ...]
    reason: FinishReason
    rounds: tuple[Round, ...]
    timing: Timing
    text: str = ""
    stopped_by: int | str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class TokensEvent:
    """Tokens that a request gained in one step; the first `drafted` of `proposed` drafts are among them.

    Attributes:
        pieces: the text that each token released; empty where the engine has no tokenizer.
        logprobs: one a token where the request asks for them.
    """

    request_id: int
    tokens: tuple[int, ...]
    drafted: int
    proposed: int = 0
    pieces: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def text(self) -> str:
        """The text that these tokens released."""
        return "".join(self.pieces)

    def kind(self, place: int) -> str | None:
        """What the token at `place` is: accepted, corrected or bonus; None where the step had nothing to verify."""
        if self.proposed == 0:
            return None
        if place < self.drafted:
            return "accepted"
        return "bonus" if self.drafted == self.proposed else "corrected"


@dataclass(frozen=True, kw_only=True)
class FinishedEvent:
    """A request ended as asked."""

    request_id: int
    completion: Completion


@dataclass(frozen=True, kw_only=True)
class FailedEvent:
    """A request cannot go on; the others do. `completion` is not given because its tokens are not to "
    "be trusted."""

    request_id: int
    message: str


Event = TokensEvent | FinishedEvent | FailedEvent
