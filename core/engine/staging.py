"""Moving a step's small tensors between host and device with one copy each way.

A frame is the memory of all inputs of steps of one shape: pinned on the host, and once more on the device with the
same layout. A step fills the host's arrays and sends them with a single copy. Arrays must not be filled while a copy
still reads them, so filling waits for the copy before it; a step that has been read back leaves nothing to wait for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from max.driver import Buffer, Usage
from max.dtype import DType
from numpy.typing import NDArray

if TYPE_CHECKING:
    from max.driver import Device, DeviceEvent

ALIGNMENT = 256  # bytes: what an allocation of its own would have
Name = tuple[str, tuple[int, ...]]
Pair = tuple[NDArray[Any], Buffer]
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most `limit` values, the ones used last; `dropped` is told which one goes."""

    def __init__(self, limit: int, dropped: Callable[[K, V], None] = lambda key, value: None) -> None:
        if limit < 1:
            raise ValueError(f"{limit=}: there must be room for one")
        self._limit, self._dropped = limit, dropped
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """The value, which thereby is the newest."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Keep a value, dropping the one that was used longest ago if there are too many."""
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._limit:
            self._dropped(*self._values.popitem(last=False))

    def drop(self, key: K) -> None:
        """Drop one value, if it is there."""
        if key in self._values:
            self._dropped(key, self._values.pop(key))

    def clear(self) -> None:
        """Drop all values."""
        for key in list(self._values):
            self.drop(key)

    def __len__(self) -> int:
        return len(self._values)


def pinned_bytes(size: int, device: Device) -> Buffer:
    """uint8 [size] in memory of the host that the device copies from and to without a detour."""
    return Buffer(DType.uint8, [size], device, usage=Usage.STAGING | Usage.UNTRACKED)


def typed(space: Buffer, at: int, dtype: Any, shape: Sequence[int]) -> Buffer:
    """A tensor within uint8 memory, from byte `at` on."""
    kind = DType.from_numpy(np.dtype(dtype))
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return space[at : at + size].view(kind, list(shape))


class Frame:
    """The inputs of one shape of step.

    Args:
        arrays: every input by name and shape, with its first content.
        device: where they go.

    Attributes:
        arrays: the same names and shapes: arrays in pinned memory, and buffers on the device.
    """

    def __init__(self, arrays: Mapping[Name, NDArray[Any]], device: Device) -> None:
        places, size = {}, 0
        for name, array in arrays.items():
            places[name] = size
            size += -(-max(array.nbytes, 1) // ALIGNMENT) * ALIGNMENT
        self._host, self._device = pinned_bytes(size, device), Buffer(DType.uint8, [size], device)
        self._queue, self._sent = device.default_queue, None
        memory: NDArray[np.uint8] = self._host.to_numpy()
        self.arrays: dict[Name, Pair] = {}
        for name, array in arrays.items():
            at = places[name]
            home = memory[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
            home[...] = array
            self.arrays[name] = (home, typed(self._device, at, array.dtype, array.shape))

    _sent: DeviceEvent | None

    def wait(self) -> None:
        """Wait until the arrays may be filled."""
        if self._sent is not None:
            self._sent.synchronize()
            self._sent = None

    def send(self) -> None:
        """Copy the arrays to the device, behind what it still runs."""
        self._device.inplace_copy_from(self._host)
        self._sent = self._queue.record_event()


class Landing:
    """Pinned memory for results of one shape, and the one wait for them."""

    def __init__(self, results: Sequence[Buffer], device: Device) -> None:
        self._queue = device.default_queue
        sizes = [int(result.num_elements) * int(result.dtype.size_in_bytes) for result in results]
        padded = [-(-max(size, 1) // ALIGNMENT) * ALIGNMENT for size in sizes]
        memory, at = pinned_bytes(sum(padded), device), 0
        self._buffers: list[Buffer] = []
        for result, size, space in zip(results, sizes, padded, strict=True):
            self._buffers.append(memory[at : at + size].view(result.dtype, list(result.shape)))
            at += space
        self._arrays = [buffer.to_numpy() for buffer in self._buffers]

    def fetch(self, results: Sequence[Buffer]) -> list[NDArray[Any]]:
        """The results on the host once all are there; valid until the next call."""
        for buffer, result in zip(self._buffers, results, strict=True):
            buffer.inplace_copy_from(result)
        self._queue.record_event().synchronize()
        return self._arrays
