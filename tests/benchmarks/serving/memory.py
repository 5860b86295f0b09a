"""Resident memory of a process, from outside; Linux."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_GIB = 1 << 30
_HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+ *(.*)")


@dataclass(frozen=True, kw_only=True)
class Resident:
    """MiB.

    Attributes:
        runtime: of MAX's own allocator, a TCMalloc that takes address space a whole GiB at a time and keeps what steps
            once needed. There is no call that makes it give anything back.
        rest: of all else: Python's objects, the heaps of all threads, caches, weights, libraries.
    """

    runtime: float
    rest: float

    @property
    def total(self) -> float:
        return self.runtime + self.rest

    @property
    def rounded(self) -> dict[str, float]:
        return {"runtime": round(self.runtime, 1), "rest": round(self.rest, 1)}


def resident(pid: int) -> Resident:
    """What a process holds now."""
    return parsed(Path(f"/proc/{pid}/smaps").read_text())


def parsed(smaps: str) -> Resident:
    """The same of the text of `/proc/PID/smaps`."""
    stretches: list[tuple[int, int, bool, int]] = []
    for line in smaps.splitlines():
        head = _HEAD.fullmatch(line)
        if head is not None:
            begin, end, nameless = int(head[1], 16), int(head[2], 16), not head[3]
            if nameless and stretches and stretches[-1][1] == begin and stretches[-1][2]:
                start, _, _, kib = stretches.pop()
                stretches.append((start, end, True, kib))
            else:
                stretches.append((begin, end, nameless, 0))
        elif line.startswith("Rss:"):
            start, end, nameless, kib = stretches.pop()
            stretches.append((start, end, nameless, kib + int(line.split()[1])))
    runtime = rest = 0
    for start, end, nameless, kib in stretches:
        if nameless and start % _GIB == end % _GIB == 0:
            runtime += kib
        else:
            rest += kib
    return Resident(runtime=runtime / 1024, rest=rest / 1024)
