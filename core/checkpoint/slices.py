"""Tensors that were cut for several ranks, found by their names and joined again.

A slice is a tensor of its own, so that an index with slices is an ordinary one. Its name says what it is:

    layers.0.attn.wq_b.weight.rows-3-of-8       # the fourth of eight slices along the first axis
    embed.weight.columns-3-of-8                 # … along the last axis
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specdecode.core.checkpoint.shard import Shard, TensorInfo
from specdecode.core.errors import CheckpointError

_SLICE = re.compile(r"(?P<name>.+)\.(?P<axis>rows|columns)-(?P<rank>\d+)-of-(?P<ranks>\d+)")
_RANK_FILE = re.compile(r"model-rank-(?P<rank>\d+)-of-(?P<ranks>\d+)-\d+\.safetensors")


class Axis(Enum):
    """Along which dimension a tensor is cut."""

    ROWS = "rows"
    COLUMNS = "columns"

    def cut(self, shape: tuple[int, ...], ranks: int) -> tuple[int, ...]:
        """The shape of one of `ranks` equal slices; the dimension must be a multiple of `ranks`."""
        place = self.place(shape)
        return (*shape[:place], shape[place] // ranks, *shape[place + 1 :])

    def place(self, shape: tuple[int, ...]) -> int:
        """The number of the dimension."""
        return 0 if self is Axis.ROWS else len(shape) - 1


def slice_name(name: str, axis: Axis, rank: int, ranks: int) -> str:
    """What slice `rank` of a tensor is called."""
    return f"{name}.{axis.value}-{rank}-of-{ranks}"


class Stored(Protocol):
    """A tensor of a checkpoint, in one piece or several."""

    @property
    def info(self) -> TensorInfo:
        """Of the whole tensor; file and offset are those of its first slice."""

    @property
    def owner(self) -> int | None:
        """The one rank that holds it, or None if it is everybody's."""

    @property
    def axis(self) -> Axis | None:
        """Along which axis it is cut, or None if it is in one piece."""

    def array(self) -> NDArray[np.generic]:
        """The whole tensor."""

    def rank_array(self, rank: int) -> NDArray[np.generic]:
        """What a rank holds of it."""


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A tensor in one piece."""

    shard: Shard
    name: str

    @property
    def info(self) -> TensorInfo:
        return self.shard.tensors[self.name]

    @property
    def axis(self) -> None:
        return None

    @property
    def owner(self) -> int | None:
        place = _RANK_FILE.fullmatch(self.shard.path.name)
        return int(place["rank"]) if place else None

    def array(self) -> NDArray[np.generic]:
        """A read-only view."""
        return self.shard.array(self.name)

    def rank_array(self, rank: int) -> NDArray[np.generic]:
        return self.array()


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A tensor in slices, one for each rank."""

    axis: Axis
    slices: tuple[Whole, ...]

    @property
    def info(self) -> TensorInfo:
        infos = [part.info for part in self.slices]
        first = infos[0]
        place = self.axis.place(first.shape)
        size = sum(info.shape[place] for info in infos)
        return TensorInfo(
            dtype=first.dtype,
            shape=(*first.shape[:place], size, *first.shape[place + 1 :]),
            nbytes=sum(info.nbytes for info in infos),
            file=first.file,
            offset=first.offset,
        )

    @property
    def owner(self) -> int | None:
        return None

    def array(self) -> NDArray[np.generic]:
        """A fresh array."""
        parts = [part.array() for part in self.slices]
        return np.concatenate(parts, axis=self.axis.place(parts[0].shape))

    def rank_array(self, rank: int) -> NDArray[np.generic]:
        """A read-only view of one slice."""
        return self.slices[rank].array()


def gather(shards: Mapping[str, Shard], folder: Path) -> tuple[dict[str, Stored], int]:
    """From tensors by their stored names to whole tensors by their own, and the number of ranks (1: not sharded).

    Raises:
        CheckpointError: slices of a tensor are missing, or do not fit together.
    """
    found: dict[str, Stored] = {}
    slices: dict[str, dict[int, Whole]] = {}
    kinds: dict[str, tuple[Axis, int]] = {}
    counts: dict[int, str] = {}
    for stored, shard in shards.items():
        match = _SLICE.fullmatch(stored)
        whole = Whole(shard=shard, name=stored)
        place = _RANK_FILE.fullmatch(shard.path.name)
        if place:
            counts.setdefault(int(place["ranks"]), shard.path.name)
        if match is None:
            found[stored] = whole
            continue
        name, kind = match["name"], (Axis(match["axis"]), int(match["ranks"]))
        if kinds.setdefault(name, kind) != kind:
            raise CheckpointError(
                f"{folder} holds slices of {name} of two kinds, {_said(kinds[name])} and {_said(kind)}. "
                "Files of two sharded checkpoints are mixed; shard the original again."
            )
        counts.setdefault(kind[1], stored)
        slices.setdefault(name, {})[int(match["rank"])] = whole
        found.setdefault(name, whole)  # keeps the index's order; replaced below
    if len(counts) > 1:
        (one, first), (other, second) = list(counts.items())[:2]
        raise CheckpointError(
            f"{folder} mixes shards for {one} ranks ({first}) and for {other} ({second}). "
            "Files of two sharded checkpoints are mixed; shard the original again."
        )
    for name, parts in slices.items():
        found[name] = _joined(name, kinds[name], parts, folder)
    return found, next(iter(counts), 1)


def _joined(name: str, kind: tuple[Axis, int], parts: Mapping[int, Whole], folder: Path) -> Joined:
    axis, ranks = kind
    missing = [rank for rank in range(ranks) if rank not in parts]
    if missing or len(parts) != ranks:
        raise CheckpointError(
            f"{folder} lacks slice {missing[0] if missing else max(parts)} of {name}, which is cut into {ranks}. "
            "Copy the files of all ranks into one folder, or shard the original again."
        )
    infos = [parts[rank].info for rank in range(ranks)]
    if len({(info.dtype, info.shape) for info in infos}) > 1 or not infos[0].shape:
        raise CheckpointError(f"{folder}: the slices of {name} do not have one type and shape. Shard it again.")
    return Joined(axis=axis, slices=tuple(parts[rank] for rank in range(ranks)))


def _said(kind: tuple[Axis, int]) -> str:
    return f"{kind[1]} of {kind[0].value}"
