"""Acceptance and time, each figure with the definition it is computed by.

Tools disagree on what "acceptance length" counts, so a report prints `DEFINITIONS` beside its numbers
and gives both conventions, with and without the bonus token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

DEFINITIONS: dict[str, str] = {
    "tokens": "output tokens kept, end-of-sequence included",
    "rounds": "verification steps of a request with at least one proposed draft",
    "proposed": "draft tokens handed to verification",
    "accepted": "draft tokens that were accepted and kept; what follows an end of sequence is not counted",
    "acceptance length": "accepted / rounds (without bonus); tokens emitted by rounds / rounds (with "
    "bonus: the target's "
    "own token that closes a round is counted)",
    "acceptance rate": "accepted / proposed",
    "accepted at position k": "rounds that accepted draft k / rounds that proposed it",
    "accepted at position k, given those before": "rounds that accepted draft k / "
    "rounds that accepted draft k-1 and proposed draft k",
    "time to first token": "from handing a request to the engine to its first output token",
    "time per output token": "time from a request's first to its last token / (its tokens - 1)",
}


@dataclass(frozen=True, kw_only=True)
class Round:
    """One decoding step of one request.

    Attributes:
        proposed: draft tokens handed to verification; 0 in plain decoding.
        accepted: drafts accepted and kept, 0 … proposed.
        emitted: tokens kept: accepted + 1, or accepted alone where an accepted draft ended the sequence.
    """

    proposed: int
    accepted: int
    emitted: int

    @property
    def cut(self) -> bool:
        """Whether an accepted draft ended the sequence, so that the drafts after it were never judged."""
        return self.emitted == self.accepted and self.proposed > 0

    @property
    def judged(self) -> int:
        """Drafts with a verdict: the accepted ones and the first rejected one."""
        return self.accepted if self.cut else min(self.proposed, self.accepted + 1)


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Acceptance over any number of rounds; ratios are None where nothing was counted.

    Attributes:
        rounds, proposed, accepted, emitted: sums; see `DEFINITIONS`.
        length: mean accepted drafts per round, without the bonus token.
        length_with_bonus: mean tokens emitted per round.
        rate: accepted / proposed.
        histogram: [k] = rounds that accepted exactly k drafts; sums to `rounds`.
        per_position: [k-1] = share of rounds that accepted draft k, among those that proposed it and were
            not ended by an earlier draft.
        per_position_conditional: the same, among rounds that accepted all drafts before k.
    """

    rounds: int
    proposed: int
    accepted: int
    emitted: int
    length: float | None
    length_with_bonus: float | None
    rate: float | None
    histogram: tuple[int, ...]
    per_position: tuple[float, ...]
    per_position_conditional: tuple[float, ...]

    @classmethod
    def of(cls, rounds: Iterable[Round]) -> Acceptance:
        """Sum up rounds; those without a proposal (plain steps, the last token of a budget) do not count."""
        counted = [r for r in rounds if r.proposed > 0]
        proposed = sum(r.proposed for r in counted)
        accepted = sum(r.accepted for r in counted)
        emitted = sum(r.emitted for r in counted)
        width = max((r.proposed for r in counted), default=0)
        positions = range(1, width + 1)
        accepted_at = [sum(r.accepted >= k for r in counted) for k in positions]
        reached = [sum(k <= (r.accepted if r.cut else r.proposed) for r in counted) for k in positions]
        judged = [sum(r.judged >= k for r in counted) for k in positions]
        return cls(
            rounds=len(counted),
            proposed=proposed,
            accepted=accepted,
            emitted=emitted,
            length=_ratio(accepted, len(counted)),
            length_with_bonus=_ratio(emitted, len(counted)),
            rate=_ratio(accepted, proposed),
            histogram=tuple(sum(r.accepted == k for r in counted) for k in ((0, *positions) if counted else ())),
            per_position=_shares(accepted_at, reached),
            per_position_conditional=_shares(accepted_at, judged),
        )


@dataclass(frozen=True, kw_only=True)
class Timing:
    """When a request's tokens came, in seconds after it was submitted; None where there was no token."""

    first_token: float | None
    last_token: float | None
    tokens: int

    @property
    def per_token(self) -> float | None:
        """Time per output token after the first; None with fewer than two tokens."""
        if self.first_token is None or self.last_token is None or self.tokens < 2:
            return None
        return (self.last_token - self.first_token) / (self.tokens - 1)


def median(values: Sequence[float]) -> float | None:
    """The middle value, or None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _shares(parts: Sequence[int], wholes: Sequence[int]) -> tuple[float, ...]:
    """Ratios up to the first position that nothing reached."""
    shares = []
    for part, whole in zip(parts, wholes, strict=True):
        if whole == 0:
            break
        shares.append(part / whole)
    return tuple(shares)
