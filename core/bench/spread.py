"""Repeated measurements as a median and its spread, and percentiles of many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A median and the median absolute deviation from it; the figures themselves stay beside them."""

    median: float
    mad: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        middle = median(values)
        return cls(median=middle, mad=median(abs(value - middle) for value in values), values=tuple(values))

    def text(self, digits: int) -> str:
        return f"{self.median:.{digits}f} ± {self.mad:.{digits}f}"


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` (0 to 1) of them lie, linear between the two nearest; None of nothing."""
    if not values:
        return None
    ordered, place = sorted(values), share * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
