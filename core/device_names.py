"""What `--devices` may say, read without asking any device."""

from __future__ import annotations

import re
from dataclasses import dataclass

from specdecode.core.errors import UsageError

MOST_RANKS = 64
MOST_GPUS = 8
"""Of `max.nn.comm.Signals`, whose layout has room for so many."""
_NUMBER = "([0-9]{1,6})"
_FORM = re.compile(
    rf"cpu(?:[x×]{_NUMBER})?|gpu:{_NUMBER}(?:[x×]{_NUMBER})?|gpu:([0-9]{{1,6}}(?:,[0-9]{{1,6}})+)|{_NUMBER}"
)
_FORMS = "Use cpu, one GPU as gpu:0, several as gpu:0,1 or by their number as 2, or n logical shards of one as cpux4."


@dataclass(frozen=True, kw_only=True)
class DeviceNames:
    """Devices in rank order.

    Attributes:
        text: as it was written.
        gpus: numbers of GPUs; empty for the CPU.
        shards: logical shards of the one device, 1 for none.
        data_parallel_degree: 1, or the number of ranks.
    """

    text: str
    gpus: tuple[int, ...] = ()
    shards: int = 1
    data_parallel_degree: int = 1

    @classmethod
    def parse(cls, text: str, data_parallel_degree: int = 1) -> DeviceNames:
        """`cpu`, `gpu:N`, `gpu:N,M…`, a number of GPUs, or `cpuxN` and `gpu:NxM` for logical shards.

        Raises:
            UsageError: anything else, a GPU named twice, or a degree that does not suit the number of devices.
        """
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise UsageError(f"--devices {text} is not supported. {_FORMS}")
        cpu_shards, gpu, gpu_shards, several, count = found.groups()
        if count is not None:
            gpus = tuple(range(min(int(count), MOST_RANKS + 1)))
        elif several is not None:
            gpus = tuple(map(int, several.split(",")))
        else:
            gpus = () if gpu is None else (int(gpu),)
        names = cls(
            text=text.strip().replace("×", "x"),
            gpus=gpus,
            shards=int(cpu_shards or gpu_shards or 1),
            data_parallel_degree=data_parallel_degree,
        )
        names._check(count)
        return names

    @property
    def count(self) -> int:
        """Number of ranks."""
        return max(len(self.gpus), 1) * self.shards

    @property
    def label(self) -> str:
        """Devices and, where each has its own requests, that."""
        return self.text if self.data_parallel_degree == 1 else f"{self.text} dp"

    def _check(self, count: str | None) -> None:
        if not 1 <= self.count <= MOST_RANKS or self.shards < 1 or count == "0":
            raise UsageError(f"--devices {self.text}: a model runs on 1 to {MOST_RANKS} devices. {_FORMS}")
        if len(self.gpus) > MOST_GPUS:
            raise UsageError(
                f"--devices {self.text}: MAX's collectives join up to {MOST_GPUS} GPUs of a host. Name {MOST_GPUS} or "
                "fewer."
            )
        if len(set(self.gpus)) != len(self.gpus):
            raise UsageError(f"--devices {self.text} names a GPU twice. Name each once, or use gpu:0x2.")
        if self.data_parallel_degree > 1 and self.count == 1:
            raise UsageError(
                f"--data-parallel-degree {self.data_parallel_degree} needs {self.data_parallel_degree} devices, and "
                f"--devices {self.text} is one. Name as many, for example --devices cpux{self.data_parallel_degree}."
            )
        if self.data_parallel_degree not in (1, self.count):
            raise UsageError(
                f"--data-parallel-degree {self.data_parallel_degree} on {self.count} device(s) is not supported. Use 1 "
                f"(all devices work on every token) or {self.count} (each has its own requests, the experts are "
                "shared)."
            )
