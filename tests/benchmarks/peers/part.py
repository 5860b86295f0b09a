"""One of the two models, from its trace to its steps, in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from max.driver import accelerator_count

from specdecode.core.bench.machine import machine
from specdecode.core.engine.device import Place, absent_gpu, open_place
from specdecode.core.errors import ModelError, UsageError
from tests.benchmarks.peers.figures import Build, Spent, Step, Timer, compiled, traced
from tests.benchmarks.peers.ours import Ours
from tests.benchmarks.peers.sizes import Sizes
from tests.benchmarks.peers.v4 import V4

if TYPE_CHECKING:
    from max.engine import CompiledModel, InferenceSession
    from max.graph import Graph

MODELS: dict[str, type[Ours] | type[V4]] = {"ours": Ours, "max": V4}
ABSENT = "sm_90a"
"""The GPU to trace and compile for where nothing is run: an H200's."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How far to go: `trace`, `compile` (both for a GPU that may be absent) or `steps`; and what to run.

    keep: a folder for compiled graphs, which are not compiled again where it has them.
    """

    until: str
    devices: str
    cases: tuple[tuple[int, int], ...]
    repeats: int
    keep: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Part:
    """What was measured of one model, where."""

    title: str
    machine: dict[str, str | int]
    build: Build
    steps: Sequence[Step] = ()


def measure(name: str, sizes: Sizes, plan: Plan) -> Iterator[Part]:
    """Trace, compile, load and run one model, saying so as it goes; yields what is known after each.

    Raises:
        UsageError: there is no GPU to run on, a CPU was named, or a context that the models do not have.
        DeviceError: the GPU cannot be used.
        ModelError: MAX's own architecture cannot be imported.
    """
    check(plan, sizes)
    place = opened(plan)
    where = machine() | {"device": place.device.model_name if plan.until == "steps" else f"none, for {ABSENT}"}
    model = made(name, sizes, place)
    graph, build = traced(model.graph)
    part = Part(title=model.title, machine=where, build=build)
    say(name, f"traced in {build.trace.wall:.1f} s, {build.trace.cpu:.1f} CPU-s: {build.ops} ops")
    yield part
    if plan.until == "trace":
        return
    session = place.session()
    artifact, spent = stored(plan.keep, name) or compiled_and_kept(plan.keep, name, session, graph)
    say(name, f"compiled in {spent.wall:.1f} s, {spent.cpu:.1f} CPU-s")
    part = replace(part, build=replace(build, compile=spent))
    yield part
    if plan.until == "compile":
        return
    timer = Timer()
    loaded = model.load(session, artifact)
    part = replace(part, build=replace(part.build, load=timer.spent()))
    for step in model.steps(loaded, list(plan.cases), plan.repeats):
        say(name, f"batch {step.batch}, context {step.context}, {step.mode}: {step.device.text(3)} ms on the device")
        part = replace(part, steps=[*part.steps, step])
        yield part


def compiled_and_kept(
    keep: Path | None, name: str, session: InferenceSession, graph: Graph
) -> tuple[CompiledModel, Spent]:
    """A graph compiled with an empty cache, and what it took."""
    say(name, "compiling, with an empty cache")
    artifact, spent = compiled(session, graph)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        artifact.export_mef(keep / f"{name}.mef")
        (keep / f"{name}.json").write_text(json.dumps(asdict(spent)), encoding="utf-8")
    return artifact, spent


def stored(keep: Path | None, name: str) -> tuple[CompiledModel, Spent] | None:
    """A graph that was compiled before, maybe elsewhere, and what that took."""
    if keep is None or not (keep / f"{name}.json").exists():
        return None
    from max.engine import read

    say(name, f"compiled before, in {keep}")
    spent = Spent(**json.loads((keep / f"{name}.json").read_text(encoding="utf-8")))
    return read(keep / f"{name}.mef"), spent


def made(name: str, sizes: Sizes, place: Place) -> Ours | V4:
    """The model, its graph not yet traced."""
    try:
        return MODELS[name](sizes, place)
    except ImportError as error:
        raise ModelError(
            f"MAX's own DeepSeek-V4 cannot be imported: {error}. Install what its pipelines need, pip install "
            "'max[serve]==26.7.0', or measure --part ours alone."
        ) from error


def check(plan: Plan, sizes: Sizes) -> None:
    """Refuse batches and contexts that cannot be run."""
    least, most = 2 * sizes.block, sizes.max_length - 2 * sizes.block
    for batch, context in plan.cases:
        if batch < 1 or not least <= context <= most:
            raise UsageError(
                f"batch {batch}, context {context} cannot be run: a batch is 1 or more, a context {least} to {most}."
            )


def opened(plan: Plan) -> Place:
    """The GPU to run on, or an absent one to compile for."""
    if plan.until != "steps":
        return absent_gpu(ABSENT)
    if not accelerator_count():
        raise UsageError(
            "there is no GPU to run on: MAX finds none here (accelerator_count() is 0), and its speculative step does "
            "not run on a CPU. --trace-only and --compile-only work without one."
        )
    place = open_place(plan.devices)
    if place.is_host:
        raise UsageError("--devices cpu: MAX's speculative step does not run on a CPU. Use gpu:0, or --trace-only.")
    return place


def say(name: str, text: str) -> None:
    print(f"[{name}] {text}", flush=True)


def save(path: Path, name: str, part: Part, sizes: Sizes) -> dict[str, Any]:
    """Add a part to a file, beside the other one if that was measured at the same sizes; returns its content."""
    document = kept(path, sizes)
    document["parts"][name] = json.loads(json.dumps(asdict(part)))
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return document


def kept(path: Path, sizes: Sizes) -> dict[str, Any]:
    """What a file holds already for these sizes."""
    fresh: dict[str, Any] = {"sizes": json.loads(json.dumps(asdict(sizes))), "parts": {}}
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return fresh
    return old if isinstance(old, dict) and old.get("sizes") == fresh["sizes"] else fresh
