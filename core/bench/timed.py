"""A model and a proposer with a clock around them: what a run's seconds went to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdecode.core.engine.proposer import TokenProposer
from specdecode.core.engine.step import StepModel, StepResult, StepRow


@dataclass(frozen=True, kw_only=True)
class Span:
    """One step.

    Attributes:
        requests, width: its sizes. draft: whether it drafted the next block.
        decode: whether every request ran one token behind a cached one; else it ran prompts, too.
        context: tokens that the caches held, the mean of its requests.
        seconds: of the call, results on the host included.
    """

    requests: int
    width: int
    draft: bool
    decode: bool
    context: int
    seconds: float


class TimedModel:
    """A `StepModel` that notes every step; `take` hands over the notes."""

    def __init__(self, model: StepModel, clock: Callable[[], float] = time.perf_counter) -> None:
        self.model = model
        self._clock = clock
        self._spans: list[Span] = []
        self._proposing = 0.0

    @property
    def page_size(self) -> int:
        return self.model.page_size

    @property
    def replicas(self) -> int:
        return self.model.replicas

    @property
    def num_pages(self) -> int:
        return self.model.num_pages

    @property
    def block_size(self) -> int:
        return self.model.block_size

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def max_length(self) -> int:
        return self.model.max_length

    @property
    def lookback_length(self) -> int:
        return self.model.lookback_length

    def step(self, rows: Sequence[StepRow], *, width: int, draft: bool) -> StepResult:
        """Run one step; see `StepModel.step`."""
        start = self._clock()
        result = self.model.step(rows, width=width, draft=draft)
        span = Span(
            requests=len(rows),
            width=width,
            draft=draft,
            decode=all(len(row.tokens) == 1 and row.cache_length for row in rows),
            context=sum(row.cache_length for row in rows) // len(rows),
            seconds=self._clock() - start,
        )
        self._spans.append(span)
        return result

    def timed(self, propose: TokenProposer) -> TokenProposer:
        """A proposer of the host whose time counts as drafting."""
        return _TimedProposer(propose, self._propose)

    def take(self) -> tuple[list[Span], float]:
        """The steps since the last call, and the seconds that proposers of the host took."""
        spans, seconds = self._spans, self._proposing
        self._spans, self._proposing = [], 0.0
        return spans, seconds

    def _propose(self, proposer: TokenProposer, tokens: Sequence[int], width: int) -> Sequence[int]:
        start = self._clock()
        drafts = proposer.propose(tokens, width)
        self._proposing += self._clock() - start
        return drafts


_Propose = Callable[[TokenProposer, Sequence[int], int], Sequence[int]]


class _TimedProposer:
    def __init__(self, proposer: TokenProposer, call: _Propose) -> None:
        self._proposer, self._call = proposer, call

    def propose(self, tokens: Sequence[int], width: int) -> Sequence[int]:
        return self._call(self._proposer, tokens, width)
