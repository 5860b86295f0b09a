"""The step loop: submit requests, step, collect events.

engine = Engine(model, max_batch=8)
engine.submit(Request(prompt=(0, 17, 4), max_tokens=32))
for event in engine.run():
    ...
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from specdecode.core.engine.commit import commit
from specdecode.core.engine.edits import edit_state
from specdecode.core.engine.outcome import completion, draft_probs, not_finite, token_logprobs
from specdecode.core.engine.proposer import TokenProposer, certain, checked
from specdecode.core.engine.report import Load, StepReport
from specdecode.core.engine.request import (
    Event,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    Request,
    TokensEvent,
)
from specdecode.core.engine.scheduler import TOKEN_BUDGET, Plan, Scheduler, Sequence, Work
from specdecode.core.engine.step import Acceptance, StepModel, StepResult
from specdecode.core.engine.widths import FullWidth, WidthPolicy
from specdecode.core.errors import UsageError
from specdecode.core.metrics import Round
from specdecode.core.text.constraint import ConstraintError
from specdecode.core.text.constraints import constraint
from specdecode.core.text.grammar_compiler import Vocabulary
from specdecode.core.text.output_text import OutputText


class Engine:
    """Run requests on a model, several at a time.

    A request's tokens depend on the request alone: not on its neighbours, on when it joined, on how its
    prompt was cut into chunks, nor on how many tokens were drafted.

    Args:
        model: what runs a step.
        max_batch: the most requests in one step.
        token_budget: prompt tokens per step, less what the decoding requests of that step run.
        tokenizer: makes the text of events and completions, finds stop strings in it and says what a grammar allows.
        widths: how many drafts to verify; None = all.
        acceptance: the rule that drafts are accepted by. A ratio test gives the target's law, but not the tokens of
            plain decoding, and it needs the drafter's probabilities on the host.
        proposer: makes each request a `TokenProposer`, which then drafts in place of the model's own drafter.
        clock: seconds, for the timings.
        observer: told of every step.
        failures: told of an exception that came up while a step ran. The request that it belongs to then fails alone;
            where that is not known, each request of the step runs by itself. None = exceptions leave `step`.
    """

    def __init__(
        self,
        model: StepModel,
        *,
        max_batch: int = 8,
        token_budget: int = TOKEN_BUDGET,
        tokenizer: Vocabulary | None = None,
        widths: WidthPolicy | None = None,
        acceptance: Acceptance = Acceptance.MATCH,
        proposer: Callable[[], TokenProposer] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        observer: Callable[[StepReport], None] | None = None,
        failures: Callable[[Exception], None] | None = None,
    ) -> None:
        self._model = model
        self._widths = widths or FullWidth()
        self._acceptance, self._proposer = acceptance, proposer
        self._scheduler = Scheduler(
            model,
            max_batch=max_batch,
            token_budget=token_budget,
            widths=self._widths,
            acceptance=acceptance,
            drafter=proposer is None,
        )
        self._tokenizer = tokenizer
        self._clock = clock
        self._observer, self._failures = observer, failures
        self._next_id = 0
        self._finished: list[Event] = []

    def submit(self, request: Request) -> int:
        """Queue a request and return its id; it may join at any step.

        Raises:
            UsageError: more drafts than the model's block, a prompt that leaves no room for output, a token that
                the vocabulary lacks, a grammar that cannot be used, or stop strings, a grammar or a thinking budget
                without a tokenizer.
            DeviceError: the request cannot fit into the caches even alone.
        """
        block = self._model.block_size
        width = block if request.draft_tokens is None else request.draft_tokens
        if width > block:
            raise UsageError(
                f"{width} draft tokens were asked for, but the model's drafter makes at most {block} "
                "(dspark_block_size in config.json, or an EAGLE drafter's num_draft_tokens)."
            )
        sequence = Sequence(
            id=self._next_id,
            request=request,
            width=width,
            submitted=self._clock(),
            tokens=list(request.prompt),
            text=self._text(request),
            proposer=None if self._proposer is None else self._proposer(),
            edits=edit_state(request, self._model.vocab_size),
            constraint=constraint(
                self._tokenizer,
                grammar=request.grammar,
                thinking=request.starts_thinking,
                thinking_budget=request.thinking_budget,
                stop_ids=request.stop_ids,
            ),
        )
        if request.max_tokens == 0:
            nothing = completion(sequence, FinishReason.LENGTH)
            self._finished.append(FinishedEvent(request_id=sequence.id, completion=nothing))
        else:
            self._scheduler.add(sequence)
        self._next_id += 1
        return sequence.id

    def cancel(self, request_id: int) -> None:
        """Drop a request and free its pages; unknown and finished ids are ignored."""
        sequence = self._scheduler.find(request_id)
        if sequence is not None:
            self._scheduler.remove(sequence)

    @property
    def load(self) -> Load:
        """What it holds now."""
        return self._scheduler.load

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._finished) or self._scheduler.busy

    def run(self) -> Iterator[Event]:
        """Step until every request has ended. Requests may be submitted between events."""
        while self.busy:
            yield from self.step()

    def step(self) -> list[Event]:
        """Run one step and say what came of it."""
        broken = self._propose()  # before anything changes: what a proposer raises leaves nothing half done
        events, self._finished = self._finished, []
        events += broken
        if self._scheduler.busy:
            events += self._run(self._scheduler.plan())
        return events

    def _propose(self) -> list[Event]:
        """Drafts of the requests that have a proposer of their own."""
        broken: list[Event] = []
        for sequence in self._scheduler.decoding:
            if sequence.proposer is None or sequence.proposed_at == len(sequence.tokens):
                continue
            try:
                drafts = sequence.proposer.propose(tuple(sequence.tokens), sequence.width)
                sequence.drafts = checked(drafts, self._model)
            except Exception as error:
                if self._failures is None:
                    raise
                broken.append(self._failed(sequence, error))
                continue
            sequence.proposed_at = len(sequence.tokens)
            if self._acceptance is not Acceptance.MATCH:
                sequence.draft_probs = certain(sequence.drafts, self._model.vocab_size)
        return broken

    def _run(self, plan: Plan) -> list[Event]:
        timed = self._widths.timed or self._observer is not None
        try:
            rows = [self._scheduler.row(work) for work in plan.works]
            start = self._clock() if timed else 0.0
            result = self._model.step(rows, width=plan.width, draft=plan.draft)
        except Exception as error:
            if self._failures is None:
                raise
            if len(plan.works) == 1:
                return [self._failed(plan.works[0].sequence, error)]
            # Nothing is committed yet, and a step writes only behind what is, so it may run again in parts.
            return [event for work in plan.works for event in self._run(plan.alone(work))]
        now = self._clock()
        if self._widths.timed and all(work.yields and work.count == 1 for work in plan.works):
            self._widths.record(len(rows), plan.width, now - start, draft=plan.draft)
        if self._observer is not None:
            self._observer(plan.report(now - start))
        events: list[Event] = []
        for index, work in enumerate(plan.works):
            try:
                events += self._apply(work, index, result, now, plan.width)
            except Exception as error:
                if self._failures is None:
                    raise
                events.append(self._failed(work.sequence, error))
        return events

    def _failed(self, sequence: Sequence, error: Exception) -> FailedEvent:
        assert self._failures is not None
        self._failures(error)
        self.cancel(sequence.id)
        return FailedEvent(
            request_id=sequence.id,
            message=f"The engine failed on this request ({type(error).__name__}: {error}). Other requests are not "
            "affected; the log of the engine says more.",
        )

    def _apply(self, work: Work, index: int, result: StepResult, now: float, width: int) -> list[Event]:
        sequence = work.sequence
        if not result.finite[index]:
            self._scheduler.remove(sequence)
            first = index * (width + 1)
            raw = None if result.logits is None else result.logits()[first : first + 1 + len(work.drafts)]
            return [FailedEvent(request_id=sequence.id, message=not_finite(sequence, raw))]
        if not work.yields:
            sequence.cache_length += work.count
            return []
        accepted = int(result.num_accepted[index])
        if not 0 <= accepted <= len(work.drafts):
            raise RuntimeError(f"the model accepted {accepted} of {len(work.drafts)} drafts")
        committed = (*work.drafts[:accepted], int(result.next_tokens[index]))
        prefilling = sequence.prefilling
        try:
            kept = commit(sequence, committed, max_length=self._model.max_length)
        except ConstraintError as error:
            self._scheduler.remove(sequence)
            return [FailedEvent(request_id=sequence.id, message=str(error))]
        counted, proposed = min(accepted, len(kept.tokens)), len(work.drafts)
        if not prefilling:
            sequence.rounds.append(Round(proposed=proposed, accepted=counted, emitted=len(kept.tokens)))
            if sequence.confidence:
                self._widths.observe(sequence.confidence, proposed, accepted)
        sequence.cache_length += work.count + accepted
        if sequence.proposer is None:
            sequence.drafts = result.next_draft_tokens[index].tolist()
            sequence.confidence = result.confidence[index].tolist()
            if self._acceptance is not Acceptance.MATCH:
                sequence.draft_probs = draft_probs(sequence, index, result)
        said = token_logprobs(sequence.request, kept.tokens, result, index * (width + 1))
        sequence.logprobs += said
        sequence.first_token = now if sequence.first_token is None else sequence.first_token
        sequence.last_token = now
        gained = TokensEvent(
            request_id=sequence.id,
            tokens=kept.tokens,
            drafted=counted,
            proposed=proposed,
            pieces=kept.pieces,
            logprobs=said,
        )
        events: list[Event] = [gained]
        if kept.reason is not None:
            self._scheduler.remove(sequence)
            events.append(FinishedEvent(request_id=sequence.id, completion=completion(sequence, kept.reason)))
        return events

    def _text(self, request: Request) -> OutputText | None:
        if self._tokenizer is not None:
            return OutputText(self._tokenizer, request.stop, include_stop=request.include_stop)
        if request.stop:
            raise UsageError("Stop strings need a tokenizer, and this engine was given none.")
        return None
