"""A whole checkpoint cut into a folder, by original shards, so that it can stop and go on anywhere.

After every original shard the journal says that it is done; the next run leaves those alone. The index comes last but
one, so that an unfinished folder is no checkpoint, and the manifest last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from specdecode.core.checkpoint.reader import INDEX_FILE
from specdecode.core.checkpoint.sharding.files import (
    PARTIAL,
    PartialFile,
    check_space,
    reading,
    remove_partial,
    sync_folder,
    write_whole,
    writing,
)
from specdecode.core.checkpoint.sharding.hashing import CHUNK, HashedFile
from specdecode.core.checkpoint.sharding.layout import Layout, Placement, file_name, labels
from specdecode.core.checkpoint.sharding.manifest import (
    FOLDER,
    JOURNAL,
    MANIFEST,
    ORIGINAL_INDEX,
    Manifest,
    Origin,
    Record,
    header_name,
    read_manifest,
)
from specdecode.core.checkpoint.sharding.source import Source
from specdecode.core.checkpoint.sharding.splits import SPLITS
from specdecode.core.checkpoint.sharding.unit import stored_names
from specdecode.core.checkpoint.sharding.units import cut_units
from specdecode.core.errors import UsageError

_ENTRY = 512  # bytes that a tensor adds to a header and to the index, at most about that


class Watcher(Protocol):
    """Who is told how far the work is."""

    def begin(self, nbytes: int, done: int) -> None:
        """So many bytes in all, of which some were done by an earlier run."""

    def advance(self, nbytes: int) -> None:
        """So many more."""

    def note(self, message: str) -> None:
        """Something worth a line."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """What came of a run.

    Attributes:
        files: weight files in the folder.
        nbytes: their bytes, headers included.
        resumed: original shards that an earlier run had done.
    """

    files: int
    nbytes: int
    resumed: int


def shard(source: Source, placements: Mapping[str, Placement], layout: Layout, out: Path, watcher: Watcher) -> Written:
    """Write the sharded folder, or finish it.

    Raises:
        UsageError: the folder holds something else, or a run with other options or of another original.
        CheckpointError: the original cannot be read. StorageError: the folder cannot be written.
    """
    check_apart(source.path, out)
    origins = tuple(Origin(name=f.path.name, nbytes=f.size, modified=f.modified) for f in source.files)
    manifest = _begun(out, Manifest(layout=layout, splits=SPLITS[layout.strategy], origins=origins))
    resumed = len(manifest.units)
    if (out / MANIFEST).exists():
        return _written(manifest, resumed)
    _check_room(source, placements, layout, out, resumed)
    remove_partial(out, _names(source, placements, layout))
    write_whole(out / JOURNAL, manifest.to_json())
    total = sum(file.size for file in source.files)
    watcher.begin(total, sum(file.size for file in source.files[:resumed]))
    cut = cut_units(source, resumed, folder=out, placements=placements, layout=layout, advance=watcher.advance)
    with closing(cut) as units:
        for number, unit in enumerate(units, start=resumed + 1):
            manifest = manifest.with_unit(unit)
            write_whole(out / JOURNAL, manifest.to_json())
            watcher.note(f"{origins[number - 1].name}: cut, {number} of {len(origins)}")
    copies = tuple(copy_file(source.path / name, out, str(name)) for name in source.copies)
    index = copy_file(source.index, out, ORIGINAL_INDEX) if source.index else None
    _write_index(source, placements, layout, out)
    manifest = replace(manifest, copies=copies, index=index)
    write_whole(out / MANIFEST, manifest.to_json())
    with writing(out):
        (out / JOURNAL).unlink()
    sync_folder(out / FOLDER)
    sync_folder(out)
    return _written(manifest, resumed)


def copy_file(origin: Path, folder: Path, name: str) -> Record:
    """Copy one file, whole or not at all."""
    file = HashedFile(folder, name)
    try:
        with reading(origin), origin.open("rb") as stream:
            while data := stream.read(CHUNK):
                file.write(data)
        file.sync()
        file.keep()
    except BaseException:
        file.drop()
        raise
    return file.record()


def check_apart(source: Path, out: Path) -> None:
    """Refuse a result inside the original, and the other way round."""
    one, other = source.resolve(), out.resolve()
    if one == other or one in other.parents or other in one.parents:
        raise UsageError(f"{out} and {source} lie in one another. Name a folder of its own for the result.")


def _begun(out: Path, fresh: Manifest) -> Manifest:
    """The manifest of an earlier run into this folder, or the fresh one."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file. Name a folder that is empty or not there yet.")
    with reading(out):
        there = [path for path in out.rglob("*") if path.is_file()] if out.exists() else []
    if not there or there == [out / f"{JOURNAL}{PARTIAL}"]:  # the journal is the first file of all
        return fresh
    path = next((out / name for name in (MANIFEST, JOURNAL) if (out / name).exists()), None)
    if path is None:
        raise UsageError(
            f"{out} holds files that shard-weights did not write, such as {there[0].name}. Name an empty folder."
        )
    found = read_manifest(path)
    if found.layout != fresh.layout:
        raise UsageError(
            f"{out} was begun with {found.layout}, and this run asks for {fresh.layout}. Run it with {found.layout}, "
            "or name another folder."
        )
    if found.splits != fresh.splits:
        use = "It can be read, verified and merged as it is. " if path.name == Path(MANIFEST).name else ""
        raise UsageError(
            f"{out} was cut by another edition of this program, which divides some tensors otherwise. {use}Name "
            "another folder, or remove this one and run again."
        )
    if found.origins != fresh.origins:
        raise UsageError(
            f"{out} was begun from other files: {_changed(found.origins, fresh.origins)}. Remove {out} and run "
            "again, or name another folder."
        )
    units = []
    for unit in found.units:  # what is not there any more is made again, with all that follows
        if not all(_has(out, part) for part in (*unit.parts, unit.header)):
            break
        units.append(unit)
    if len(units) < len(found.units) and path.name == Path(MANIFEST).name:
        raise UsageError(
            f"{out} is finished, but lacks files that its manifest names. See which with specdecode shard-weights "
            f"{out} --verify, and remove the folder to make it anew."
        )
    return replace(found, units=tuple(units))


