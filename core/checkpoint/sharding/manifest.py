"""What a sharded folder is made of, with the SHA-256 of every file, and what its original was.

`sharding/` in the folder holds the manifest, or the journal of a run that has not finished, and what `--merge` needs
beyond the tensors: the original index and the original headers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from specdecode.core.checkpoint.sharding.layout import Layout, Strategy
from specdecode.core.errors import CheckpointError

FOLDER = "sharding"
MANIFEST = f"{FOLDER}/manifest.json"
JOURNAL = f"{FOLDER}/journal.json"
ORIGINAL_INDEX = f"{FOLDER}/original.index.json"
FORMAT = "specdecode sharded checkpoint"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Record:
    """A file by name, bytes and SHA-256 (hexadecimal)."""

    name: str
    nbytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Unit:
    """The files that hold the tensors of one original shard, and its header."""

    header: Record
    parts: tuple[Record, ...]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """An original shard as it was found, to notice that it has changed since."""

    name: str
    nbytes: int
    modified: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A sharded folder, finished or not.

    Attributes:
        splits: the edition of the rules that placed its tensors; 1 where a manifest does not say.
        origins: all original shards, in order.
        units: what became of them, in the same order; while a run has not finished, of the first ones.
        index: the original index.
        copies: files that were copied as they are.
    """

    layout: Layout
    splits: int
    origins: tuple[Origin, ...]
    units: tuple[Unit, ...] = ()
    index: Record | None = None
    copies: tuple[Record, ...] = field(default=())

    def with_unit(self, unit: Unit) -> Manifest:
        """One more original shard is done."""
        return replace(self, units=(*self.units, unit))

    @property
    def pairs(self) -> tuple[tuple[Origin, Unit], ...]:
        """The original shards that are done, with what became of them."""
        return tuple(zip(self.origins, self.units, strict=False))

    @property
    def finished(self) -> bool:
        return len(self.units) == len(self.origins)

    def to_json(self) -> bytes:
        """The file's content."""
        content = asdict(self) | {"layout": {"strategy": self.layout.strategy.value, "ranks": self.layout.ranks}}
        return json.dumps({"format": FORMAT, "version": VERSION} | content, indent=1).encode() + b"\n"


def read_manifest(path: Path) -> Manifest:
    """Read a manifest or a journal.

    Raises:
        CheckpointError: it is not one.
    """
    try:
        content = json.loads(path.read_bytes())
        if (content["format"], content["version"]) != (FORMAT, VERSION):
            raise ValueError(f"format {content['format']!r}, version {content['version']!r}")
        layout = content["layout"]
        return Manifest(
            layout=Layout(strategy=Strategy(layout["strategy"]), ranks=int(layout["ranks"])),
            splits=int(content.get("splits", 1)),
            origins=tuple(Origin(**item) for item in content["origins"]),
            units=tuple(map(_unit, content["units"])),
            index=Record(**content["index"]) if content["index"] else None,
            copies=tuple(Record(**item) for item in content["copies"]),
        )
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} does not exist, so {path.parents[1]} is no finished result of shard-weights. Name the folder that "
            "it wrote, or run it again to finish."
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} is not a manifest of shard-weights ({error!r}). Shard the original again."
        ) from None


def header_name(original: str) -> str:
    """Where the header of an original shard is kept, relative to the folder."""
    return f"{FOLDER}/{original}.header"


def _unit(content: Mapping[str, object]) -> Unit:
    header, parts = content["header"], content["parts"]
    if not isinstance(header, dict) or not isinstance(parts, list):
        raise TypeError("a unit needs header and parts")
    return Unit(header=Record(**header), parts=tuple(Record(**part) for part in parts))
