"""This project's step at the given sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specdecode.core.engine.device import Place
from specdecode.core.engine.devices import one_place
from specdecode.core.engine.step import StepRow
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.load import PAGE_SIZE, StepGraph
from specdecode.core.models.deepseek_v41.unified.gpu_model import UnifiedDSparkDeepseekV41GpuModel
from specdecode.core.models.deepseek_v41.unified.model import UnifiedEagleOutputs
from tests.benchmarks.peers.figures import Step, timed
from tests.benchmarks.peers.sizes import Sizes, our_content
from tests.benchmarks.released.weights import RandomMemory, random_leaves, random_weights

if TYPE_CHECKING:
    from max.engine import CompiledModel, InferenceSession, Model
    from max.graph import Graph


class Ours:
    """The model to build and to run.

    Args:
        sizes: as of both models.
        place: a GPU, which may be absent as long as nothing is loaded.
    """

    title = "specdecode, V4.1"

    def __init__(self, sizes: Sizes, place: Place) -> None:
        self.sizes, self.place = sizes, place
        self.config = DeepseekV41Config.from_json(our_content(sizes))
        self.pages = PageLayout.of(self.config.text_config, PAGE_SIZE)

    def graph(self) -> Graph:
        return StepGraph(config=self.config, pages=self.pages, places=one_place(self.place)).build()

    def load(self, session: InferenceSession, compiled: CompiledModel) -> Model:
        """The graph with random weights."""
        self.memory = RandomMemory(self.place.device, size=1 << 22)
        return session.init(compiled, weights_registry=random_weights(self.config, self.memory))

    def steps(self, model: Model, cases: list[tuple[int, int]], repeats: int) -> Iterator[Step]:
        """Verify and draft at the end of each (batch, context), kernel by kernel and from a recording."""
        most = max(batch * -(-context // PAGE_SIZE) for batch, context in cases)
        runner = UnifiedDSparkDeepseekV41GpuModel(
            self.config,
            model,
            pages=self.pages,
            leaves=random_leaves(self.config.text_config, self.pages, most, self.memory),
            engram_host_buffers=[],
            max_length=self.sizes.max_length,
            device=self.place.device,
        )
        for batch, context in cases:
            yield from self._case(runner, batch, context, repeats)

    def _case(self, runner: UnifiedDSparkDeepseekV41GpuModel, batch: int, context: int, repeats: int) -> Iterator[Step]:
        rows = our_rows(self.sizes, batch, context)
        inputs = runner.batch_processor.prepare(rows, width=self.sizes.block, draft=True)
        buffers, shape = runner.bind(inputs), runner.batch_processor.shape_of(rows, self.sizes.block, True)
        captured = runner.captured
        assert captured is not None

        def eager() -> UnifiedEagleOutputs:
            return runner.execute(inputs)

        def replayed() -> UnifiedEagleOutputs:
            return UnifiedEagleOutputs(*captured.run(shape, buffers))

        def read(outputs: UnifiedEagleOutputs) -> None:
            runner.read(outputs, draft=True)

        about: dict[str, Any] = {"batch": batch, "context": context, "repeats": repeats}
        result = runner.read(eager(), draft=True)
        sound = bool(result.finite.all()) and bool((result.next_draft_tokens >= 0).all())
        first = timed(eager, read, self.place.device, mode="eager", sound=sound, **about)
        yield first
        replayed()  # the first run of a shape is not recorded
        again = runner.read(replayed(), draft=True)
        same = bool((again.next_tokens == result.next_tokens).all())
        yield timed(
            replayed,
            read,
            self.place.device,
            mode="captured",
            sound=sound and same,
            kernels=first.kernels,
            **about,
        )


def our_rows(sizes: Sizes, batch: int, context: int) -> list[StepRow]:
    """Decode steps at the end of the context, each request with pages of its own."""
    each = -(-context // PAGE_SIZE)
    return [
        StepRow(
            tokens=(anchor(sizes, place),),
            cache_length=context - 1 - sizes.block,
            pages=tuple(range(place * each, (place + 1) * each)),
            draft_tokens=tuple(drafts(sizes, place)),
            lookback=(),
            seed=place,
            temperature=1.0,
        )
        for place in range(batch)
    ]


def anchor(sizes: Sizes, place: int) -> int:
    """The token that request `place` runs."""
    return (7919 * place + 11) % sizes.vocab_size


def drafts(sizes: Sizes, place: int) -> list[int]:
    """The drafts that it verifies."""
    return [(31 * place + 977 * n + 5) % sizes.vocab_size for n in range(sizes.block)]
