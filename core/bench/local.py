"""Modes that decode on a model in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from specdecode.core.bench.measure import Played, Run
from specdecode.core.bench.plan import Mode
from specdecode.core.bench.timed import TimedModel
from specdecode.core.engine.costs import StepCosts
from specdecode.core.engine.engine import Engine
from specdecode.core.engine.ngram import PromptLookup
from specdecode.core.engine.proposer import TokenProposer
from specdecode.core.engine.widths import AutoWidth, WidthPolicy
from specdecode.core.text.grammar_compiler import Vocabulary

T = TypeVar("T")
Play = Callable[[Engine, Sequence[T], int | None], list[Played]]
"""Run prompts through an engine to their ends, each with so many drafts a round at most (None = the engine's most)."""


class LocalArm(Generic[T]):
    """An `Arm` on a model.

    Args:
        costs: step costs of this batch size, for automatic widths; what a run adds to them stays within it.
        play: how a prompt becomes requests.
    """

    def __init__(
        self,
        mode: Mode,
        model: TimedModel,
        *,
        batch: int,
        tokenizer: Vocabulary | None,
        costs: StepCosts | None,
        play: Play[T],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.mode = mode
        self._model, self._batch, self._tokenizer = model, batch, tokenizer
        self._costs, self._play, self._clock = costs, play, clock
        self._widths: WidthPolicy | None = None

    def start(self) -> None:
        """Begin with a width policy that knows the costs of steps and nothing of these prompts."""
        if self.mode.width == "auto" and self._costs is not None:
            costs = replace(self._costs, plain_points=dict(self._costs.plain_points), points=dict(self._costs.points))
            self._widths = AutoWidth(costs=costs, block=self._model.block_size)

    def run(self, prompts: Sequence[T]) -> Run:
        """Answer prompts that start together, by an engine of their own: nothing is left of earlier ones."""
        engine = Engine(
            self._model,
            max_batch=self._batch,
            tokenizer=self._tokenizer,
            widths=self._widths,
            proposer=self._proposer if self.mode.method == "ngram" else None,
        )
        self._model.take()
        start = self._clock()
        played = self._play(engine, prompts, self.mode.width if isinstance(self.mode.width, int) else None)
        seconds = self._clock() - start
        spans, proposing = self._model.take()
        return Run(seconds=seconds, played=tuple(played), spans=tuple(spans), proposing=proposing)

    def _proposer(self) -> TokenProposer:
        return self._model.timed(PromptLookup())
