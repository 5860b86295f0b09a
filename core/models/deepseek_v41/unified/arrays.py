"""Named arrays that steps fill again and again, and the buffers over the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from max.driver import Buffer
from numpy.typing import NDArray

MOST_ARRAYS = 1024
MOST_BYTES = 64 << 20
"""Beyond either all arrays are dropped: a server sees ever new shapes, and each would stay for good."""


class KeptArrays:
    """Arrays by name and shape, made at first use."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, tuple[int, ...]], tuple[NDArray[Any], Buffer]] = {}
        self._bytes = 0

    def _drop_too_many(self) -> bool:
        """Before a step is filled, drop every array if there are too many; whether that was so.

        All at once, because some are filled only when others change.
        """
        if len(self._kept) <= MOST_ARRAYS and self._bytes <= MOST_BYTES:
            return False
        self._kept, self._bytes = {}, 0
        return True

    def _array(self, name: str, dtype: Any, shape: tuple[int, ...]) -> tuple[NDArray[Any], Buffer]:
        """The kept array of this name and shape, and the buffer over the same memory."""
        kept = self._kept.get((name, shape))
        if kept is None:
            array = np.zeros(shape, dtype)
            kept = self._kept[name, shape] = (array, Buffer.from_numpy(array))
            self._bytes += array.nbytes
        return kept

    def _filled(self, name: str, dtype: Any, shape: tuple[int, ...], values: Sequence[float] | float) -> Buffer:
        array, buffer = self._array(name, dtype, shape)
        array[...] = values
        return buffer

    def _ragged(self, name: str, dtype: Any, values: Sequence[Sequence[int]], width: int, pad: int) -> Buffer:
        """[B, width], each row filled up with `pad`."""
        array, buffer = self._array(name, dtype, (len(values), width))
        for place, row in enumerate(values):
            array[place, : len(row)] = row
            array[place, len(row) :] = pad
        return buffer

    def _constant(self, name: str, dtype: Any, shape: tuple[int, ...], value: float) -> Buffer:
        if (name, shape) not in self._kept:
            self._array(name, dtype, shape)[0].fill(value)
        return self._kept[name, shape][1]

    def _steps(self, name: str, dtype: Any, count: int, step: int) -> Buffer:
        """0, step, 2 step … ; kept by step, as it is never filled again."""
        key = f"{name}.{step}"
        if (key, (count,)) not in self._kept:
            self._array(key, dtype, (count,))[0][:] = np.arange(count) * step
        return self._kept[key, (count,)][1]
