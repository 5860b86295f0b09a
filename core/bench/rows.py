"""From runs to the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from statistics import median

from specdecode.core.bench.document import (
    AcceptanceFigures,
    Figure,
    FloorFigures,
    Identical,
    Percentiles,
    Row,
    Seconds,
)
from specdecode.core.bench.measure import Counts, Measured, Played, Run
from specdecode.core.bench.parts import DraftShares, Floor, parts
from specdecode.core.bench.plan import PLAIN, Mode
from specdecode.core.bench.prompt_sets import ALL
from specdecode.core.bench.spread import Spread, percentile
from specdecode.core.metrics import Acceptance

"""The category that holds every prompt."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where and how large: what the rows of one measurement share.

    Attributes:
        floor, shares: by mode; empty for a server, and the floor for several devices, whose memory it does not count.
        names: category -> what its prompts are called.
    """

    devices: str
    batch: int
    temperature: float
    names: Mapping[str, Sequence[str]]
    floors: Mapping[Mode, Floor]
    shares: Mapping[Mode, DraftShares]


def rows(measured: Measured, modes: Sequence[Mode], place: Place) -> list[Row]:
    """A row for each category and mode, then for all categories together where there are several."""
    categories = {name: [name] for name in place.names}
    if len(categories) > 1:
        categories[ALL] = list(place.names)
    found = []
    for category, members in categories.items():
        names = [name for member in members for name in place.names[member]]
        runs = {mode: _together([measured.of(member, mode) for member in members]) for mode in modes}
        found += [_row(category, mode, runs[mode], runs.get(PLAIN), names, place) for mode in modes]
    return found


def _together(repeats: Sequence[Sequence[Run]]) -> list[Run]:
    """Runs of several categories as one run a repeat."""
    return [reduce(add, runs) for runs in zip(*repeats, strict=True)]


def _row(
    category: str, mode: Mode, runs: Sequence[Run], plain: Sequence[Run] | None, names: Sequence[str], place: Place
) -> Row:
    replies = [reply for run in runs for reply in run.replies]
    rates = [run.tokens / run.seconds for run in runs]
    seconds, floor = _inside(mode, runs, place)
    base = None if plain is None or mode.plain else [run.tokens / run.seconds for run in plain]
    return Row(
        devices=place.devices,
        batch=place.batch,
        temperature=place.temperature,
        category=category,
        mode=mode.name,
        method=mode.method,
        draft_tokens=mode.width,
        prompts=len(names),
        failed=sum(any(run.played[at].error for run in runs) for at in range(len(names))),
        tokens=round(median(run.tokens for run in runs)),
        time_to_first_token=_percentiles([r.first_token for r in replies]),
        time_per_output_token=_percentiles([r.per_token for r in replies]),
        tokens_per_second=_figure(rates),
        speed_up=_speed_up(rates, base),
        acceptance=None if mode.plain else _acceptance(runs, mode),
        identical=None if plain is None else _identical(runs, plain[0], names),
        seconds=seconds,
        byte_floor=floor,
    )


def _inside(mode: Mode, runs: Sequence[Run], place: Place) -> tuple[Seconds | None, FloorFigures | None]:
    """What only a model in this process shows."""
    spans = [span for run in runs for span in run.spans]
    if not spans:
        return None, None
    wall, proposing = sum(run.seconds for run in runs), sum(run.proposing for run in runs)
    moved = place.floors[mode].of(spans) if mode in place.floors else None
    divided = Seconds(**asdict(parts(spans, wall, proposing, place.shares.get(mode))))
    return divided, None if moved is None else FloorFigures(bytes_per_step=moved[0], share=moved[1])


def _figure(values: Sequence[float]) -> Figure:
    spread = Spread.of(values)
    return Figure(median=spread.median, mad=spread.mad, values=list(spread.values))


def _speed_up(rates: Sequence[float], base: Sequence[float] | None) -> Figure | None:
    if base is None or not all(base):
        return None
    return _figure([rate / plain for rate, plain in zip(rates, base, strict=True)])


def _percentiles(values: Sequence[float | None]) -> Percentiles:
    known = [value for value in values if value is not None]
    return Percentiles(p50=percentile(known, 0.5), p95=percentile(known, 0.95))


def _acceptance(runs: Sequence[Run], mode: Mode) -> AcceptanceFigures | None:
    last = runs[-1]
    if mode.method == "server":
        return None if last.counts is None else _counted(last.counts, mode)
    known = Acceptance.of(r for reply in last.replies for r in reply.rounds)
    return AcceptanceFigures(
        rounds=known.rounds,
        proposed=known.proposed,
        accepted=known.accepted,
        length=known.length,
        length_with_bonus=known.length_with_bonus,
        rate=known.rate,
        per_position=list(known.per_position),
    )


def _counted(counts: Counts, mode: Mode) -> AcceptanceFigures:
    def over(part: int, whole: int) -> float | None:
        return part / whole if whole else None

    # A server keeps a counter for each position that it could ever draft.
    width = mode.width if isinstance(mode.width, int) else None
    length = over(counts.accepted, counts.drafts)
    return AcceptanceFigures(
        rounds=counts.drafts,
        proposed=counts.draft_tokens,
        accepted=counts.accepted,
        length=length,
        length_with_bonus=None if length is None else 1 + length,
        rate=over(counts.accepted, counts.draft_tokens),
        per_position=[n / counts.drafts for n in counts.per_position[:width]] if counts.drafts else [],
    )


def _identical(runs: Sequence[Run], plain: Run, names: Sequence[str]) -> Identical:
    same, compared, difference = 0, 0, None
    for at, name in enumerate(names):
        known = plain.played[at]
        others = [run.played[at] for run in runs]
        if known.error is not None or any(other.error is not None for other in others):
            continue
        compared += 1
        wrong = next((other for other in others if _outputs(other) != _outputs(known)), None)
        same += wrong is None
        if wrong is not None and difference is None:
            difference = f"{name}: {_where(_outputs(known), _outputs(wrong))}"
    return Identical(same=same, compared=compared, first_difference=difference)


def _outputs(played: Played) -> list[tuple[object, ...]]:
    return [reply.output for reply in played.replies]


def _where(known: Sequence[tuple[object, ...]], other: Sequence[tuple[object, ...]]) -> str:
    for turn, (a, b) in enumerate(zip(known, other, strict=False)):
        if a != b:
            at = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            ends = [f"{side[at]!r}" if at < len(side) else "the end" for side in (a, b)]
            return f"turn {turn + 1}, output {at}: plain {ends[0]}, here {ends[1]}"
    return "another number of turns"
