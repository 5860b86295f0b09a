"""What is measured of either model, in the same way."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specdecode.core.bench.spread import Spread
from specdecode.core.engine.graph_store import count_ops
from tests.benchmarks.released.clocks import device_ms, launches, wall_ms

if TYPE_CHECKING:
    from max.driver import Device
    from max.engine import CompiledModel, InferenceSession
    from max.graph import Graph


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Seconds by the clock, and of CPU time in this process and the children it has waited for."""

    wall: float
    cpu: float


@dataclass(frozen=True, kw_only=True)
class Build:
    """What it takes to have the graph.

    Attributes:
        ops: operations in the graph and its subgraphs.
        trace: building the graph in Python.
        compile: compiling it, with an empty cache; None where only the trace was asked for.
        load: initialising it with its weights; None where nothing is run.
    """

    ops: int
    trace: Spent
    compile: Spent | None = None
    load: Spent | None = None


@dataclass(frozen=True, kw_only=True)
class Step:
    """One kind of step of a batch, in milliseconds.

    Attributes:
        mode: `eager`, or `captured` for a replayed device graph.
        device: between events on the device's queue, steps following each other closely.
        wall: from the call until the three results are on the host, nothing else running.
        host: the call alone; the device may still be busy.
        kernels: launches of an eager step.
        sound: whether what could be checked of the results was in range.
    """

    batch: int
    context: int
    mode: str
    device: Spread
    wall: Spread
    host: Spread
    kernels: int
    sound: bool


class Timer:
    """Takes the time from its making on."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), _cpu_seconds()

    def spent(self) -> Spent:
        return Spent(wall=time.perf_counter() - self._wall, cpu=_cpu_seconds() - self._cpu)


def traced(build: Callable[[], Graph]) -> tuple[Graph, Build]:
    """A graph and what tracing it took."""
    timer = Timer()
    graph = build()
    return graph, Build(ops=count_ops(graph), trace=timer.spent())


def compiled(session: InferenceSession, graph: Graph) -> tuple[CompiledModel, Spent]:
    """A compiled graph; waits until it is."""
    timer = Timer()
    model = session.compile(graph)
    return model, timer.spent()


def timed(
    run: Callable[[], Any],
    read: Callable[[Any], object],
    device: Device,
    *,
    repeats: int,
    kernels: int | None = None,
    **about: Any,
) -> Step:
    """Measure one kind of step.

    Args:
        run: starts a step and returns its results, still on the device.
        read: brings results to the host.
        device: where it runs.
        repeats: runs behind each median.
        kernels: launches, where they are known already.
        about: the other fields of `Step`.
    """
    run()
    device.synchronize()
    return Step(
        kernels=launches(run, device) if kernels is None else kernels,
        device=device_ms(run, device, repeats=repeats),
        wall=wall_ms(lambda: read(run()), repeats=repeats),
        host=Spread.of(_host(run, device, repeats)),
        **about,
    )


def _host(run: Callable[[], Any], device: Device, repeats: int) -> Sequence[float]:
    found = []
    for _ in range(repeats):
        before = time.perf_counter()
        run()
        found.append(1e3 * (time.perf_counter() - before))
        device.synchronize()
    return found


def _cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
