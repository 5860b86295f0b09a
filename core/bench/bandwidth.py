"""How fast a device copies its own memory: what a step's bytes are held against."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from max.driver import Device

SIZE = 1 << 27
"""Bytes to copy: more than most last-level caches hold, little enough for a small machine."""


def copy_bandwidth(device: Device, *, size: int = SIZE, repeats: int = 5) -> float:
    """Bytes per second, read and written, of copying `size` bytes within the device's memory.

    On the CPU NumPy copies, with one thread; on a GPU the driver does, timed by the device's events.
    """
    return _on_host(size, repeats) if device.is_host else _on_device(device, size, repeats)


def _on_host(size: int, repeats: int) -> float:
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    seconds = []
    for _ in range(repeats):
        before = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - before)
    return 2 * size / median(seconds)


def _on_device(device: Device, size: int, repeats: int) -> float:
    from max.driver import Buffer, DeviceEvent
    from max.dtype import DType

    source, target = (Buffer.zeros([size], DType.uint8, device) for _ in range(2))
    target.inplace_copy_from(source)
    device.synchronize()
    events = [DeviceEvent(device, enable_timing=True) for _ in range(repeats + 1)]
    queue = device.default_queue
    queue.record_event(events[0])
    for event in events[1:]:
        target.inplace_copy_from(source)
        queue.record_event(event)
    events[-1].synchronize()
    milliseconds = [float(events[i].elapsed_time(events[i + 1])) for i in range(repeats)]
    return 2 * size / (1e-3 * median(milliseconds))
