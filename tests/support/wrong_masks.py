"""Toy models that apply masks with one deliberate mistake each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specdecode.core.engine.step import StepRow

from .toy import ToyModel


class MasksAreNotAdvanced(ToyModel):
    """Every verified row has the mask of the committed tokens, as if drafts moved no grammar."""

    def _target(self, row: StepRow, position: int, batch: int) -> int:
        mask = None if row.mask is None else np.tile(row.mask[:1], (len(row.mask), 1))
        return super()._target(replace(row, mask=mask), position, batch)


class BonusIsFree(ToyModel):
    """The row behind the last draft is not masked, unless there are no drafts."""

    def _target(self, row: StepRow, position: int, batch: int) -> int:
        bonus = len(row.draft_tokens) > 0 and position == row.cache_length + len(row.tokens) - 1 + len(row.draft_tokens)
        return super()._target(replace(row, mask=None) if bonus else row, position, batch)


class MasksAfterDrawing(ToyModel):
    """Draws from everything, and takes the lowest legal token where what it drew is forbidden."""

    def _target(self, row: StepRow, position: int, batch: int) -> int:
        token = super()._target(replace(row, mask=None), position, batch)
        if row.mask is None:
            return token
        mask = row.mask[position - row.cache_length - len(row.tokens) + 1]
        legal = [v for v in range(self.vocab_size) if mask[v // 32] >> (v % 32) & 1]
        return token if token in legal else legal[0]
