"""What a step costs by its number of requests and its width: measured once at the start, then kept up to date."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specdecode.core.cache.pages import dealt
from specdecode.core.engine.step import StepModel, StepRow

TRIALS = 5
SMOOTHING = 0.05
PACE_SMOOTHING = 0.3
OUTLIER = 2.0
"""A step that took this many times what was expected says something about the machine, not about the step."""


@dataclass(kw_only=True)
class StepCosts:
    """Seconds of a step of decoding requests, each with one new token.

    Measured points are met exactly; between and beyond them a cost is linear in the rows that a step runs, requests
    times (1 + width). Every later measurement moves its own point, less what all steps have become slower or faster by
    of late: a machine whose speed wanders would otherwise speak against whatever width was in use.

    Attributes:
        plain_points: requests -> seconds without drafts and without drafting.
        points: (requests, width) -> seconds with drafting the next block.
    """

    plain_points: dict[int, float]
    points: dict[tuple[int, int], float]
    _known: dict[tuple[int, int], float] = field(default_factory=dict)
    _pace: float = 1.0

    def plain(self, requests: int) -> float:
        """Seconds of a plain step."""
        return _linear({float(n): cost for n, cost in self.plain_points.items()}, requests)

    def speculative(self, requests: int, width: int) -> float:
        """Seconds of a step that verifies `width` drafts a request and drafts the next block."""
        known = self._known.get((requests, width))
        if known is None:
            sizes = {float(n): self._at(n, width) for n, w in self.points if w == width}
            known = _linear(sizes, requests) if sizes else self._at(requests, width)
            self._known[requests, width] = known
        return known

    def record(self, requests: int, width: int, seconds: float, *, draft: bool) -> None:
        """A step took this long."""
        if not draft and width:
            return
        known = self.speculative(requests, width) if draft else self.plain(requests)
        if seconds >= OUTLIER * self._pace * known:
            return
        self._pace += PACE_SMOOTHING * (seconds / known - self._pace)
        moved = known + SMOOTHING * (seconds / self._pace - known)
        if draft:
            self._known[requests, width] = moved
        else:
            self.plain_points[requests] = moved

    def _at(self, requests: int, width: int) -> float:
        same = {float(w): cost for (n, w), cost in self.points.items() if n == requests}
        if same:
            return _linear(same, width)
        rows = {float(n * (1 + w)): cost for (n, w), cost in self.points.items()}
        return _linear(rows, requests * (1 + width))


def _linear(points: dict[float, float], x: float) -> float:
    """Piecewise linear through the points, and on in the direction of the last two; at least a tenth of the least."""
    known = sorted(points.items())
    if len(known) == 1:
        return known[0][1]
    right = next((i for i, (at, _) in enumerate(known) if at >= x), len(known) - 1)
    (x0, y0), (x1, y1) = known[max(right, 1) - 1], known[max(right, 1)]
    return max(y0 + (y1 - y0) * (x - x0) / (x1 - x0), min(points.values()) / 10)


def measure(model: StepModel, *, max_batch: int, clock: Callable[[], float] = time.perf_counter) -> StepCosts | None:
    """Time steps of one request and of `max_batch` on a model that runs nothing else; what its caches hold is lost.

    None where the caches have no room for a known token and a whole block: requests then end within a round or two.
    """
    plain: dict[int, float] = {}
    points: dict[tuple[int, int], float] = {}
    for requests in sorted({1, max_batch}):
        kinds = [(0, False), *((width, True) for width in range(model.block_size + 1))]
        seconds = step_seconds(model, requests, kinds, clock)
        if seconds is None:
            continue
        plain[requests], *others = seconds
        points.update({(requests, width): cost for width, cost in enumerate(others)})
    return StepCosts(plain_points=plain, points=points) if points else None


def step_seconds(
    model: StepModel,
    requests: int,
    kinds: Sequence[tuple[int, bool]],
    clock: Callable[[], float] = time.perf_counter,
) -> list[float] | None:
    """Seconds of steps of so many requests, of each (width, draft); what the caches hold is lost.

    None where the caches have no room for a known token and a whole block each.
    """
    bench = _Bench.of(model, requests)
    if bench is None:
        return None
    for prompt in bench.prompts():  # one at a time: together they may be more than a step is made for
        model.step([prompt], width=0, draft=True)
    return _times(model, bench, kinds, clock)


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """Requests of one page of known tokens, each on pages of its own."""

    pages: list[tuple[int, ...]]
    cached: int
    lookback: int

    @classmethod
    def of(cls, model: StepModel, requests: int) -> _Bench | None:
        """None where the caches are too small."""
        cached = min(model.page_size, model.max_length - model.block_size - 2)
        each = -(-(cached + 1 + model.block_size) // model.page_size)
        pages = dealt(requests, each, num_pages=model.num_pages, replicas=model.replicas)
        if cached < 1 or pages is None:
            return None
        return cls(pages=pages, cached=cached, lookback=min(model.lookback_length, cached))

    def prompts(self) -> list[StepRow]:
        return [self._row(place, [1] * self.cached, 0, 0) for place in range(len(self.pages))]

    def rows(self, width: int) -> list[StepRow]:
        """One new token and `width` drafts each."""
        return [self._row(place, [1], self.cached, width) for place in range(len(self.pages))]

    def _row(self, place: int, tokens: list[int], cached: int, width: int) -> StepRow:
        return StepRow(
            tokens=tokens,
            cache_length=cached,
            pages=self.pages[place],
            draft_tokens=[1] * width,
            lookback=[1] * (self.lookback if cached else 0),
            seed=place,
            temperature=1.0,
        )


def _times(
    model: StepModel, bench: _Bench, kinds: Sequence[tuple[int, bool]], clock: Callable[[], float]
) -> list[float]:
    """Seconds of steps of each (width, draft), in turn, so that a change of the machine's speed meets all of them.

    The least of several counts: whatever else a machine does only ever adds, and a plain step that was taken for dear
    is not run again to find out.
    """
    seconds: list[list[float]] = [[] for _ in kinds]
    for _ in range(TRIALS + 1):
        for kind, (width, draft) in enumerate(kinds):
            rows = bench.rows(width)
            start = clock()
            model.step(rows, width=width, draft=draft)
            seconds[kind].append(clock() - start)
    return [min(times[1:]) for times in seconds]
