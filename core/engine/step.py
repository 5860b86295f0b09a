"""The seam between the engine and a model: one step over a ragged batch.

A step runs, for each request, `tokens ++ draft_tokens` as a causal continuation of what is in the
caches, samples the target's own token after the last of `tokens` and after every draft, accepts the
drafts that equal those samples, and drafts the next block. Everything between is the model's business;
what to run is the engine's.

After a step a request's caches hold `len(tokens) + num_accepted` more tokens. The next step runs
`tokens=[next_token]` with a prefix of `next_draft_tokens` as drafts: the anchor is sampled, but not
cached yet. For a prompt chunk that is not the last the result has no meaning, except `finite`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specdecode.core.engine.edits import LogitEdits


class Acceptance(IntEnum):
    """How drafts are accepted; each rule leaves the target's law as it is."""

    MATCH = 0
    """While they equal the target's own draws: the very tokens of plain decoding."""
    REJECTION = 1
    """Each with probability min(1, p / q), the target's over the drafter's (Leviathan et al. 2023)."""
    BLOCK = 2
    """The longest prefix that passes a joint test (Sun et al. 2024)."""


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """What one request runs in one step.

    Attributes:
        tokens: ids to run: a chunk of the prompt, or the anchor alone.
        cache_length: tokens of this request that the caches hold already.
        pages: its physical pages, in order; they cover cache_length + len(tokens) + width positions.
        draft_tokens: at most `width` proposed ids for the positions after `tokens`.
        lookback: the raw ids just before `tokens[0]`, oldest first, at most `lookback_length`; fewer
        only at the start
            of the sequence.
        seed: key of the request's draws, together with the position.
        temperature: 0 for argmax.
        top_k, top_p, min_p: what the target's draws are limited to, as in `Request`; 0, 1 and 0 = all tokens.
        edits: what is done to the target's logits before; None = nothing.
        mask: int32 [len(draft_tokens) + 1, V / 32], the tokens that a grammar allows at every verified row, a bit each;
            None = all.
        acceptance: the rule that drafts are accepted by.
        draft_probs: float32 [len(draft_tokens), V] that the drafts were drawn from; ratio tests need them.
        following: the id behind `tokens`, where it is known: in every prompt chunk but the last; -1 otherwise.
    """

    tokens: Sequence[int]
    cache_length: int
    pages: Sequence[int]
    draft_tokens: Sequence[int]
    lookback: Sequence[int]
    seed: int
    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    edits: LogitEdits | None = None
    mask: NDArray[np.int32] | None = None
    acceptance: Acceptance = Acceptance.MATCH
    draft_probs: NDArray[np.float32] | None = None
    following: int = -1


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step answers, one row per request (B) in the order given.

    Attributes:
        num_accepted: int32 [B], accepted draft tokens.
        next_tokens: int64 [B], the corrected token at the first mismatch, or the bonus after a full
        match. next_draft_tokens: int64 [B, block], drafts for the positions after `next_tokens`; [B, 0]
        without a drafter. confidence: float32 [B, block], raw logits of "this draft is accepted if
        those before it are". finite: bool [B], False where the row's logits held a NaN or an infinity, or
        no token was allowed.
        logits: gives float32 [B (width + 1), V], the target's own logits of every verified row; valid until the next
        step. draft_logits: the same of the next block, [B * block, V].
    """

    num_accepted: NDArray[np.int32]
    next_tokens: NDArray[np.int64]
    next_draft_tokens: NDArray[np.int64]
    confidence: NDArray[np.float32]
    finite: NDArray[np.bool_]
    logits: Callable[[], NDArray[np.float32]] | None = None
    draft_logits: Callable[[], NDArray[np.float32]] | None = None


class StepModel(Protocol):
    """A model that the engine can run.

    Attributes:
        page_size: tokens per cache page.
        num_pages: pages in the caches.
        block_size: the most drafts per step; 0 for a model without a drafter.
        vocab_size: token ids run below this.
        max_length: the longest sequence, prompt and output together.
        lookback_length: ids before a row's first token that the model needs (Engram: max n-gram - 1),
        or 0.
        replicas: parts of the caches with pages of their own, num_pages / replicas consecutive ones each. A row's
        pages are all of one of them, and a step's rows come replica after replica.
    """

    @property
    def page_size(self) -> int: ...
    @property
    def num_pages(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_length(self) -> int: ...
    @property
    def lookback_length(self) -> int: ...
    @property
    def replicas(self) -> int: ...

    def step(self, rows: Sequence[StepRow], *, width: int, draft: bool) -> StepResult:
        """Run one step.

        Args:
            rows: the requests; each has at most `width` draft tokens.
            width: draft positions per request in this step, 0 … block_size; shorter rows are padded by
            the model. draft: whether to draft the next block. A request that is to be drafted for later
            needs this from its first
                prompt chunk on, because the drafter keeps context of its own.
        """
        ...
