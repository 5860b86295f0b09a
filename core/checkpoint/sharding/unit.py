"""One original shard cut into the files of the ranks, in a single pass over its bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from specdecode.core.checkpoint.shard import TensorInfo
from specdecode.core.checkpoint.sharding.cutting import cut
from specdecode.core.checkpoint.sharding.files import PartialFile, Reader, reading, sync_folder
from specdecode.core.checkpoint.sharding.hashing import CHUNK, Digest, Hasher
from specdecode.core.checkpoint.sharding.layout import Layout, Placement, file_name, labels
from specdecode.core.checkpoint.sharding.manifest import FOLDER, Record, Unit, header_name
from specdecode.core.checkpoint.sharding.source import SourceFile
from specdecode.core.checkpoint.slices import slice_name

Advance = Callable[[int], None]
"""Told how many more bytes of the original are done."""
Entry = tuple[str, str, tuple[int, ...], int]
"""Stored name, type, shape and bytes."""


def entries(file: SourceFile, placements: Mapping[str, Placement], layout: Layout) -> dict[str, list[Entry]]:
    """What each label's file holds of an original shard, in order."""
    held: dict[str, list[Entry]] = {}
    for name, info in file.tensors.items():
        placement = placements[name]
        for rank, label in enumerate(labels(placement, layout)):
            held.setdefault(label, []).append(_entry(name, info, placement, layout.ranks, rank))
    return held


def _entry(name: str, info: TensorInfo, placement: Placement, ranks: int, rank: int) -> Entry:
    if placement.axis is None:
        return name, info.dtype, info.shape, info.nbytes
    shape = placement.axis.cut(info.shape, ranks)
    return slice_name(name, placement.axis, rank, ranks), info.dtype, shape, info.nbytes // ranks


def header_bytes(held: list[Entry]) -> bytes:
    """The head of a safetensors file with these tensors end to end, padded to eight bytes."""
    content: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape, nbytes in held:
        content[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def cut_unit(
    file: SourceFile,
    number: int,
    *,
    folder: Path,
    placements: Mapping[str, Placement],
    layout: Layout,
    hasher: Hasher,
    advance: Advance,
) -> OpenUnit:
    """Cut one original shard into files under temporary names.

    Raises:
        CheckpointError: the original cannot be read. StorageError: the folder cannot be written.
    """
    held = entries(file, placements, layout)
    with ExitStack() as stack:
        outputs: dict[str, tuple[PartialFile, Digest]] = {}
        for label, of_label in held.items():
            output = PartialFile(folder / file_name(label, number))
            stack.callback(output.drop)
            outputs[label] = output, hasher.digest()
            _put(outputs[label], header_bytes(of_label))
        kept = PartialFile(folder / header_name(file.path.name))
        stack.callback(kept.drop)
        header = kept, hasher.digest()
        with reading(file.path):
            stream = file.path.open("rb", buffering=0)
        with stream:
            read = Reader(stream, file.path)
            _put(header, read(file.header))
            advance(file.header)
            for name, info in file.tensors.items():
                placement = placements[name]
                places = labels(placement, layout)
                for rank, data in cut(info.shape, info.nbytes, placement.axis, layout.ranks, read, CHUNK):
                    _put(outputs[places[rank]], data)
                    advance(len(data))
        return OpenUnit(folder=folder, header=header, parts=tuple(outputs.values()), cleanup=stack.pop_all())


@dataclass(frozen=True, kw_only=True)
class OpenUnit:
    """An original shard that is cut, and whose files are neither safe on the disk nor under their names yet."""

    folder: Path
    header: tuple[PartialFile, Digest]
    parts: tuple[tuple[PartialFile, Digest], ...]
    cleanup: ExitStack

    def finish(self) -> Unit:
        """Get the files onto the disk, then all of them under their names.

        Raises:
            StorageError: the system refuses; the temporary files are removed.
        """
        with self.cleanup:
            files = [self.header[0], *(file for file, _ in self.parts)]
            for file in files:
                file.sync()
            for file in files:
                file.keep()
            sync_folder(self.folder)
            sync_folder(self.folder / FOLDER)
            return Unit(header=self._record(*self.header), parts=tuple(self._record(*part) for part in self.parts))

    def drop(self) -> None:
        """Remove the temporary files."""
        self.cleanup.close()

    def _record(self, file: PartialFile, digest: Digest) -> Record:
        name = str(file.path.relative_to(self.folder))
        return Record(name=name, nbytes=file.size, sha256=digest.hex())


def stored_names(
    files: tuple[SourceFile, ...], placements: Mapping[str, Placement], layout: Layout
) -> Iterator[tuple[str, str]]:
    """(stored name, file) of every tensor and slice: the index of the sharded folder."""
    for number, file in enumerate(files, start=1):
        for label, held in entries(file, placements, layout).items():
            yield from ((entry[0], file_name(label, number)) for entry in held)


def _put(output: tuple[PartialFile, Digest], data: bytes) -> None:
    file, digest = output
    file.write(data)
    digest.update(data)
