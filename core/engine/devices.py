"""The opened devices of a model, and a session over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specdecode.core.device_names import DeviceNames
from specdecode.core.engine.device import Place, open_place
from specdecode.core.errors import DeviceError

if TYPE_CHECKING:
    from max.driver import Device
    from max.engine import InferenceSession

    from specdecode.core.device_layout import DeviceLayout


@dataclass(frozen=True, kw_only=True)
class Places:
    """Opened devices in rank order.

    Attributes:
        names: as `--devices` spells them.
        ranks: the device of each rank; the same one n times for n logical shards of it.
    """

    names: DeviceNames
    ranks: tuple[Place, ...]

    @property
    def first(self) -> Place:
        """The device that owns the batch-wide tensors."""
        return self.ranks[0]

    @property
    def single(self) -> bool:
        """Whether there is one rank only."""
        return len(self.ranks) == 1

    @property
    def devices(self) -> list[Device]:
        """MAX's handles, one per rank."""
        return [place.device for place in self.ranks]

    @property
    def different(self) -> list[Place]:
        """The devices without repetition."""
        return [self.first] if self.names.shards > 1 else list(self.ranks)

    @property
    def layout(self) -> DeviceLayout:
        """The devices in a graph."""
        from specdecode.core.device_layout import DeviceLayout

        return DeviceLayout(
            devices=tuple(place.ref for place in self.ranks), data_parallel_degree=self.names.data_parallel_degree
        )

    def session(self) -> InferenceSession:
        """A session on them; with GPUs the CPU takes part, as some graph inputs stay on the host."""
        from max.driver import CPU
        from max.engine import InferenceSession

        if self.first.is_host:
            return InferenceSession(devices=[self.first.device])
        return InferenceSession(devices=[*(place.device for place in self.different), CPU()])


def one_place(place: Place) -> Places:
    """One opened device."""
    return Places(names=DeviceNames.parse(place.name), ranks=(place,))


def open_places(devices: str, data_parallel_degree: int = 1) -> Places:
    """Open the devices that `--devices` names.

    Raises:
        UsageError: it names none. DeviceError: a GPU is absent, or the kernels do not run on it.
    """
    names = DeviceNames.parse(devices, data_parallel_degree)
    if len(names.gpus) > 1:
        _check_there(names)
    opened = [open_place(f"gpu:{number}") for number in names.gpus] or [open_place("cpu")]
    return Places(names=names, ranks=tuple(opened * names.shards))


def _check_there(names: DeviceNames) -> None:
    from max.driver import accelerator_count

    count = int(accelerator_count())
    missing = [f"gpu:{number}" for number in names.gpus if number >= count]
    if missing:
        found = {0: "no GPU", 1: "one GPU, gpu:0"}.get(count, f"{count} GPUs, gpu:0 to gpu:{count - 1}")
        listed = ", ".join(missing[:4]) + (" …" if len(missing) > 4 else "")
        raise DeviceError(
            f"--devices {names.text} needs {len(names.gpus)} GPUs, and MAX finds {found}: {listed} "
            f"{'is' if len(missing) == 1 else 'are'} missing. Use what is there, or --devices cpux{len(names.gpus)}, "
            "which runs the same layout on the CPU."
        )
