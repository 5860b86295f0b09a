"""A request decoded plainly, with the caches kept as they were at every position.

Any step of the request can then be run again in any company: its pages are put back first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from max.driver import Buffer
from numpy.typing import NDArray

from specdecode.core.engine.request import Request
from specdecode.core.engine.step import StepResult, StepRow
from specdecode.core.models.deepseek_v41.unified.model import UnifiedDSparkDeepseekV41Model, result_of


@dataclass(kw_only=True)
class Trajectory:
    """One request, its tokens, and per cached length the bytes of its pages.

    Attributes:
        logits: position -> the logits that its token was drawn from.
        drafts: committed length -> (drafts, confidence) after it, as first seen.
    """

    model: UnifiedDSparkDeepseekV41Model
    request: Request
    pages: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    snapshots: list[dict[str, NDArray[np.float32]]] = field(default_factory=list)
    logits: dict[int, bytes] = field(default_factory=dict)
    drafts: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: UnifiedDSparkDeepseekV41Model, request: Request, pages: Sequence[int]) -> Trajectory:
        """Run a request alone, one token a step, in caches full of NaN.

        Snapshots hold something else in the same places, so a row that is read before it is written shows.
        """
        new = cls(model=model, request=request, pages=tuple(pages), tokens=list(request.prompt))
        write_pages(model, new.pages, dict.fromkeys(model.leaves, np.float32(np.nan)))
        while len(new.tokens) < len(request.prompt) + request.max_tokens:
            at = len(new.snapshots)
            new.snapshots.append(
                {name: np.nan_to_num(leaf[list(pages)], nan=7.0) for name, leaf in leaves_of(model).items()}
            )
            # A step that drafts keeps the drafter's context too, without which later drafts depend on where it began.
            result, logits = run(model, [new.row(at)], width=0, draft=True)
            assert result.finite[0]
            new.logits[at + 1] = logits[0, 0].tobytes()
            if at + 1 == len(new.tokens):
                new.tokens.append(int(result.next_tokens[0]))
        return new

    def row(self, at: int, count: int = 1, drafts: Sequence[int] = ()) -> StepRow:
        """The step that runs `count` tokens from position `at` on and verifies `drafts` behind them."""
        return StepRow(
            tokens=self.tokens[at : at + count],
            cache_length=at,
            pages=self.pages,
            draft_tokens=tuple(drafts),
            lookback=self.tokens[max(0, at - self.model.lookback_length) : at],
            seed=self.request.seed,
            temperature=self.request.temperature,
        )

    def rewind(self, at: int) -> None:
        """Put the pages back as they were with `at` tokens cached."""
        write_pages(self.model, self.pages, self.snapshots[at])


def leaves_of(model: UnifiedDSparkDeepseekV41Model) -> dict[str, NDArray[np.float32]]:
    """The caches on the host; on the CPU over the same memory."""
    return {name: leaf.to_numpy() for name, leaf in model.leaves.items()}


def write_pages(
    model: UnifiedDSparkDeepseekV41Model,
    pages: Sequence[int],
    content: Mapping[str, NDArray[np.float32] | np.float32],
) -> None:
    """Overwrite pages of every cache leaf."""
    for name, array in leaves_of(model).items():
        array[list(pages)] = content[name]
        if not model.leaves[name].device.is_host:
            model.leaves[name].inplace_copy_from(Buffer.from_numpy(array))
            model.leaves[name].device.synchronize()


def run(
    model: UnifiedDSparkDeepseekV41Model, rows: Sequence[StepRow], *, width: int, draft: bool
) -> tuple[StepResult, NDArray[np.float32]]:
    """One step's results, and its logits [B, K + 1, V]."""
    outputs = model.run(rows, width=width, draft=draft)
    return result_of(outputs, draft=draft), outputs.logits.to_numpy().reshape(len(rows), width + 1, -1)
