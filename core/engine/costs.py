"""What a step costs by its number of requests and its width: measured once at the start, then kept up to date."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from specdecode.core.engine.step import StepModel, StepRow

TRIALS = 3
SMOOTHING = 0.1
OUTLIER = 2.0
"""A step that took this many times what was expected says something about the machine, not about the step."""


@dataclass(kw_only=True)
class StepCosts:
    """Seconds of a step of decoding requests, each with one new token.

    Measured points are met exactly; between and beyond them a cost is linear in the rows that a step runs, requests
    times (1 + width). Every later measurement moves its own point.

    Attributes:
        plain_points: requests -> seconds without drafts and without drafting.
        points: (requests, width) -> seconds with drafting the next block.
    """

    plain_points: dict[int, float]
    points: dict[tuple[int, int], float]
    _seen: dict[tuple[int, int], float] = field(default_factory=dict)

    def plain(self, requests: int) -> float:
        """Seconds of a plain step."""
        return _linear({float(n): cost for n, cost in self.plain_points.items()}, requests)

    def speculative(self, requests: int, width: int) -> float:
        """Seconds of a step that verifies `width` drafts a request and drafts the next block."""
        own = self._seen.get((requests, width))
        if own is not None:
            return own
        sizes = {float(n): self._at(n, width) for n, w in self.points if w == width}
        return _linear(sizes, requests) if sizes else self._at(requests, width)

    def record(self, requests: int, width: int, seconds: float, *, draft: bool) -> None:
        """A step took this long."""
        if draft:
            known = self.speculative(requests, width)
            if seconds < OUTLIER * known:
                self._seen[requests, width] = known + SMOOTHING * (seconds - known)
        else:
            known = self.plain(requests)
            if width == 0 and seconds < OUTLIER * known:
                self.plain_points[requests] = known + SMOOTHING * (seconds - known)

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
        bench = _Bench.of(model, requests)
        if bench is None:
            continue
        model.step(bench.prompts(), width=0, draft=True)
        plain[requests] = _time(model, bench.rows(0), 0, False, clock)
        for width in range(model.block_size + 1):
            points[requests, width] = _time(model, bench.rows(width), width, True, clock)
    return StepCosts(plain_points=plain, points=points) if points else None


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
        if cached < 1 or requests * each > model.num_pages:
            return None
        pages = [tuple(range(row * each, (row + 1) * each)) for row in range(requests)]
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


def _time(model: StepModel, rows: list[StepRow], width: int, draft: bool, clock: Callable[[], float]) -> float:
    seconds = []
    for _ in range(TRIALS + 1):
        start = clock()
        model.step(rows, width=width, draft=draft)
        seconds.append(clock() - start)
    return statistics.median(seconds[1:])
