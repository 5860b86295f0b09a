"""Whether a sharded folder is whole: every file's SHA-256, its index and shapes, and the original's bytes."""

from __future__ import annotations

from pathlib import Path

from specdecode.core.checkpoint.reader import Checkpoint
from specdecode.core.checkpoint.sharding.files import Reader, reading
from specdecode.core.checkpoint.sharding.hashing import Hasher
from specdecode.core.checkpoint.sharding.rejoin import Sharded, check_small, original_bytes
from specdecode.core.checkpoint.sharding.writer import Watcher
from specdecode.core.errors import MismatchError


def verify(sharded: Sharded, original: Path | None, watcher: Watcher) -> None:
    """Read everything once, put the original shards together, and compare them with the original if it is given.

    Raises:
        MismatchError: naming the first file with other bytes.
        CheckpointError: a file cannot be read, or the folder is no sound checkpoint.
    """
    check_small(sharded)
    Checkpoint.open(sharded.path)
    pairs = sharded.manifest.pairs
    watcher.begin(sum(origin.nbytes for origin, _ in pairs), 0)
    with Hasher() as hasher:
        for origin, unit in pairs:
            joined = original_bytes(sharded, unit, hasher)
            if original is None:
                for data in joined:
                    watcher.advance(len(data))
            else:
                path = original / origin.name
                with reading(path), path.open("rb", buffering=0) as stream:
                    read, at = Reader(stream, path), 0
                    for data in joined:
                        if read(len(data)) != data:
                            raise MismatchError(_differs(path, sharded.path, at))
                        at += len(data)
                        watcher.advance(len(data))
                    if stream.read(1):
                        raise MismatchError(_differs(path, sharded.path, at))
            watcher.note(f"{origin.name}: same bytes" if original else f"{origin.name}: sound")


def _differs(path: Path, folder: Path, at: int) -> str:
    return (
        f"{path} and the slices in {folder} differ after byte {at:,}. The original has changed since, or a file of the "
        "folder is damaged: shard-weights --verify on the folder alone tells. Shard the original again."
    )
