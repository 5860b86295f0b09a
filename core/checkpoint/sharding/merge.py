"""A sharded folder back into the original, byte for byte."""

from __future__ import annotations

from pathlib import Path

from specdecode.core.checkpoint.reader import INDEX_FILE
from specdecode.core.checkpoint.sharding.files import (
    PARTIAL,
    PartialFile,
    check_space,
    reading,
    remove_partial,
    sync_folder,
)
from specdecode.core.checkpoint.sharding.hashing import Hasher
from specdecode.core.checkpoint.sharding.manifest import Manifest, Origin, Unit
from specdecode.core.checkpoint.sharding.rejoin import Sharded, check_small, original_bytes
from specdecode.core.checkpoint.sharding.writer import Watcher, Written, check_apart, copy_file
from specdecode.core.errors import UsageError


def merge(sharded: Sharded, out: Path, watcher: Watcher) -> Written:
    """Write the original files, or those that an earlier run did not get to; the index comes last.

    Raises:
        UsageError: the folder holds something else.
        MismatchError: the files do not give the original bytes; what was written of that shard is removed.
        CheckpointError: a file cannot be read. StorageError: the folder cannot be written.
    """
    manifest = sharded.manifest
    check_apart(sharded.path, out)
    there = _there(out, manifest)
    rest = [(origin, unit) for origin, unit in manifest.pairs if origin.name not in there]
    left = sum(origin.nbytes for origin, _ in rest)
    copied = sum(record.nbytes for record in manifest.copies)
    check_space(out, left + copied + (manifest.index.nbytes if manifest.index else 0))
    check_small(sharded)
    if out.exists():
        remove_partial(out, _names(manifest))
    total = sum(origin.nbytes for origin in manifest.origins)
    watcher.begin(total, total - left)
    with Hasher() as hasher:
        for origin, unit in rest:
            _merge_unit(sharded, origin, unit, out, hasher, watcher)
            watcher.note(f"{origin.name}: done")
        for record in manifest.copies:
            copy_file(sharded.path / record.name, out, record.name)
        if manifest.index:
            copy_file(sharded.path / manifest.index.name, out, INDEX_FILE)
    sync_folder(out)
    return Written(files=len(manifest.units), nbytes=total, resumed=len(manifest.units) - len(rest))


def _merge_unit(sharded: Sharded, origin: Origin, unit: Unit, out: Path, hasher: Hasher, watcher: Watcher) -> None:
    file = PartialFile(out / origin.name)
    try:
        for data in original_bytes(sharded, unit, hasher):
            file.write(data)
            watcher.advance(len(data))
        file.sync()
        file.keep()
    except BaseException:
        file.drop()
        raise


def _names(manifest: Manifest) -> list[str]:
    """Every file that a merge writes."""
    originals = [origin.name for origin in manifest.origins]
    return [*originals, *(record.name for record in manifest.copies), INDEX_FILE]


def _there(out: Path, manifest: Manifest) -> set[str]:
    """Original shards that an earlier run wrote whole; anything else in the folder is refused."""
    sizes = {origin.name: origin.nbytes for origin in manifest.origins}
    known = {*_names(manifest), *(f"{name}{PARTIAL}" for name in _names(manifest))} - sizes.keys()
    done = set()
    with reading(out):
        files = [path for path in out.rglob("*") if path.is_file()] if out.exists() else []
    for path in files:
        name = str(path.relative_to(out))
        if sizes.get(name) == path.stat().st_size:
            done.add(name)
        elif name not in known:
            raise UsageError(f"{out} holds {name}, which is not what this merge writes. Name an empty folder.")
    return done
