"""Which devices a model runs on, and how they share the work.

Tensor parallel: all devices work on every row, each with its part of every large matrix. Data parallel: each device has
requests and caches of its own, and its part of the routed experts, which the rows of all devices visit.
"""

from __future__ import annotations

from dataclasses import dataclass

from max.graph import DeviceRef

from specdecode.core.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class DeviceLayout:
    """Devices in rank order.

    Attributes:
        devices: one per rank; the same one n times for n logical shards of it.
        data_parallel_degree: 1, or the number of ranks.

    Raises:
        UsageError: another degree, or some devices named twice and others not.
    """

    devices: tuple[DeviceRef, ...]
    data_parallel_degree: int = 1

    def __post_init__(self) -> None:
        count = len(self.devices)
        if self.data_parallel_degree not in (1, count):
            raise UsageError(
                f"A data-parallel degree of {self.data_parallel_degree} on {count} devices is not supported. Use 1 "
                f"(tensor parallel) or {count} (each device has its own requests, the experts are shared)."
            )
        if len(set(self.devices)) not in (1, count):
            raise UsageError("A device is named twice. Name each once, or one of them for n logical shards of it.")

    @classmethod
    def single(cls, device: DeviceRef) -> DeviceLayout:
        """One device."""
        return cls(devices=(device,))

    @property
    def count(self) -> int:
        """Number of ranks."""
        return len(self.devices)

    @property
    def first(self) -> DeviceRef:
        """The device that owns the batch-wide tensors."""
        return self.devices[0]

    @property
    def replicas(self) -> int:
        """How many parts the requests are divided into."""
        return self.data_parallel_degree

    @property
    def data_parallel(self) -> bool:
        """Whether each device has its own requests."""
        return self.data_parallel_degree > 1

    @property
    def logical(self) -> bool:
        """Whether all ranks are on one device, where results need no transfer."""
        return len(set(self.devices)) == 1

    @property
    def signals(self) -> int:
        """How many signal buffers the collectives need."""
        return 0 if self.logical else self.count

    def named(self, name: str, rank: int) -> str:
        """A graph input that every rank has: as it is on one device, else with the rank."""
        return name if self.count == 1 else f"{name}.{rank}"

    def __str__(self) -> str:
        """What a graph's digest is told, the kind of device aside."""
        kind = "logical" if self.logical else "devices"
        return f"{self.count} {kind}, data parallel {self.data_parallel_degree}"
