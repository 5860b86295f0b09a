"""How many threads a step's kernels may use, found by measuring.

Waking a second core costs a few microseconds on a quiet machine and hundreds on a busy or virtual one, more than a
small step's kernels take. No rule of thumb holds on both, so steps of each size are timed with every choice now and
then. The results of a step never depend on the choice: a row's sums have one order, whoever forms them.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

TRIALS = 3  # measurements of each choice before the first comparison
RETRY = 50  # steps between two looks at a choice that lost
SMOOTHING = 0.25  # weight of the newest measurement


def thread_choices() -> tuple[int, ...]:
    """One thread, or all that this process may run on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return (1, cores) if cores > 1 else (1,)


@dataclass
class _Choice:
    seconds: float = 0.0
    trials: int = 0

    def record(self, seconds: float) -> None:
        # A first measurement may hold page faults; the second replaces it.
        fresh = self.trials < 2
        self.seconds = seconds if fresh else self.seconds + SMOOTHING * (seconds - self.seconds)
        self.trials += 1


@dataclass
class _Kind:
    choices: dict[int, _Choice]
    steps: int = 0


@dataclass
class ThreadTuner:
    """Picks a thread count for each kind of step.

    Attributes:
        choices: thread counts to choose among, ascending.
    """

    choices: Sequence[int] = field(default_factory=thread_choices)
    _kinds: dict[Hashable, _Kind] = field(default_factory=dict)

    def choose(self, kind: Hashable) -> int:
        """The thread count for the next step of this kind (its rows and phases)."""
        state = self._kinds.setdefault(kind, _Kind(choices={n: _Choice() for n in self.choices}))
        state.steps += 1
        rarest = min(state.choices, key=lambda n: state.choices[n].trials)
        if state.choices[rarest].trials < TRIALS:
            return rarest
        best = min(state.choices, key=lambda n: state.choices[n].seconds)
        return rarest if state.steps % RETRY == 0 else best

    def record(self, kind: Hashable, threads: int, seconds: float) -> None:
        """What a step of this kind took with `threads`."""
        self._kinds[kind].choices[threads].record(seconds)
