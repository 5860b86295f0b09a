"""DeepSeek-V4.1 with its drafter, ready to run: graph, weights and caches of one device."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from max.driver import Buffer
from max.graph import DeviceRef
from numpy.typing import NDArray

from specdecode.core.device_layout import DeviceLayout
from specdecode.core.engine.step import StepResult, StepRow
from specdecode.core.engine.threads import ThreadTuner
from specdecode.core.kernels.settings import THREADS, PageLayout
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig
from specdecode.core.models.deepseek_v41.unified.inputs import UnifiedDSparkDeepseekV41Inputs
from specdecode.core.models.deepseek_v41.unified.processor import (
    BatchRuntime,
    UnifiedDSparkDeepseekV41BatchProcessor,
)

if TYPE_CHECKING:
    from max.driver import Device
    from max.engine import Model


@dataclass(frozen=True)
class UnifiedEagleOutputs:
    """What a step's graph returns, in its order; B requests, K draft positions, V vocabulary.

    Attributes:
        num_accepted: int64 [B] drafts accepted.
        next_tokens: int64 [B], the corrected token at the first mismatch, or the bonus.
        next_draft_tokens: int64 [B, drafts a round]; -1 for a request that did not draft.
        confidence: float32 like next_draft_tokens, raw logits of "this draft is accepted if those before it are".
        finite: int32 [B], 0 where a row that was read held NaN or infinity.
        logits: float32 [B (K + 1), V], each request's last token, then its draft positions.
        draft_logits: float32 [N, V], what the next block was drawn from; N rows, one a draft slot.
        engram_lookback_history: int64 [B, n - 1], what the next step may read its lookback from; None without
            Engram.
    """

    num_accepted: Buffer
    next_tokens: Buffer
    next_draft_tokens: Buffer
    confidence: Buffer
    finite: Buffer
    logits: Buffer
    draft_logits: Buffer
    engram_lookback_history: Buffer | None = None


class UnifiedDSparkDeepseekV41Model:
    """DeepSeek-V4.1 that verifies and drafts tokens in one graph per step; a `StepModel`.

    The drafter's stages keep their context in the target's sliding-window leaf, as layers numbered from
    num_hidden_layers up, so there is no separate draft cache to size or feed.

    Args:
        config: the checkpoint's configuration.
        graph: the initialised step graph.
        pages: layout of the cache pages.
        leaves: the first device's cache leaves [pages, …].
        peers: the leaves of the other devices.
        layout: the devices; None: one.
        signal_buffers, ep_buffers: what the layout needs of each, one per device or none.
        engram_host_buffers: per Engram layer its table and scales, in the graph's order.
        max_length: the longest sequence to run, prompt and output together.
        mode: int32 [2], the memory of the weight `derived.mode`; its thread count is set before every step. None
            where kernels have no thread count.
        device: where inputs are staged to; None on the CPU.
        drafter: the autoregressive drafter that the graph was built with; None for the checkpoint's own.
    """

    batch_processor_cls = UnifiedDSparkDeepseekV41BatchProcessor

    def __init__(
        self,
        config: DeepseekV41Config,
        graph: Model,
        *,
        pages: PageLayout,
        leaves: Mapping[str, Buffer],
        engram_host_buffers: Sequence[Buffer],
        max_length: int,
        mode: NDArray[np.int32] | None = None,
        device: Device | None = None,
        drafter: EagleConfig | None = None,
        peers: Sequence[Mapping[str, Buffer]] = (),
        layout: DeviceLayout | None = None,
        signal_buffers: Sequence[Buffer] = (),
        ep_buffers: Sequence[Buffer] = (),
    ) -> None:
        text = config.text_config
        layout = layout or DeviceLayout.single(DeviceRef.CPU())
        self.config, self.leaves = config, leaves
        self._graph, self._tables = graph, tuple(engram_host_buffers)
        runtime = BatchRuntime(
            leaves=leaves,
            page_size=pages.page_size,
            num_draft_tokens=text.dspark_block_size if drafter is None else drafter.num_draft_tokens,
            structured_output=True,
            drafter=drafter,
            device=device,
            peers=peers,
            layout=layout,
            signal_buffers=signal_buffers,
        )
        self.batch_processor = self.batch_processor_cls(config, runtime)
        self.batch_processor.bind_ep_buffers(ep_buffers)
        self.replicas = layout.replicas
        self.page_size = pages.page_size
        self.num_pages = int(leaves["window"].shape[0]) * layout.replicas
        self.block_size = runtime.num_draft_tokens
        self.vocab_size = text.vocab_size
        self.max_length = max_length
        self._mode, self._threads = mode, ThreadTuner()
        self.lookback_length = text.engram_max_ngram_size - 1 if text.engram_layer_ids else 0

    def execute(self, model_inputs: UnifiedDSparkDeepseekV41Inputs) -> UnifiedEagleOutputs:
        """Run one step, binding the Engram tables as graph inputs after the batch's own, in order."""
        return UnifiedEagleOutputs(*self._graph.execute(*self.bind(model_inputs)))

    def bind(self, model_inputs: UnifiedDSparkDeepseekV41Inputs) -> tuple[Buffer, ...]:
        """Every graph input of a step, the Engram tables included."""
        if not model_inputs.engram_host_buffers:
            model_inputs.engram_host_buffers = self._tables
        return model_inputs.buffers

    def run(self, rows: Sequence[StepRow], *, width: int, draft: bool) -> UnifiedEagleOutputs:
        """Run one step as `step` does; its outputs stay where they are."""
        inputs = self.batch_processor.prepare(rows, width=width, draft=draft)
        if self._mode is None:
            return self.execute(inputs)
        kind = (sum(len(row.tokens) + width for row in rows).bit_length(), draft)
        threads = self._mode[THREADS] = self._threads.choose(kind)
        start = time.perf_counter()
        outputs = self.execute(inputs)
        self._threads.record(kind, int(threads), time.perf_counter() - start)
        return outputs

    def step(self, rows: Sequence[StepRow], *, width: int, draft: bool) -> StepResult:
        """Run one step and read its results; see `StepModel.step`."""
        return result_of(self.run(rows, width=width, draft=draft), draft=draft)


def result_of(outputs: UnifiedEagleOutputs, *, draft: bool) -> StepResult:
    """A step's outputs on the host; without `draft` its empty block is dropped."""
    block = slice(None if draft else 0)
    return StepResult(
        num_accepted=outputs.num_accepted.to_numpy().astype(np.int32),
        next_tokens=outputs.next_tokens.to_numpy(),
        next_draft_tokens=outputs.next_draft_tokens.to_numpy()[:, block],
        confidence=outputs.confidence.to_numpy()[:, block],
        finite=outputs.finite.to_numpy() != 0,
        # Several requests of a step may ask; from a GPU they are copied once.
        logits=cache(outputs.logits.to_numpy),
        draft_logits=cache(outputs.draft_logits.to_numpy),
    )
