"""MAX's own DeepSeek-V4 with its DSpark stages, built as its pipeline model builds it."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from max.driver import CPU
from max.dtype import DType
from max.graph import Graph
from numpy.typing import NDArray

from specdecode.core.engine.device import Place
from specdecode.core.engine.staging import Landing
from tests.benchmarks.peers.figures import Step, timed
from tests.benchmarks.peers.sizes import Sizes, v4_fields
from tests.benchmarks.released.weights import RandomMemory

if TYPE_CHECKING:
    from max.driver import Buffer
    from max.engine import CompiledModel, InferenceSession, Model


class V4:
    """The model to build and to run; bf16 weights, experts as plain linears.

    Args:
        sizes: as of both models.
        place: a GPU, which may be absent as long as nothing is loaded.

    Raises:
        ImportError: what `max.pipelines` imports is not installed.
    """

    title = "MAX, V4"

    def __init__(self, sizes: Sizes, place: Place) -> None:
        stand_in_for_videos()
        from max.pipelines.architectures.deepseekV4.model_config import DeepseekV4Config
        from max.pipelines.architectures.unified_dspark_deepseekV4.unified_dspark_deepseekV4 import (
            UnifiedDSparkDeepseekV4,
        )
        from max.pipelines.speculative.config import SpeculativeConfig

        from tests.benchmarks.peers.v4_inputs import cache_params

        self.sizes, self.place = sizes, place
        self.caches = cache_params(sizes, place.ref)
        self.config = DeepseekV4Config(
            dtype=DType.bfloat16, kv_params=self.caches, devices=[place.ref], **v4_fields(sizes)
        )
        speculative = SpeculativeConfig(speculative_method="dspark", num_speculative_tokens=sizes.block)
        self.module = UnifiedDSparkDeepseekV4(self.config, speculative)
        self.weights = random_weights(self.module.target)
        self.module.target.load_state_dict(self.weights, weight_alignment=1, strict=True)

    def graph(self) -> Graph:
        """What `UnifiedDSparkDeepseekV4Model._build_graph_for_compile` traces on one device."""
        from max.pipelines.architectures.unified_dspark_deepseekV4.spec_adapters import WINDOW_LEAF

        module, caches = self.module, self.caches
        with Graph("unified_dspark_deepseekV4", input_types=module.input_types(caches)) as graph:
            given = module.decode_inputs(graph.inputs, caches)
            window = given.kv(WINDOW_LEAF)
            others = [spec.key for spec in self.config.kv_leaf_specs() if spec.key != WINDOW_LEAF]
            outputs = module(
                tokens=given.tokens,
                input_row_offsets=given.input_row_offsets,
                draft_tokens=given.draft_tokens,
                kv_collections=window,
                draft_kv_collections=window,
                passthrough_kv={key: given.kv(key) for key in others},
                return_n_logits=given.return_n_logits,
                seed=given.seed,
                temperature=given.temperature,
                top_k=given.top_k,
                max_k=given.max_k,
                top_p=given.top_p,
                min_top_p=given.min_top_p,
                signal_buffers=given.signal_buffers,
            )
            graph.output(*outputs)
        return graph

    def load(self, session: InferenceSession, compiled: CompiledModel) -> Model:
        """The graph with the weights, which MAX takes from host memory."""
        return session.init(compiled, weights_registry=self.module.target.state_dict(auto_initialize=False))

    def steps(self, model: Model, cases: list[tuple[int, int]], repeats: int) -> Iterator[Step]:
        """Verify and draft at the end of each (batch, context), kernel by kernel."""
        from tests.benchmarks.peers.v4_inputs import step_inputs

        for batch, context in cases:
            buffers = step_inputs(self.sizes, self.caches, self.place.device, batch, context)

            def eager(buffers: tuple[Buffer, ...] = buffers) -> Sequence[Buffer]:
                results: Sequence[Buffer] = model.execute(*buffers)
                return results

            landing = Landing(eager(), self.place.device)  # results are read as ours are: pinned, with one wait
            yield timed(
                eager,
                landing.fetch,
                self.place.device,
                repeats=repeats,
                batch=batch,
                context=context,
                mode="eager",
                sound=self._sound(landing.fetch(eager())),
            )

    def _sound(self, results: Sequence[NDArray[Any]]) -> bool:
        """Whether counts and tokens are in range; MAX returns no logits."""
        accepted, tokens, next_drafts = results
        ids = np.concatenate([tokens.ravel(), next_drafts.ravel()])
        known = (ids >= 0) & (ids < self.sizes.vocab_size)
        return bool(known.all()) and bool(((accepted >= 0) & (accepted <= self.sizes.block)).all())


def random_weights(module: Any) -> dict[str, Buffer]:
    """Random values of a module's weights in host memory: norms 1, all others small."""
    memory, found = RandomMemory(CPU(), size=1 << 20), {}
    for name, weight in module.raw_state_dict().items():
        kind = "bf16" if weight.dtype == DType.bfloat16 else "one" if name.endswith("norm.weight") else "small"
        found[name] = memory.filled(kind, weight.dtype, tuple(int(size) for size in weight.shape))
    return found


def stand_in_for_videos() -> None:
    """Let `max.pipelines` be imported without PyAV: it reads videos with it, and nothing here has any."""
    if "av" not in sys.modules and importlib.util.find_spec("av") is None:
        module = types.ModuleType("av")
        module.__spec__ = importlib.machinery.ModuleSpec("av", None)
        sys.modules["av"] = module
