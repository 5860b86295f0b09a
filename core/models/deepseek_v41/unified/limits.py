"""What requests limit the target's draws to, as graph inputs; the kernels apply it to every verified row alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from specdecode.core.engine.step import StepRow

UNLIMITED: dict[str, tuple[Any, bool, int]] = {
    "top_k": (np.int64, True, -1),
    "max_k": (np.int64, False, -1),
    "top_p": (np.float32, True, 1),
    "min_top_p": (np.float32, False, 1),
}
"""Per input its type, whether it holds one value a request, and the value that limits nothing."""


def limits(rows: Sequence[StepRow], vocab_size: int) -> dict[str, Sequence[float] | float]:
    """Values of these inputs; none where no row has a limit."""
    if not any(row.top_k > 0 or row.top_p < 1 for row in rows):
        return {}
    top_k = [min(row.top_k, vocab_size) if row.top_k > 0 else -1 for row in rows]
    top_p = [row.top_p for row in rows]
    largest = -1 if min(top_k) < 0 else max(top_k)
    return {"top_k": top_k, "max_k": largest, "top_p": top_p, "min_top_p": min(top_p)}
