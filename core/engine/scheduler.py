"""Which requests run in the next step, and how much of each.

Continuous batching: a request joins as soon as a row and its pages are free, and leaves at the step
that ends it. Decoding rows come first; what is left of the token budget goes to prompt chunks, oldest
request first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specdecode.core.cache.pages import PageAllocator
from specdecode.core.engine.edits import EditState
from specdecode.core.engine.logprobs import TokenLogprob
from specdecode.core.engine.proposer import TokenProposer
from specdecode.core.engine.report import Load, StepReport
from specdecode.core.engine.request import Request
from specdecode.core.engine.step import Acceptance, StepModel, StepRow
from specdecode.core.engine.widths import Draft, FullWidth, WidthPolicy
from specdecode.core.errors import UsageError
from specdecode.core.metrics import Round
from specdecode.core.text.constraint import Constraint
from specdecode.core.text.output_text import OutputText

TOKEN_BUDGET = 512
"""Tokens that a step runs where nobody says otherwise."""


@dataclass(kw_only=True)
class Sequence:
    """A request in flight.

    Attributes:
        tokens: prompt and output so far. Once the prompt is in, all but the last of them are in the
        caches. cache_length: tokens in the caches. drafts: proposals for the positions after `tokens`.
        confidence: the drafter's raw logits of their acceptance.
        constraint: what the output may be; None where it may be anything.
        text: what the output says; None where nobody asked for text. pieces: what it has released so far.
        stopped_by: the stop token or stop string that ended the sequence.
        proposer: what proposes drafts in place of the model's drafter. proposed_at: tokens that it last saw.
        edits: what is done to its logits; None = nothing. logprobs: of its output, where they are asked for.
        draft_probs: float32 [len(drafts), V] that they were drawn from, for ratio tests.
    """

    id: int
    request: Request
    width: int
    submitted: float
    tokens: list[int]
    cache_length: int = 0
    pages: tuple[int, ...] = ()
    drafts: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    constraint: Constraint | None = None
    text: OutputText | None = None
    pieces: list[str] = field(default_factory=list)
    stopped_by: int | str | None = None
    proposer: TokenProposer | None = None
    proposed_at: int = -1
    edits: EditState | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    draft_probs: NDArray[np.float32] | None = None
    first_token: float | None = None
    last_token: float | None = None

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def remaining(self) -> int:
        return self.request.max_tokens - self.generated

    @property
    def prefilling(self) -> bool:
        return self.cache_length < len(self.request.prompt)


@dataclass(frozen=True, kw_only=True)
class Work:
    """One sequence's share of a step: run `count` tokens that are not cached yet, then verify `drafts`."""

    sequence: Sequence
    count: int
    drafts: tuple[int, ...]

    @property
    def yields(self) -> bool:
        """Whether the step's result is this sequence's next tokens; a prompt chunk before the last has "
        "none."""
        return self.sequence.cache_length + self.count == len(self.sequence.tokens)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One step."""

    works: tuple[Work, ...]
    width: int
    draft: bool

    def alone(self, work: Work) -> Plan:
        """The step with one of its shares only."""
        return Plan(works=(work,), width=len(work.drafts), draft=self.draft)

    def report(self, seconds: float) -> StepReport:
        """What an observer is told once it has run, before its results are applied."""
        decoding = {w.sequence.id: len(w.drafts) for w in self.works if not w.sequence.prefilling}
        return StepReport(
            decoding=decoding,
            prefilling=len(self.works) - len(decoding),
            width=self.width,
            drafts=self.draft,
            seconds=seconds,
        )


class Scheduler:
    """Waiting and running sequences, rows and pages."""

    def __init__(
        self,
        model: StepModel,
        *,
        max_batch: int,
        token_budget: int,
        widths: WidthPolicy | None = None,
        acceptance: Acceptance = Acceptance.MATCH,
        drafter: bool = True,
    ) -> None:
        if max_batch < 1 or token_budget < 1:
            raise ValueError(f"a step needs rows and tokens: {max_batch=}, {token_budget=}")
        self._model = model
        self._max_batch = max_batch
        self._budget = token_budget
        self._widths = widths or FullWidth()
        self._acceptance = acceptance
        self._drafter = drafter
        self._pages = PageAllocator(model.num_pages, model.page_size, model.replicas)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    @property
    def load(self) -> Load:
        """What it holds now."""
        return Load(
            running=len(self._running),
            waiting=len(self._waiting),
            free_pages=self._pages.available,
            pages=self._pages.num_pages,
        )

    @property
    def busy(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self._waiting or self._running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence.

        Raises:
            UsageError: its prompt leaves no room in the context, or a prompt id is no token.
            DeviceError: its pages exceed the whole cache.
        """
        prompt, limit = sequence.request.prompt, self._model.max_length
        if len(prompt) >= limit:
            raise UsageError(
                f"The prompt has {len(prompt)} tokens, and the context of {limit} has no room for it "
                "and one token of "
                "output. Shorten the prompt."
            )
        if not all(0 <= token < self._model.vocab_size for token in prompt):
            raise UsageError(f"A prompt token is not below the vocabulary size {self._model.vocab_size}.")
        self._pages.check_fits(self._positions(sequence), f"A request of {len(prompt)} prompt tokens")
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that ended, with its pages."""
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._pages.free(sequence.pages)
        sequence.pages = ()

    @property
    def decoding(self) -> list[Sequence]:
        """The running sequences whose prompts are in."""
        return [s for s in self._running if not s.prefilling]

    def find(self, request_id: int) -> Sequence | None:
        """The waiting or running sequence with this id."""
        return next((s for s in (*self._running, *self._waiting) if s.id == request_id), None)

    def plan(self) -> Plan:
        """Choose the next step; `busy` must hold."""
        self._admit()
        decoding = self._decoding()
        left = self._budget - sum(work.count + len(work.drafts) for work in decoding)
        chunks = []
        for sequence in self._running:
            if sequence.prefilling and left > 0:
                count = min(left, len(sequence.request.prompt) - sequence.cache_length)
                chunks.append(Work(sequence=sequence, count=count, drafts=()))
                left -= count
        # Replica after replica, as the model takes them; a sort keeps the order within one.
        works = tuple(sorted((*decoding, *chunks), key=self._replica))
        return Plan(
            works=works,
            width=max(len(w.drafts) for w in works),
            draft=self._drafter and any(map(_needs_drafter, works)),
        )

    def _replica(self, work: Work) -> int:
        return self._pages.replica(work.sequence.pages[0])

    def _decoding(self) -> list[Work]:
        """The decoding requests with as many drafts as the policy wants of each."""
        running = self.decoding
        if any(s.width for s in running) and not self._widths.speculates(len(running)):
            for sequence in running:  # for good: without its context of these tokens a drafter is of no use later
                sequence.width = 0
        known = [self._drafts(s) for s in running]
        chosen = self._widths.choose(
            [
                Draft(logits=s.confidence[: len(drafts)], limit=len(drafts))
                for s, drafts in zip(running, known, strict=True)
            ]
        )
        return [
            Work(sequence=s, count=1, drafts=drafts[:width])
            for s, drafts, width in zip(running, known, chosen, strict=True)
        ]

    def row(self, work: Work) -> StepRow:
        """What the model is given for one share of the step."""
        s, start = work.sequence, work.sequence.cache_length
        return StepRow(
            tokens=s.tokens[start : start + work.count],
            cache_length=start,
            pages=s.pages,
            draft_tokens=work.drafts,
            lookback=s.tokens[max(0, start - self._model.lookback_length) : start],
            seed=s.request.seed,
            temperature=s.request.temperature,
            top_k=s.request.top_k,
            top_p=s.request.top_p,
            min_p=s.request.min_p,
            edits=None if s.edits is None else s.edits.edits(s.tokens),
            acceptance=self._acceptance,
            draft_probs=None if s.draft_probs is None or not work.drafts else s.draft_probs[: len(work.drafts)],
            mask=self._mask(work),
            following=-1 if work.yields else s.tokens[start + work.count],
        )

    def _mask(self, work: Work) -> NDArray[np.int32] | None:
        constraint = work.sequence.constraint
        if constraint is None or constraint.free or not work.yields:
            return None
        mask = constraint.masks(work.drafts)
        if self._acceptance is not Acceptance.MATCH:
            # A ratio test looks at every row; those behind an illegal draft, which is never accepted, must be laws too.
            mask[~mask.any(axis=1)] = -1
        return mask

    def _admit(self) -> None:
        """Start waiting sequences in order; the first that does not fit now holds up those behind it."""
        while self._waiting and len(self._running) < self._max_batch:
            pages = self._pages.allocate(self._positions(self._waiting[0]))
            if pages is None:
                return
            sequence = self._waiting.popleft()
            sequence.pages = tuple(pages)
            self._running.append(sequence)

    def _positions(self, sequence: Sequence) -> int:
        """Cache positions that a sequence can touch: all its tokens and a block of drafts behind them.

        The block counts for every sequence, because a row is padded to the width of the widest in its
        step.
        """
        request = sequence.request
        return min(len(request.prompt) + request.max_tokens, self._model.max_length) + self._model.block_size

    def _drafts(self, s: Sequence) -> tuple[int, ...]:
        """As many drafts as could still be kept: one token of the budget is the target's own."""
        room = min(s.width, s.remaining - 1, self._model.max_length - len(s.tokens) - 1)
        drafts = tuple(until_sentinel(s.drafts[: max(room, 0)]))
        if s.constraint is None or self._acceptance is not Acceptance.MATCH:
            # A ratio test has to see whatever was drafted: how many it sees must not depend on what they are.
            return drafts
        return drafts[: s.constraint.useful(drafts)]


def until_sentinel(drafts: Iterable[int]) -> Iterable[int]:
    """The drafts before the first that is none."""
    for token in drafts:
        if token < 0:  # the model had no draft from here on
            return
        yield token


def _needs_drafter(work: Work) -> bool:
    """Whether a later round of this sequence can use drafts, or the drafter's own context of these tokens."""
    return work.sequence.width > 0 and not (work.yields and work.sequence.remaining <= 1)
