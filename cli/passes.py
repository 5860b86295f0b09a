"""One pass of prompts through an engine, turn after turn, and what came of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from specdecode.cli.interrupts import raised_interrupts
from specdecode.cli.jobs import Job, next_turn
from specdecode.core.engine.engine import Engine
from specdecode.core.engine.request import Completion, Event, FailedEvent, FinishedEvent, TokensEvent
from specdecode.core.errors import SpecdecodeError
from specdecode.core.text.answer import Answer
from specdecode.core.text.dialogue import Dialogue


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One answered turn.

    Attributes:
        said: what it asked.
        prompt_tokens: how long its prompt was.
        answer: the text taken apart; None where the prompt was not encoded.
    """

    said: str
    prompt_tokens: int
    completion: Completion
    answer: Answer | None


@dataclass(kw_only=True)
class Outcome:
    """What came of one prompt; it is done if nothing went wrong and all its turns are answered."""

    turns: list[Turn] = field(default_factory=list)
    error: str | None = "interrupted"

    @property
    def done(self) -> bool:
        return self.error is None


class Listener(Protocol):
    """Who hears of a pass, by the numbers of prompts."""

    def tokens(self, number: int, event: TokensEvent) -> None:
        """A prompt's text goes on."""

    def turn(self, number: int) -> None:
        """A turn is over and another follows."""

    def ended(self, number: int, outcome: Outcome) -> None:
        """A prompt is done or has failed."""


class Silent:
    """Hears nothing."""

    def tokens(self, number: int, event: TokensEvent) -> None: ...
    def turn(self, number: int) -> None: ...
    def ended(self, number: int, outcome: Outcome) -> None: ...


class Pass:
    """Run jobs to their ends, or until interrupted; what has finished by then is kept.

    Attributes:
        outcomes: one a job, in their order.
        interrupted: whether Ctrl-C ended it.
    """

    def __init__(self, jobs: Sequence[Job], engine: Engine, listener: Listener) -> None:
        self.outcomes = [Outcome() for _ in jobs]
        self.interrupted = False
        self._jobs = jobs
        self._engine = engine
        self._listener = listener
        self._dialogues = [job.dialogue() for job in jobs]
        self._running: dict[int, int] = {}

    def run(self) -> None:
        """Run; `outcomes` says what came of it."""
        try:
            with raised_interrupts():
                for number in range(len(self._jobs)):
                    self._submit(number)
                for event in self._engine.run():
                    self._take(event, self._running[event.request_id])
        except KeyboardInterrupt:
            self.interrupted = True

    @property
    def completions(self) -> list[Completion]:
        """Those of all prompts that are done."""
        return [turn.completion for outcome in self.outcomes if outcome.done for turn in outcome.turns]

    def _submit(self, number: int) -> None:
        request = next_turn(self._jobs[number], self._dialogues[number])
        self._running[self._engine.submit(request)] = number

    def _take(self, event: Event, number: int) -> None:
        if isinstance(event, TokensEvent):
            self._listener.tokens(number, event)
        elif isinstance(event, FailedEvent):
            self._fail(number, event.message)
        else:
            self._finish(number, event)

    def _finish(self, number: int, event: FinishedEvent) -> None:
        dialogue, outcome, text = self._dialogues[number], self.outcomes[number], event.completion.text
        outcome.turns.append(self._turn(dialogue, event.completion))
        if not dialogue.more:
            outcome.error = None
            self._listener.ended(number, outcome)
            return
        dialogue.take(text)
        self._listener.turn(number)
        try:
            self._submit(number)
        except SpecdecodeError as error:
            # The conversation has outgrown the context; what was answered so far is no answer to the whole.
            self._fail(number, f"turn {len(outcome.turns) + 1}: {error}")

    def _turn(self, dialogue: Dialogue, completion: Completion) -> Turn:
        answer = dialogue.answer(completion.text)
        return Turn(said=dialogue.said, prompt_tokens=len(dialogue.ids()), completion=completion, answer=answer)

    def _fail(self, number: int, message: str) -> None:
        self.outcomes[number].error = message
        self._listener.ended(number, self.outcomes[number])
