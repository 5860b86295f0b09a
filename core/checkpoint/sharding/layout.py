"""How a model is spread over devices, and where that puts one tensor."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from specdecode.core.checkpoint.slices import Axis


class Strategy(Enum):
    """The two ways of spreading."""

    TENSOR = "tp"
    """Every large matrix is cut; all devices work on every token."""
    EXPERT = "ep"
    """Routed experts are dealt out whole; the rest is replicated, and each device has its own requests."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A strategy and the number of ranks; one rank is one device."""

    strategy: Strategy
    ranks: int

    def __str__(self) -> str:
        return f"--{self.strategy.value} {self.ranks}"

    def rank_label(self, rank: int) -> str:
        """What the files of a rank are called after."""
        return f"rank-{rank}-of-{self.ranks}"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a tensor goes.

    Attributes:
        axis: it is cut along this axis, one slice for each rank.
        rank: it belongs to this rank alone.
        host: it stays in the host's memory, once for all ranks. Without any of the three, every rank has it.
    """

    axis: Axis | None = None
    rank: int | None = None
    host: bool = False

    @property
    def replicated(self) -> bool:
        """Whether every rank holds the whole tensor."""
        return self.axis is None and self.rank is None and not self.host


REPLICATED = Placement()
HOST = Placement(host=True)
ROWS = Placement(axis=Axis.ROWS)
COLUMNS = Placement(axis=Axis.COLUMNS)

SHARED_LABEL = "shared"
ENGRAM_LABEL = "engram"


def labels(placement: Placement, layout: Layout) -> list[str]:
    """Which files a tensor goes to, in the order of its slices."""
    if placement.host:
        return [ENGRAM_LABEL]
    if placement.rank is not None:
        return [layout.rank_label(placement.rank)]
    if placement.axis is not None:
        return [layout.rank_label(rank) for rank in range(layout.ranks)]
    return [SHARED_LABEL]


def file_name(label: str, number: int) -> str:
    """The file with what source file `number`, counted from 1, has for this label."""
    return f"model-{label}-{number:05}.safetensors"
