"""Where a model runs: the CPU, or one NVIDIA GPU with the CPU beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specdecode.core.errors import DeviceError

if TYPE_CHECKING:
    from max.driver import Device
    from max.engine import InferenceSession
    from max.graph import DeviceRef


@dataclass(frozen=True, kw_only=True)
class Place:
    """An opened device.

    Attributes:
        name: as `--devices` spells it.
        device: MAX's handle.
    """

    name: str
    device: Device

    @property
    def is_host(self) -> bool:
        return bool(self.device.is_host)

    @property
    def ref(self) -> DeviceRef:
        """The device in a graph."""
        from max.graph import DeviceRef

        return DeviceRef.CPU() if self.is_host else DeviceRef.GPU(self.device.id)

    def session(self) -> InferenceSession:
        """A session on it; with a GPU the CPU takes part, as some graph inputs stay on the host."""
        from max.driver import CPU
        from max.engine import InferenceSession

        return InferenceSession(devices=[self.device] if self.is_host else [self.device, CPU()])

    @property
    def free_memory(self) -> int | None:
        """Bytes that can still be allocated; None where nobody says."""
        if self.is_host:
            return free_host_memory()
        return int(self.device.stats["free_memory"]) or None


def open_place(name: str) -> Place:
    """Open the device that `cpu` or `gpu:N` names.

    Raises:
        ValueError: it is something else. DeviceError: there is no such GPU, or the kernels do not run on it.
    """
    from max.driver import CPU, Accelerator, accelerator_count

    if name == "cpu":
        return Place(name=name, device=CPU())
    match = re.fullmatch(r"gpu:(\d+)", name)
    if match is None:
        raise ValueError(f"{name} is neither cpu nor one GPU")
    index, count = int(match[1]), accelerator_count()
    if index >= count:
        raise DeviceError(_absent(name, count))
    try:
        device = Accelerator(index)
    except ValueError as error:
        raise DeviceError(f"--devices {name} cannot be opened. {_first_line(error)} Use --devices cpu.") from error
    if device.api != "cuda" or not device.is_compatible:
        raise DeviceError(
            f"--devices {name} is {device.model_name} ({device.api}), which the step's kernels do not run on: they "
            "are for NVIDIA GPUs that MAX supports. Use --devices cpu."
        )
    return Place(name=name, device=device)


def absent_gpu(architecture: str) -> Place:
    """One GPU as `absent_gpus` gives them."""
    return absent_gpus(architecture, 1)[0]


def absent_gpus(architecture: str, count: int) -> list[Place]:
    """GPUs that are not here, NVIDIA ones of an architecture like `sm_90a`: graphs compile for them, nothing runs.

    This holds for the whole process, so it comes before anything else is asked of MAX.

    Raises:
        DeviceError: MAX does not take the architecture.
    """
    from max.driver import (
        Accelerator,
        set_virtual_device_api,
        set_virtual_device_count,
        set_virtual_device_target_arch,
    )

    if not re.fullmatch(r"sm_\d+[a-z]?", architecture):
        raise DeviceError(f"{architecture} is no architecture of an NVIDIA GPU. Name one like sm_90a (Hopper).")
    set_virtual_device_api("cuda")
    set_virtual_device_target_arch(architecture)
    set_virtual_device_count(count)
    return [Place(name=f"gpu:{number}", device=Accelerator(number)) for number in range(count)]


def free_host_memory() -> int | None:
    """Bytes of main memory that can still be allocated, where the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def _absent(name: str, count: int) -> str:
    if count:
        found = "one GPU, gpu:0" if count == 1 else f"{count} GPUs, gpu:0 to gpu:{count - 1}"
        return f"--devices {name}: there is no such GPU, MAX finds {found}. Use one of them, or --devices cpu."
    return (
        f"--devices {name}: MAX finds no GPU here (accelerator_count() is 0).{_driver_says()} Install the NVIDIA "
        "driver if there is one, or use --devices cpu."
    )


def _driver_says() -> str:
    """What keeps MAX from a GPU, in its own words, as far as it says so."""
    from max.driver import Accelerator

    try:
        Accelerator(0)
    except ValueError as error:
        told = re.search(r"CUDA information: *(.+)", str(error))
        return f" The driver says: {told[1].strip().rstrip('.')}." if told else ""
    return ""


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".") + "."
