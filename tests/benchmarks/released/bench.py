"""The model to measure, and one measured case after the other."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdecode.core.bench.spread import Spread
from specdecode.core.bench.traffic import Step, Traffic, traffic
from specdecode.core.cache.leaves import page_bytes
from specdecode.core.engine.device import Place
from specdecode.core.engine.devices import one_place
from specdecode.core.engine.graph_store import GraphInfo, GraphStore
from specdecode.core.engine.step import StepRow
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.models.deepseek_v41.load import PAGE_SIZE, load_graph
from specdecode.core.models.deepseek_v41.registry import weight_bytes
from specdecode.core.models.deepseek_v41.unified.gpu_model import UnifiedDSparkDeepseekV41GpuModel
from specdecode.core.models.deepseek_v41.unified.model import UnifiedDSparkDeepseekV41Model
from tests.benchmarks.released import clocks
from tests.benchmarks.released.config import layers_config
from tests.benchmarks.released.weights import BLOCK, RandomMemory, random_leaves, random_tables, random_weights
from tests.support.promise import GRAPHS

RESERVE = 6 << 30
"""Bytes of a GPU left for what a step works in, and for recordings."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One batch and context: three kinds of step, in milliseconds on the device, and what each must move.

    Attributes:
        steps: name -> device time; `plain`, `verify` (all draft positions) and the same with `+ draft`.
        wall: name -> time of a whole step on the host's clock, results read.
        traffic: name -> bytes.
        launches: name -> kernels.
        finite: whether the logits of the last step were finite.
    """

    batch: int
    context: int
    steps: dict[str, Spread] = field(default_factory=dict)
    wall: dict[str, Spread] = field(default_factory=dict)
    traffic: dict[str, Traffic] = field(default_factory=dict)
    launches: dict[str, int] = field(default_factory=dict)
    finite: dict[str, bool] = field(default_factory=dict)

    @property
    def draft_ms(self) -> float:
        """What drafting adds to a verify step."""
        return self.steps["verify + draft"].median - self.steps["verify"].median


class Bench:
    """A model of random weights on a device, its caches large enough for the largest case that fits.

    Args:
        place: where it runs.
        tiny: the tests' small model instead of the released sizes.
        cases: (batch, context) pairs.
        progress: told where the graph came from.
    """

    def __init__(self, place: Place, *, tiny: bool, cases: list[tuple[int, int]], progress: Any) -> None:
        self.place, self.config = place, layers_config(tiny=tiny)
        text = self.config.text_config
        self.pages = PageLayout.of(text, PAGE_SIZE)
        self.cases = [case for case in cases if self.fits(case)]
        self.left_out = [case for case in cases if not self.fits(case)]
        memory = RandomMemory(place.device, size=1 << 20 if tiny else BLOCK)
        weights = random_weights(self.config, memory)
        start = time.perf_counter()
        self.info: GraphInfo
        graph, self.info = load_graph(self.config, self.pages, weights, store(tiny), progress, one_place(place))
        self.load_seconds = time.perf_counter() - start
        num_pages = max((self.pages_of(case) for case in self.cases), default=1)
        parts: dict[str, Any] = {
            "pages": self.pages,
            "leaves": random_leaves(text, self.pages, num_pages, memory),
            "engram_host_buffers": random_tables(text, place.device),
            "max_length": text.max_position_embeddings,
        }
        self.model: UnifiedDSparkDeepseekV41Model
        if place.is_host:
            self.model = UnifiedDSparkDeepseekV41Model(self.config, graph, **parts)
        else:
            self.model = UnifiedDSparkDeepseekV41GpuModel(self.config, graph, device=place.device, **parts)

    def pages_of(self, case: tuple[int, int]) -> int:
        batch, context = case
        return batch * -(-context // PAGE_SIZE)

    def needs(self, case: tuple[int, int]) -> int:
        """Bytes of weights and caches."""
        return weight_bytes(self.config) + self.pages_of(case) * page_bytes(self.config.text_config, self.pages)

    def fits(self, case: tuple[int, int]) -> bool:
        reserve, free = 0 if self.place.is_host else RESERVE, self.place.free_memory
        return free is None or self.needs(case) + reserve <= free

    def rows(self, case: tuple[int, int], width: int) -> list[StepRow]:
        """Decode steps at the end of the context, each request with pages of its own."""
        batch, context = case
        text, each = self.config.text_config, -(-context // PAGE_SIZE)
        at, size = context - 1 - text.dspark_block_size, text.vocab_size
        return [
            StepRow(
                tokens=((7919 * place + 11) % size,),
                cache_length=at,
                pages=tuple(range(place * each, (place + 1) * each)),
                draft_tokens=tuple((31 * place + 977 * n + 5) % size for n in range(width)),
                lookback=tuple((13 * place + n) % size for n in range(self.model.lookback_length)),
                seed=place,
                temperature=0.0,
            )
            for place in range(batch)
        ]

    def run(self, case: tuple[int, int], *, repeats: int) -> Case:
        """Measure one case."""
        batch, context = case
        found = Case(batch=batch, context=context)
        for name, width, draft in self.kinds():
            self._measure(found, name, self.rows(case, width), width, draft, repeats)
            found.traffic[name] = traffic(self.config, Step(batch=batch, width=width, context=context, draft=draft))
        return found

    def kinds(self) -> list[tuple[str, int, bool]]:
        block = self.model.block_size
        return [("plain", 0, False), ("verify", block, False), ("verify + draft", block, True)]

    def _measure(self, found: Case, name: str, rows: list[StepRow], width: int, draft: bool, repeats: int) -> None:
        model, device = self.model, self.place.device
        inputs = model.batch_processor.prepare(rows, width=width, draft=draft)
        buffers = model.bind(inputs)
        found.launches[name] = clocks.launches(lambda: model.execute(inputs), device)
        work: clocks.Work = lambda: model.execute(inputs)  # noqa: E731
        if isinstance(model, UnifiedDSparkDeepseekV41GpuModel):
            assert model.captured is not None
            model.captured.clear()  # what a recording works in, for the next one
            work = model.captured.replayer(model.batch_processor.shape_of(rows, width, draft), buffers)
        found.steps[name] = clocks.device_ms(work, device, repeats=repeats)
        found.wall[name] = clocks.wall_ms(lambda: model.step(rows, width=width, draft=draft), repeats=repeats)
        found.finite[name] = bool(model.step(rows, width=width, draft=draft).finite.all())


def store(tiny: bool, folder: Path | None = None) -> GraphStore:
    """Where the graph is: the small model's ships with the tests, the other one is compiled into the user's cache."""
    return GraphStore(shipped=GRAPHS if tiny else None, cache=folder)