def _names(source: Source, placements: Mapping[str, Placement], layout: Layout) -> Iterator[str]:
    """Every file that a run may leave under a temporary name."""
    for number, file in enumerate(source.files, start=1):
        yield header_name(file.path.name)
        used = {label for name in file.tensors for label in labels(placements[name], layout)}
        yield from (file_name(label, number) for label in used)
    yield from map(str, source.copies)
    yield from (INDEX_FILE, ORIGINAL_INDEX, MANIFEST, JOURNAL)


def _has(out: Path, record: Record) -> bool:
    path = out / record.name
    return path.is_file() and path.stat().st_size == record.nbytes


def _changed(before: Iterable[Origin], now: Iterable[Origin]) -> str:
    differing = sorted({origin.name for origin in set(before) ^ set(now)})
    return f"{differing[0]} has changed since" + (f", and {len(differing) - 1} more" if differing[1:] else "")


def _check_room(source: Source, placements: Mapping[str, Placement], layout: Layout, out: Path, resumed: int) -> None:
    rest = source.files[resumed:]
    stored = sum(layout.ranks if placements[name].axis else 1 for file in rest for name in file.tensors)
    copies = sum((source.path / name).stat().st_size for name in source.copies)
    check_space(out, sum(file.size + file.header for file in rest) + copies + _ENTRY * stored)


def _write_index(source: Source, placements: Mapping[str, Placement], layout: Layout, out: Path) -> None:
    """A safetensors index, line by line: cut for many ranks a large model has a million names."""
    size = sum(info.nbytes for file in source.files for info in file.tensors.values())
    file = PartialFile(out / INDEX_FILE)
    try:
        file.write(f'{{\n  "metadata": {{"total_size": {size}}},\n  "weight_map": {{'.encode())
        comma = ""
        for name, place in stored_names(source.files, placements, layout):
            file.write(f"{comma}\n    {json.dumps(name)}: {json.dumps(place)}".encode())
            comma = ","
        file.write(b"\n  }\n}\n")
        file.sync()
        file.keep()
    except BaseException:
        file.drop()
        raise


def _written(manifest: Manifest, resumed: int) -> Written:
    parts = [part for unit in manifest.units for part in unit.parts]
    return Written(files=len(parts), nbytes=sum(part.nbytes for part in parts), resumed=resumed)
