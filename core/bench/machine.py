"""The machine that figures were taken on, and what others did on it meanwhile."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path


def machine() -> dict[str, str | int]:
    """What the figures depend on beside the code."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "max": version("max"),
        "python": platform.python_version(),
    }


def cpu_model() -> str:
    """The processor's name and model number, as the system tells them: clouds hide the exact name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    name = told.get("model name", platform.machine())
    numbers = [told.get(key, "?") for key in ("cpu family", "model", "stepping")]
    return f"{name} (family {numbers[0]}, model {numbers[1]}, stepping {numbers[2]})"


class Company:
    """What other processes took of the machine since this was made: they spoil a measurement unseen."""

    def __init__(self) -> None:
        self._start, self._own, self._all = time.perf_counter(), time.process_time(), busy_seconds()

    def cores(self) -> float:
        """Cores that others kept busy on average; 0 where the system does not say."""
        seconds = time.perf_counter() - self._start
        own = time.process_time() - self._own
        return max(0.0, busy_seconds() - self._all - own) / seconds


def busy_seconds() -> float:
    """CPU time that all processes together have taken since the system started."""
    try:
        first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq, *_ = map(int, first.split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
