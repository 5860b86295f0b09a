"""Modes of decoding the same prompts, in turn, each repeat from a cold start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from specdecode.core.bench.plan import Mode, groups, rotated
from specdecode.core.bench.timed import Span
from specdecode.core.metrics import Round

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answered turn.

    Attributes:
        output: what may not differ between modes: token ids, or the text where a server tells no ids; and why it ended.
        tokens: output tokens.
        first_token, per_token: seconds; None where there were too few tokens.
        rounds: verification rounds, where they are known.
    """

    output: tuple[object, ...]
    tokens: int
    first_token: float | None
    per_token: float | None
    rounds: tuple[Round, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Played:
    """What came of one prompt: its turns, and why it has not all of them."""

    replies: tuple[Reply, ...]
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a server's counters of speculation grew by."""

    drafts: int
    draft_tokens: int
    accepted: int
    per_position: tuple[int, ...]

    def __add__(self, other: Counts) -> Counts:
        size = max(len(self.per_position), len(other.per_position))
        mine, others = ((*c.per_position, *[0] * (size - len(c.per_position))) for c in (self, other))
        return Counts(
            drafts=self.drafts + other.drafts,
            draft_tokens=self.draft_tokens + other.draft_tokens,
            accepted=self.accepted + other.accepted,
            per_position=tuple(a + b for a, b in zip(mine, others, strict=True)),
        )


@dataclass(frozen=True, kw_only=True)
class Run:
    """Prompts that one mode has answered once.

    Attributes:
        seconds: of all of it, prompts included.
        played: one a prompt, in order.
        spans, proposing: what a `TimedModel` noted; empty for a server.
        counts: a server's own counters, where it has some.
    """

    seconds: float
    played: tuple[Played, ...]
    spans: tuple[Span, ...] = ()
    proposing: float = 0.0
    counts: Counts | None = None

    def __add__(self, other: Run) -> Run:
        both = [counts for counts in (self.counts, other.counts) if counts is not None]
        return Run(
            seconds=self.seconds + other.seconds,
            played=self.played + other.played,
            spans=self.spans + other.spans,
            proposing=self.proposing + other.proposing,
            counts=sum(both[1:], both[0]) if both else None,
        )

    @property
    def replies(self) -> list[Reply]:
        """Of all prompts that were answered to their ends."""
        return [reply for played in self.played if played.error is None for reply in played.replies]

    @property
    def tokens(self) -> int:
        return sum(reply.tokens for reply in self.replies)


class Arm(Protocol[T_contra]):
    """One mode on one model or server."""

    @property
    def mode(self) -> Mode: ...

    def start(self) -> None:
        """Forget what was learned: a repeat begins."""
        ...

    def run(self, prompts: Sequence[T_contra]) -> Run:
        """Answer prompts that start together."""
        ...


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Runs by category and mode, one a repeat."""

    runs: Mapping[tuple[str, Mode], list[Run]]

    def of(self, category: str, mode: Mode) -> list[Run]:
        return self.runs[category, mode]


def measure(
    arms: Sequence[Arm[T]],
    categories: Mapping[str, Sequence[T]],
    *,
    batch: int,
    repeats: int,
    warm_up: int,
    advance: Callable[[str], None],
) -> Measured:
    """Run every category by every arm, in turn group by group; which arm begins changes from group to group.

    Args:
        categories: name -> prompts; `batch` of them start together.
        warm_up: runs of the first group before anything counts.
        advance: told before each run which one it is; there are `count_runs` of them.
    """
    first = groups(next(iter(categories.values())), batch)[0]
    for _ in range(warm_up):
        for arm in arms:
            advance(f"warm-up, {arm.mode.name}")
            arm.start()
            arm.run(first)
    found: dict[tuple[str, Mode], list[Run]] = {(name, arm.mode): [] for name in categories for arm in arms}
    turn = 0
    for repeat in range(repeats):
        for name, prompts in categories.items():
            for arm in arms:
                arm.start()
            now: dict[Mode, Run] = {}
            for group in groups(prompts, batch):
                for arm in rotated(arms, turn):
                    advance(f"repeat {repeat + 1}, {name}, {arm.mode.name}")
                    run = arm.run(group)
                    now[arm.mode] = now[arm.mode] + run if arm.mode in now else run
                turn += 1
            for mode, run in now.items():
                found[name, mode].append(run)
    return Measured(runs=found)


def count_runs(categories: Mapping[str, Sequence[T]], *, arms: int, batch: int, repeats: int, warm_up: int) -> int:
    """How often `measure` runs an arm."""
    return arms * (warm_up + repeats * sum(len(groups(prompts, batch)) for prompts in categories.values()))
