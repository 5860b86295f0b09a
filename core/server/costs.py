"""How a step's seconds are shared out between verifying and drafting, which one graph does without a pause.

Steps were timed when the server started (`core/engine/costs.py`), among them steps that verify nothing, with and
without drafting the next block. Their difference is what drafting costs.
"""

from __future__ import annotations

from dataclasses import dataclass

from specdecode.core.engine.costs import StepCosts
from specdecode.core.engine.report import StepReport


@dataclass(kw_only=True)
class Spent:
    """Seconds of the steps that a request decoded in; it shared each of them with its neighbours.

    Attributes:
        draft: None where steps could not be timed beforehand, so that nobody knows.
    """

    steps: int = 0
    seconds: float = 0.0
    draft: float | None = 0.0

    @property
    def verify(self) -> float | None:
        """What is not drafting."""
        return None if self.draft is None else self.seconds - self.draft

    def add(self, seconds: float, draft: float | None) -> None:
        """One more step."""
        self.steps += 1
        self.seconds += seconds
        self.draft = None if self.draft is None or draft is None else self.draft + draft


def draft_seconds(costs: StepCosts | None, report: StepReport) -> float | None:
    """The drafting share of a step; 0 where it drafted nothing, None where costs are not known."""
    if not report.drafts:
        return 0.0
    requests = len(report.decoding)
    if costs is None or requests == 0:
        return None
    drafting = max(0.0, costs.speculative(requests, 0) - costs.plain(requests))
    if report.prefilling:  # a step of unknown cost: drafting is taken to have cost what it does otherwise
        return min(report.seconds, drafting)
    return report.seconds * min(1.0, drafting / costs.speculative(requests, report.width))


def total(parts: list[Spent]) -> Spent:
    """Of several answers together."""
    known = [part.draft for part in parts if part.draft is not None]
    return Spent(
        steps=sum(part.steps for part in parts),
        seconds=sum(part.seconds for part in parts),
        draft=sum(known) if len(known) == len(parts) else None,
    )
