"""Toy models with one deliberate mistake each; a test that cannot tell them from `ToyModel` is worthless."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specdecode.core.engine.step import StepRow

from .toy import ToyModel, gumbel, limited


class RedrawsMismatch(ToyModel):
    """Draws the corrected token anew instead of committing the sample that was compared."""

    def _corrected(self, row: StepRow, token: int, position: int, *, rejected: bool) -> int:
        if not rejected or row.temperature == 0:
            return token
        before, last = self._read(row, position - 1), self._read(row, position)
        return self.tables.sample(
            self.tables.target,
            before,
            last,
            position=position + 1,
            seed=row.seed + 1,
            temperature=row.temperature,
        )


class DependsOnBatch(ToyModel):
    """Computes a row otherwise when others are in the call, like a kernel with a varying order of sums."""

    def _target(self, row: StepRow, position: int, batch: int) -> int:
        token = super()._target(row, position, batch)
        return (token + 1) % self.vocab_size if batch > 1 and position % 3 == 0 else token


class DrawsByStep(ToyModel):
    """Keys its draws by how many steps the engine has run instead of by position."""

    def _target(self, row: StepRow, position: int, batch: int) -> int:
        before, last = self._read(row, position - 1), self._read(row, position)
        return self._sample(row, self.tables.target, before, last, len(self.steps) + 1000)


class AcceptsOneTooMany(ToyModel):
    """Accepts a draft that the target would not have sampled, once in a while."""

    def _target(self, row: StepRow, position: int, batch: int) -> int:
        token = super()._target(row, position, batch)
        place = position - row.cache_length - len(row.tokens) + 1
        return row.draft_tokens[place] if place == 1 < len(row.draft_tokens) else token


class LimitsFirstRowOnly(ToyModel):
    """Applies top_k and top_p at the first verified row of a step, and draws from all tokens at those behind it."""

    def _target(self, row: StepRow, position: int, batch: int) -> int:
        if position == row.cache_length + len(row.tokens) - 1:
            return super()._target(row, position, batch)
        return super()._target(replace(row, top_k=0, top_p=1.0), position, batch)


class LimitsAtUnitTemperature(ToyModel):
    """Measures the mass of top_p at temperature 1 instead of at the request's."""

    def _target(self, row: StepRow, position: int, batch: int) -> int:
        before, last = self._read(row, position - 1), self._read(row, position)
        logits = limited(self.tables.target[before, last], 1.0, row.top_k, row.top_p)
        return int(np.argmax(logits / row.temperature + gumbel(row.seed, position + 1, len(logits))))


class HotterThanAsked(ToyModel):
    """Draws from the right tokens with the chances of a higher temperature."""

    def _target(self, row: StepRow, position: int, batch: int) -> int:
        return super()._target(replace(row, temperature=1.3 * row.temperature), position, batch)


class PenalisesOncePerRound(ToyModel):
    """Counts committed tokens only: a token of the block costs nothing at the rows behind it."""

    def _counted(self, row: StepRow, place: int) -> list[int]:
        return []


class CountsTheLastTokenTwice(ToyModel):
    """Counts the newest draft twice."""

    def _counted(self, row: StepRow, place: int) -> list[int]:
        drafts = list(row.draft_tokens[:place])
        return [*drafts, *drafts[-1:]]
