"""Between a whole tensor and its slices, through a bounded buffer.

Both directions touch every byte of every file once and in order: tensors lie end to end, rows of a tensor too, and a
cut along columns is made for as many rows at a time as fit into the buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from specdecode.core.checkpoint.slices import Axis

Read = Callable[[int], bytes]
"""The next so many bytes of a file."""


def cut(
    shape: tuple[int, ...], nbytes: int, axis: Axis | None, ranks: int, read: Read, chunk: int
) -> Iterator[tuple[int, bytes]]:
    """(rank, bytes) of a tensor that `read` gives in order; rank 0 where it is not cut.

    Args:
        shape: of the whole tensor, with a multiple of `ranks` along `axis`.
        nbytes: of the whole tensor.
        chunk: bytes in memory at a time.
    """
    if axis is None or ranks == 1:
        yield from ((0, read(size)) for size in _steps(nbytes, chunk))
    elif axis is Axis.ROWS:
        for rank in range(ranks):
            yield from ((rank, read(size)) for size in _steps(nbytes // ranks, chunk))
    else:
        for rows, width in _bands(shape, nbytes, chunk):
            if rows == 0:  # a single row larger than the buffer
                for rank in range(ranks):
                    yield from ((rank, read(size)) for size in _steps(width // ranks, chunk))
                continue
            band = np.frombuffer(read(rows * width), np.uint8).reshape(rows, ranks, width // ranks)
            yield from ((rank, band[:, rank].tobytes()) for rank in range(ranks))


def join(shape: tuple[int, ...], nbytes: int, axis: Axis | None, reads: list[Read], chunk: int) -> Iterator[bytes]:
    """The bytes of a whole tensor from its slices, the inverse of `cut`; `reads` has one entry where it is not cut."""
    ranks = len(reads)
    if axis is None or axis is Axis.ROWS or ranks == 1:
        for read in reads:
            yield from (read(size) for size in _steps(nbytes // ranks, chunk))
        return
    for rows, width in _bands(shape, nbytes, chunk):
        if rows == 0:
            for read in reads:
                yield from (read(size) for size in _steps(width // ranks, chunk))
            continue
        parts = [np.frombuffer(read(rows * width // ranks), np.uint8).reshape(rows, -1) for read in reads]
        yield np.concatenate(parts, axis=1).tobytes()


def _steps(nbytes: int, chunk: int) -> Iterator[int]:
    for at in range(0, nbytes, chunk):
        yield min(chunk, nbytes - at)


def _bands(shape: tuple[int, ...], nbytes: int, chunk: int) -> Iterator[tuple[int, int]]:
    """(rows, bytes of a row) of one buffer after the other; 0 rows stand for one that does not fit into it."""
    rows = math.prod(shape[:-1])
    if nbytes == 0:
        return
    width = nbytes // rows
    at_a_time = chunk // width
    if at_a_time == 0:
        yield from ((0, width) for _ in range(rows))
        return
    for at in range(0, rows, at_a_time):
        yield min(at_a_time, rows - at), width
