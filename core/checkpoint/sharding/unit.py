"""One original shard cut into the files of the ranks, in a single pass over its bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from specdecode.core.checkpoint.shard import TensorInfo
from specdecode.core.checkpoint.sharding.cutting import cut
from specdecode.core.checkpoint.sharding.files import Reader, reading, sync_folder
from specdecode.core.checkpoint.sharding.hashing import HashedFile
from specdecode.core.checkpoint.sharding.layout import Layout, Placement, file_name, labels
from specdecode.core.checkpoint.sharding.manifest import FOLDER, Unit, header_name
from specdecode.core.checkpoint.sharding.source import SourceFile
from specdecode.core.checkpoint.slices import slice_name

Advance = Callable[[int], None]
"""Told how many more bytes of the original are done."""
CHUNK = 256 << 10
"""Bytes that are read, written and hashed at a time: they stay in a core's second-level cache meanwhile."""
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
    advance: Advance,
) -> Unit:
    """Cut one original shard into files that appear together, safe on the disk, or not at all.

    Raises:
        CheckpointError: the original cannot be read. StorageError: the folder cannot be written.
    """
    held = entries(file, placements, layout)
    with ExitStack() as stack:
        outputs: dict[str, HashedFile] = {}
        for label, of_label in held.items():
            outputs[label] = HashedFile(folder, file_name(label, number))
            stack.callback(outputs[label].drop)
            outputs[label].write(header_bytes(of_label))
        header = HashedFile(folder, header_name(file.path.name))
        stack.callback(header.drop)
        with reading(file.path):
            stream = file.path.open("rb", buffering=0)
        with stream:
            read = Reader(stream, file.path)
            header.write(read(file.header))
            advance(file.header)
            for name, info in file.tensors.items():
                placement = placements[name]
                places = labels(placement, layout)
                for rank, data in cut(info.shape, info.nbytes, placement.axis, layout.ranks, read, CHUNK):
                    outputs[places[rank]].write(data)
                    advance(len(data))
        _keep(folder, [header, *outputs.values()])
        return Unit(header=header.record(), parts=tuple(part.record() for part in outputs.values()))


def _keep(folder: Path, files: list[HashedFile]) -> None:
    """Get files onto the disk, then all of them under their names."""
    for file in files:
        file.start_writing()
    for file in files:
        file.sync()
    for file in files:
        file.keep()
    sync_folder(folder)
    sync_folder(folder / FOLDER)


def stored_names(
    files: tuple[SourceFile, ...], placements: Mapping[str, Placement], layout: Layout
) -> Iterator[tuple[str, str]]:
    """(stored name, file) of every tensor and slice: the index of the sharded folder."""
    for number, file in enumerate(files, start=1):
        for label, held in entries(file, placements, layout).items():
            yield from ((entry[0], file_name(label, number)) for entry in held)
