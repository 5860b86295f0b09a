"""How many drafts to verify: the whole block, those the drafter is sure of, or what pays by measured costs.

Any choice gives the same tokens, even one that looks at every draft: a draft is accepted when it equals the target's
own draw, which is keyed by seed and position, and a mismatch commits that draw. So a policy is about time alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from specdecode.core.engine.costs import StepCosts
from specdecode.core.errors import UsageError

MARGIN = 1.02
"""Plain decoding has to promise this much more before a drafter is given up: costs are measured, and noise is not."""
TRIAL_ROUNDS = 8
"""Rounds that verify everything, before acceptance is known well enough to choose by it."""
REPEATED_TRIAL = 8
"""Every so many steps verify everything: nobody learns of drafts that are not verified."""
NARROWER = 1.04
"""A narrower step has to promise this much more than the whole block: both promises are estimates."""
SMOOTHING = 0.05


@dataclass(frozen=True, kw_only=True)
class Draft:
    """One decoding request as a policy sees it.

    Attributes:
        logits: the drafter's raw confidence in each draft, given that those before it are accepted.
        limit: the most drafts that it may verify.
    """

    logits: Sequence[float]
    limit: int


class WidthPolicy(Protocol):
    """Chooses how many drafts each request of a step verifies, and learns from what came of it.

    Attributes:
        timed: whether it wants `record`.
    """

    @property
    def timed(self) -> bool: ...

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """Drafts to verify, one number a request, at most its limit."""
        ...

    def speculates(self, requests: int) -> bool:
        """Whether a request that starts among so many decoding ones should be drafted for."""
        ...

    def observe(self, logits: Sequence[float], proposed: int, accepted: int) -> None:
        """Of `proposed` drafts with these confidences the first `accepted` were accepted."""
        ...

    def record(self, requests: int, width: int, seconds: float, *, draft: bool) -> None:
        """A step of so many decoding requests and nothing else took this long."""
        ...


class FullWidth:
    """Verifies every draft."""

    timed = False

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        return [draft.limit for draft in drafts]

    def speculates(self, requests: int) -> bool:
        return True

    def observe(self, logits: Sequence[float], proposed: int, accepted: int) -> None:
        pass

    def record(self, requests: int, width: int, seconds: float, *, draft: bool) -> None:
        pass


@dataclass(frozen=True)
class ConfidenceThreshold(FullWidth):
    """Verifies the drafts before the first one whose confidence is below `least`, from 0 to 1.

    Source: DSpark's static threshold; the confidence is the drafter's own, as it was trained.
    """

    least: float

    def __post_init__(self) -> None:
        if not 0 <= self.least <= 1:
            raise UsageError(f"A confidence threshold of {self.least} is outside 0 to 1.")

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        return [self._sure(draft) for draft in drafts]

    def _sure(self, draft: Draft) -> int:
        for place, logit in enumerate(draft.logits[: draft.limit]):
            if _probability(logit) < self.least:
                return place
        return min(draft.limit, len(draft.logits))


@dataclass(kw_only=True)
class AutoWidth:
    """Verifies as many drafts as bring the most tokens per second, none at all where plain decoding is faster.

    Expected tokens come from the drafter's confidences, corrected per position by what was really accepted; seconds
    are those that steps took.

    Attributes:
        costs: seconds of a step by its requests and width.
        block: the most drafts of a round.
    """

    costs: StepCosts
    block: int
    timed: bool = True
    _shift: list[float] = field(init=False)
    _survival: list[float] = field(init=False)
    _decided: list[int] = field(init=False)
    _rounds: int = 0
    _steps: int = 0

    def __post_init__(self) -> None:
        self._shift = [0.0] * self.block
        self._survival = [1.0] * self.block
        self._decided = [0] * self.block

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """One width for the step, because a row is padded to the widest; see `WidthPolicy.choose`."""
        self._steps += 1
        if self._rounds < TRIAL_ROUNDS or self._steps % REPEATED_TRIAL == 0:
            return [draft.limit for draft in drafts]
        survivals = [self._survivals(draft) for draft in drafts]
        widest = max((len(row) for row in survivals), default=0)
        tokens, rates = float(len(drafts)), []
        for width in range(widest + 1):
            if width:
                tokens += sum(row[width - 1] for row in survivals if len(row) >= width)
            rates.append(tokens / self.costs.speculative(len(drafts), width))
        best = max(range(widest + 1), key=rates.__getitem__)
        if rates[best] < NARROWER * rates[widest]:
            best = widest
        return [min(best, len(row)) for row in survivals]

    def speculates(self, requests: int) -> bool:
        """Whether drafting promises more than plain decoding, by the acceptance seen so far."""
        if self._rounds < TRIAL_ROUNDS:
            return True
        tokens, best = 1.0, 0.0
        for width in range(self.block + 1):
            tokens += self._survival[width - 1] if width else 0.0
            best = max(best, tokens / self.costs.speculative(requests, width))
        return best * MARGIN >= 1 / self.costs.plain(requests)

    def observe(self, logits: Sequence[float], proposed: int, accepted: int) -> None:
        """Corrects the confidences: a step of gradient descent on the log loss of every draft that was decided."""
        self._rounds += 1
        for place in range(min(proposed, accepted + 1)):
            hit = 1.0 if place < accepted else 0.0
            rate = 0.2 + 2 / (1 + self._decided[place])
            self._shift[place] += rate * (hit - _probability(logits[place] + self._shift[place]))
            self._decided[place] += 1
        product = 1.0
        for place, logit in enumerate(logits[: self.block]):
            product *= _probability(logit + self._shift[place])
            self._survival[place] += SMOOTHING * (product - self._survival[place])

    def record(self, requests: int, width: int, seconds: float, *, draft: bool) -> None:
        self.costs.record(requests, width, seconds, draft=draft)

    def _survivals(self, draft: Draft) -> list[float]:
        """The chance that draft 1, 2, … and all before it are accepted."""
        product, survivals = 1.0, []
        for place, logit in enumerate(draft.logits[: draft.limit]):
            product *= _probability(logit + self._shift[place])
            survivals.append(product)
        return survivals


def _probability(logit: float) -> float:
    if logit < 0:
        grown = math.exp(max(logit, -60.0))
        return grown / (1 + grown)
    return 1 / (1 + math.exp(-min(logit, 60.0)))
