"""The original shards again, from the files of a sharded folder, with every byte checked on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from specdecode.core.checkpoint.shard import TensorInfo, parse_header, read_header
from specdecode.core.checkpoint.sharding.cutting import join
from specdecode.core.checkpoint.sharding.files import Reader, reading
from specdecode.core.checkpoint.sharding.hashing import CHUNK, Digest, Hasher, sha256_of
from specdecode.core.checkpoint.sharding.manifest import MANIFEST, Manifest, Record, Unit, read_manifest
from specdecode.core.checkpoint.slices import Axis, slice_name
from specdecode.core.errors import CheckpointError, MismatchError


@dataclass(frozen=True, kw_only=True)
class Sharded:
    """A finished sharded folder whose files are all there, as long as they should be."""

    path: Path
    manifest: Manifest


def open_sharded(folder: Path) -> Sharded:
    """Read the manifest and compare it with the folder; no weights.

    Raises:
        CheckpointError: it is not finished, or a file is missing or has another length.
    """
    manifest = read_manifest(folder / MANIFEST)
    if not manifest.finished:
        raise CheckpointError(f"{folder / MANIFEST} lacks original shards. Shard the original again.")
    for record in _records(manifest):
        path = folder / record.name
        if not path.is_file():
            raise CheckpointError(
                f"{path} is missing; {MANIFEST} names it. Copy it here again, or shard the original again."
            )
        size = path.stat().st_size
        if size != record.nbytes:
            raise CheckpointError(
                f"{path} has {size:,} bytes, and was written with {record.nbytes:,}. Copy it here again, or shard the "
                "original again."
            )
    return Sharded(path=folder, manifest=manifest)


def check_small(sharded: Sharded) -> None:
    """Compare copied files, headers and the original index with their SHA-256.

    Raises:
        MismatchError: naming the first file with other bytes.
    """
    manifest = sharded.manifest
    small = [*manifest.copies, *(unit.header for unit in manifest.units)]
    for record in [*small, manifest.index] if manifest.index else small:
        if sha256_of(sharded.path / record.name) != record.sha256:
            raise MismatchError(_other_bytes(sharded.path / record.name))


def original_bytes(sharded: Sharded, unit: Unit, hasher: Hasher) -> Iterator[bytes]:
    """The bytes of one original shard, from its header on.

    Raises:
        MismatchError: after the last byte, if a file that they came from has other bytes than were written.
        CheckpointError: a file cannot be read, or the tensors in it are not those of the header.
    """
    folder = sharded.path
    with ExitStack() as stack:
        parts = {part.name: _Part(folder / part.name, hasher.digest(), stack) for part in unit.parts}
        with reading(folder / unit.header.name):
            header = (folder / unit.header.name).read_bytes()
        yield header
        tensors = parse_header(folder / unit.header.name, header[8:], len(header))
        for name, info in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
            axis, holders = _holders(name, info, parts, sharded.manifest.layout.ranks)
            yield from join(info.shape, info.nbytes, axis, [part.read for part in holders], CHUNK)
        for part in parts.values():
            part.finish()
        for record in unit.parts:
            if parts[record.name].digest.hex() != record.sha256:
                raise MismatchError(_other_bytes(folder / record.name))


class _Part:
    """A file of the sharded folder, read once from its first byte to its last."""

    def __init__(self, path: Path, digest: Digest, stack: ExitStack) -> None:
        self.path, self.digest = path, digest
        self.tensors = read_header(path)
        with reading(path):
            self._next = Reader(stack.enter_context(path.open("rb", buffering=0)), path)
            self._left = path.stat().st_size
        start = min((info.offset for info in self.tensors.values()), default=self._left)
        self.read(start)

    def read(self, size: int) -> bytes:
        """The next bytes."""
        data = self._next(size)
        self._left -= size
        self.digest.update(data)
        return data

    def finish(self) -> None:
        """Read what no tensor claimed; a sound file has nothing left."""
        while self._left:
            self.read(min(self._left, CHUNK))


def _holders(name: str, info: TensorInfo, parts: dict[str, _Part], ranks: int) -> tuple[Axis | None, list[_Part]]:
    """Which files have a tensor, whole or in slices, in the order of its ranks."""
    for part in parts.values():
        if name in part.tensors:
            _check(part, name, info.dtype, info.shape)
            return None, [part]
    for axis in Axis:
        names = [slice_name(name, axis, rank, ranks) for rank in range(ranks)]
        holders = [part for stored in names for part in parts.values() if stored in part.tensors]
        if len(holders) == ranks:
            for stored, part in zip(names, holders, strict=True):
                _check(part, stored, info.dtype, axis.cut(info.shape, ranks))
            return axis, holders
    files = ", ".join(parts)
    raise CheckpointError(f"No file of {files} holds {name}, whole or in {ranks} slices. Shard the original again.")


def _check(part: _Part, stored: str, dtype: str, shape: tuple[int, ...]) -> None:
    info = part.tensors[stored]
    if (info.dtype, info.shape) != (dtype, shape):
        raise CheckpointError(
            f"{part.path}: {stored} is {info.dtype} {list(info.shape)}, and the original asks for {dtype} "
            f"{list(shape)}. Shard the original again."
        )


def _records(manifest: Manifest) -> Iterator[Record]:
    for unit in manifest.units:
        yield unit.header
        yield from unit.parts
    yield from manifest.copies
    if manifest.index:
        yield manifest.index


def _other_bytes(path: Path) -> str:
    return (
        f"{path} has other bytes than were written: its SHA-256 is not that of {MANIFEST}. Copy it here again, or "
        "shard the original again."
    )
