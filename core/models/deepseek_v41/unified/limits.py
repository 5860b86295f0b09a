"""What requests change of the target's law, as graph inputs; the kernels apply it to every verified row alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdecode.core.engine.edits import LogitEdits
from specdecode.core.engine.step import StepRow

UNLIMITED: dict[str, tuple[Any, bool, float]] = {
    "top_k": (np.int64, True, -1),
    "max_k": (np.int64, False, -1),
    "top_p": (np.float32, True, 1),
    "min_top_p": (np.float32, False, 1),
    "min_p": (np.float32, True, 0),
    "acceptance": (np.int32, True, 0),
}
"""Per input its type, whether it holds one value a request, and the value that limits nothing."""

SMALLEST = 16
"""Edits are padded to a power of two, this at least, so that shapes of steps come back."""


def limits(rows: Sequence[StepRow], vocab_size: int) -> dict[str, Sequence[float] | float]:
    """Values of these inputs; none where no row has a limit or a rule of its own."""
    if not any(row.top_k > 0 or row.top_p < 1 or row.min_p > 0 or row.acceptance for row in rows):
        return {}
    top_k = [min(row.top_k, vocab_size) if row.top_k > 0 else -1 for row in rows]
    top_p = [row.top_p for row in rows]
    largest = -1 if min(top_k) < 0 else max(top_k)
    return {
        "top_k": top_k,
        "max_k": largest,
        "top_p": top_p,
        "min_top_p": min(top_p),
        "min_p": [row.min_p for row in rows],
        "acceptance": [int(row.acceptance) for row in rows],
    }


def edits_size(rows: Sequence[StepRow]) -> int:
    """Room for the edits of all rows: 0, or a power of two."""
    count = sum(len(row.edits.tokens) for row in rows if row.edits is not None)
    return 0 if count == 0 else max(SMALLEST, 1 << (count - 1).bit_length())


def fill_edits(rows: Sequence[StepRow], arrays: dict[str, NDArray[Any]]) -> None:
    """Write the rows' edits one behind the other; what is left of the arrays belongs to no request."""
    end = 0
    arrays["edit_offsets"][0] = 0
    for place, row in enumerate(rows):
        edits = row.edits or _NOTHING
        begin, end = end, end + len(edits.tokens)
        arrays["edit_offsets"][place + 1] = end
        arrays["edit_tokens"][begin:end] = edits.tokens
        arrays["edit_marks"][begin:end] = edits.marks
        arrays["edit_bias"][begin:end] = edits.bias
        taken = edits.penalties
        arrays["penalties"][place] = (taken.repetition, taken.frequency, taken.presence)
        arrays["free_from"][place] = edits.free_from


def probs_rows(rows: Sequence[StepRow], width: int) -> int:
    """Rows of drafters' probabilities per request: the width, or none where no request tests ratios."""
    return width if any(row.draft_probs is not None for row in rows) else 0


def mask_rows(rows: Sequence[StepRow], width: int) -> int:
    """Rows of grammar masks per request: one a verified row, or none where no request has a grammar."""
    return width + 1 if any(row.mask is not None for row in rows) else 0


_NOTHING = LogitEdits(tokens=np.zeros(0, np.int32), marks=np.zeros(0, np.int32), bias=np.zeros(0, np.float32))
