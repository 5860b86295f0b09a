"""Compiled graphs on disk: shipped with the package, or compiled once into the user's cache.

MAX compiles for minutes and loads a compiled graph (a MEF) in milliseconds. A MEF holds native code for
one device and one version of MAX, so each lies beside a manifest with what it was made from, and is
used only if all of that is what is needed now:

    store = GraphStore(shipped=Path("presets/demo/graphs"))
    model, info = store.load(session, GraphKey.here("step", digest), build, weights_registry=weights)
"""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdecode.core.engine.mef import PORTABLE_CPU as PORTABLE_CPU
from specdecode.core.engine.mef import GraphKey, Manifest, MefFile, cache_directory
from specdecode.core.progress import Progress, Silent, ticking

if TYPE_CHECKING:
    from max.engine import CompiledModel, InferenceSession, Model
    from max.graph import Graph

compiled_here: list[GraphInfo] = []
"""What this process compiled, in order; a test run adds up its cost."""


@dataclass(frozen=True, kw_only=True)
class GraphInfo:
    """Where a graph came from and what it cost.

    Attributes:
        name: the graph's name.
        ops: operations in it and its subgraphs.
        compile_cpu_seconds: CPU time of the compilation, in this process or when the MEF was made.
        source: `shipped`, `cache`, or `compiled` just now.
    """

    name: str
    ops: int
    compile_cpu_seconds: float
    source: str

    @property
    def cached(self) -> bool:
        """Whether nothing had to be compiled."""
        return self.source != "compiled"

    def __str__(self) -> str:
        cost = f"{self.compile_cpu_seconds:.0f} CPU-seconds"
        how = f"compiled in {cost}" if not self.cached else f"{self.source}, not compiled (was {cost})"
        return f"graph {self.name}: {self.ops} ops, {how}"


class GraphStore:
    """Load graphs, compiling only what no stored MEF matches.

    Args:
        shipped: folder of ready-made graphs, never written to.
        cache: folder for what is compiled here; None = the user's cache folder.
    """

    def __init__(self, *, shipped: Path | None = None, cache: Path | None = None) -> None:
        self._shipped = shipped
        self._cache = cache_directory() if cache is None else cache

    def load(
        self,
        session: InferenceSession,
        key: GraphKey,
        build: Callable[[], Graph],
        *,
        weights_registry: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> tuple[Model, GraphInfo]:
        """An initialised model: from a stored MEF if one matches `key`, compiled and stored otherwise.

        Args:
            build: traces the graph; called only if it has to be compiled.
            weights_registry: passed on to MAX; read-only NumPy arrays must outlive the model.
            progress: told about damaged files, the time that compiling takes, and the outcome.
        """
        progress = progress or Silent()
        for source, file in self._places(key):
            manifest = file.manifest_for(key, progress)
            if manifest is not None:
                model = _initialise(session, file, weights_registry, progress)
                if model is not None:
                    return model, _told(GraphInfo(source=source, **manifest.cost(key)), progress)
        compiled, info = _compile(session, key, build, progress)
        MefFile.cached(self._cache, key).write(compiled.export_mef, Manifest.of(key, info), progress)
        return session.init(compiled, weights_registry=weights_registry), _told(info, progress)

    def make(
        self, session: InferenceSession, key: GraphKey, build: Callable[[], Graph], progress: Progress
    ) -> GraphInfo:
        """See to it that the cache has a graph. Nothing is initialised, so its device may be absent."""
        file = MefFile.cached(self._cache, key)
        manifest = file.manifest_for(key, progress)
        if manifest is not None:
            return _told(GraphInfo(source="cache", **manifest.cost(key)), progress)
        compiled, info = _compile(session, key, build, progress)
        file.write(compiled.export_mef, Manifest.of(key, info), progress)
        return _told(info, progress)

    def compile_into(
        self,
        session: InferenceSession,
        key: GraphKey,
        build: Callable[[], Graph],
        folder: Path,
        progress: Progress,
    ) -> GraphInfo:
        """Compile afresh and store in `folder` in the form of shipped graphs."""
        compiled, info = _compile(session, key, build, progress)
        folder.mkdir(parents=True, exist_ok=True)
        MefFile.shipped(folder, key).write(compiled.export_mef, Manifest.of(key, info), progress)
        return _told(info, progress)

    def _places(self, key: GraphKey) -> list[tuple[str, MefFile]]:
        places = [("cache", MefFile.cached(self._cache, key))]
        if self._shipped is not None:
            places.insert(0, ("shipped", MefFile.shipped(self._shipped, key)))
        return places


def count_ops(graph: Graph) -> int:
    """Operations of a graph and its subgraphs, by the lines of its text."""
    return len(re.findall(r"^\s+(?:%\S+ = )?r?mo\.(?!graph\b)", str(graph.module.mlir_module), flags=re.MULTILINE))


def _compile(
    session: InferenceSession, key: GraphKey, build: Callable[[], Graph], progress: Progress
) -> tuple[CompiledModel, GraphInfo]:
    if key.portable:
        _target_portable_cpu()
    before = _cpu_seconds()
    with ticking(progress, f"compiling graph {key.name} for {key.target} (once; it is kept)"):
        graph = build()
        compiled = session.compile(graph)
    info = GraphInfo(
        name=key.name,
        ops=count_ops(graph),
        compile_cpu_seconds=round(_cpu_seconds() - before, 1),
        source="compiled",
    )
    compiled_here.append(info)
    return compiled, info


def _target_portable_cpu() -> None:
    """Let kernels be compiled for the generic CPU; holds for the process, from its first compilation on."""
    from max.driver import get_virtual_cpu_target, set_virtual_cpu_target

    if get_virtual_cpu_target() != PORTABLE_CPU:
        set_virtual_cpu_target(PORTABLE_CPU)


def _initialise(
    session: InferenceSession, file: MefFile, weights: Mapping[str, Any] | None, progress: Progress
) -> Model | None:
    from max.engine import read

    with ExitStack() as stack:
        try:
            compiled = read(stack.enter_context(file.readable()))
        except Exception as error:
            progress.note(f"{file.path} cannot be loaded ({error}); it is compiled again.")
            return None
        return session.init(compiled, weights_registry=weights)


def _told(info: GraphInfo, progress: Progress) -> GraphInfo:
    progress.note(str(info))
    return info


def _cpu_seconds() -> float:
    """CPU time of this process and the children it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
