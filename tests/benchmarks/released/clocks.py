"""Time on the device by its own events, or on the CPU by its clock; launches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from max.driver import DeviceEvent, launch_trace

from specdecode.core.bench.spread import Spread

if TYPE_CHECKING:
    from max.driver import Device

Work = Callable[[], object]


def device_ms(work: Work, device: Device, *, repeats: int, warm_up: int = 3) -> Spread:
    """Milliseconds that the device is busy with some work, over many runs that follow each other closely."""
    for _ in range(warm_up):
        work()
    device.synchronize()
    if device.is_host:
        return Spread.of([_wall(work) for _ in range(repeats)])
    events = [DeviceEvent(device, enable_timing=True) for _ in range(repeats + 1)]
    queue = device.default_queue
    queue.record_event(events[0])
    for event in events[1:]:
        work()
        queue.record_event(event)
    events[-1].synchronize()
    return Spread.of([events[i].elapsed_time(events[i + 1]) for i in range(repeats)])


def wall_ms(work: Work, *, repeats: int, warm_up: int = 3) -> Spread:
    """Milliseconds on the host's clock of work that waits for its results."""
    for _ in range(warm_up):
        work()
    return Spread.of([_wall(work) for _ in range(repeats)])


def _wall(work: Work) -> float:
    before = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - before)


def launches(work: Work, device: Device) -> int:
    """Kernels that some work launches; 0 where MAX records none."""
    with launch_trace() as entries:
        work()
        device.synchronize()
    return sum(entry.kind == entry.OperationKind.KERNEL_LAUNCH for entry in entries)
