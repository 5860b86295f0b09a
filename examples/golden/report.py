"""Items, their largest errors, and the verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Item:
    """One compared quantity: the largest error seen, where, and what is allowed."""

    name: str
    allowed: float
    worst: float = 0.0
    where: str = ""
    count: int = 0
    at_least: bool = False

    @property
    def ok(self) -> bool:
        """Whether the worst value is within what is allowed (a NaN never is)."""
        return self.worst >= self.allowed if self.at_least else self.worst <= self.allowed


@dataclass
class Report:
    """Collects items in the order of their first comparison."""

    items: dict[str, Item] = field(default_factory=dict)

    def add(self, name: str, error: float, allowed: float, where: str, *, at_least: bool = False) -> None:
        """Record one comparison; the worst of its name is kept."""
        item = self.items.setdefault(name, Item(name=name, allowed=allowed, at_least=at_least))
        worse = error < item.worst if at_least else error > item.worst
        if item.count == 0 or worse or math.isnan(error):
            item.worst, item.where = float(error), where
        item.count += 1

    @property
    def ok(self) -> bool:
        return bool(self.items) and all(item.ok for item in self.items.values())

    def lines(self) -> list[str]:
        """A table: item, comparisons, worst value, bound, verdict."""
        wide = max((len(name) for name in self.items), default=4)
        out = [f"{'item':{wide}}  compared      worst     bound"]
        for item in self.items.values():
            sign, verdict = (">=" if item.at_least else "<="), "ok" if item.ok else f"OUT at {item.where}"
            out.append(f"{item.name:{wide}}  {item.count:8d}  {item.worst:9.2e} {sign} {item.allowed:7.1e}  {verdict}")
        return out
