"""SHA-256 of files: as they are written, or in threads beside whoever reads several of them in turn."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING

from specdecode.core.checkpoint.sharding.files import PartialFile, reading
from specdecode.core.checkpoint.sharding.manifest import Record

if TYPE_CHECKING:
    from hashlib import _Hash

CHUNK = 4 << 20
"""Bytes that are read and written at a time."""
_WAITING = 8  # chunks in a lane before whoever fills it has to wait
_MOST_LANES = 4  # four at 1.4 GB/s are faster than any disk they were tried on, and 128 MiB of chunks may wait


class Lane:
    """A thread that hashes what it is given, in order, so that many digests may share it."""

    def __init__(self) -> None:
        self._waiting: Queue[tuple[_Hash, bytes] | threading.Event | None] = Queue(_WAITING)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, state: _Hash, data: bytes) -> None:
        """Hash some more, later."""
        self._waiting.put((state, data))

    def drain(self) -> None:
        """Wait until everything is hashed that was put before."""
        done = threading.Event()
        self._waiting.put(done)
        done.wait()

    def close(self) -> None:
        """Finish and end the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
            else:
                state, data = item
                state.update(data)


class Digest:
    """A SHA-256 that is computed in a lane."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._state = hashlib.sha256()

    def update(self, data: bytes) -> None:
        """Add bytes, which must not change afterwards."""
        self._lane.put(self._state, data)

    def hex(self) -> str:
        """The value so far."""
        self._lane.drain()
        return self._state.hexdigest()


class Hasher:
    """Lanes for as many files as there are cores to spare."""

    def __init__(self) -> None:
        self._lanes = [Lane() for _ in range(min(_MOST_LANES, max(1, (os.cpu_count() or 1) - 1)))]
        self._next = 0

    def __enter__(self) -> Hasher:
        return self

    def __exit__(self, *_: object) -> None:
        for lane in self._lanes:
            lane.close()

    def digest(self) -> Digest:
        """A new SHA-256; files that are written in turn get different lanes."""
        self._next += 1
        return Digest(self._lanes[self._next % len(self._lanes)])


class HashedFile(PartialFile):
    """A file whose SHA-256 is computed as it is written, by who writes it."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder / name)
        self._name = name
        self._state = hashlib.sha256()

    def write(self, data: bytes) -> None:
        super().write(data)
        self._state.update(data)

    def record(self) -> Record:
        """Of what was written so far."""
        return Record(name=self._name, nbytes=self.size, sha256=self._state.hexdigest())


def sha256_of(path: Path) -> str:
    """Of a whole file."""
    state = hashlib.sha256()
    with reading(path), path.open("rb") as file:
        while data := file.read(CHUNK):
            state.update(data)
    return state.hexdigest()
