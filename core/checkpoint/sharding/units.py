"""Several original shards cut at a time, so that hashing, which takes more time than copying, has all cores."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

from specdecode.core.checkpoint.sharding.layout import Layout, Placement
from specdecode.core.checkpoint.sharding.manifest import Unit
from specdecode.core.checkpoint.sharding.source import Source
from specdecode.core.checkpoint.sharding.unit import Advance, cut_unit

_MOST_WORKERS = 4  # each copies and hashes about a gigabyte a second; more would only keep more files unfinished


def workers() -> int:
    """How many original shards are cut at a time: one for each core, within limits."""
    return min(_MOST_WORKERS, len(os.sched_getaffinity(0)))


def cut_units(
    source: Source, done: int, *, folder: Path, placements: Mapping[str, Placement], layout: Layout, advance: Advance
) -> Generator[Unit]:
    """What becomes of the original shards after the first `done`, in their order, safe on the disk.

    Closing the iterator, or an exception in it, stops what is being cut and removes its temporary files.

    Raises:
        CheckpointError: the original cannot be read. StorageError: the folder cannot be written.
    """
    turn, stop = threading.Lock(), threading.Event()

    def advance_in_turn(nbytes: int) -> None:
        with turn:
            if stop.is_set():
                raise CancelledError
            advance(nbytes)

    def cut(number: int) -> Unit:
        return cut_unit(
            source.files[number],
            number + 1,
            folder=folder,
            placements=placements,
            layout=layout,
            advance=advance_in_turn,
        )

    with ThreadPoolExecutor(workers()) as pool:
        futures = [pool.submit(cut, number) for number in range(done, len(source.files))]
        try:
            for future in futures:
                yield future.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
