"""DeepSeek-V4.1 with its drafter on one GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from max.driver import CPU, Buffer

from specdecode.core.engine.captured import CapturedSteps
from specdecode.core.engine.staging import Landing
from specdecode.core.engine.step import StepResult, StepRow
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig
from specdecode.core.models.deepseek_v41.unified.model import UnifiedDSparkDeepseekV41Model, UnifiedEagleOutputs
from specdecode.core.models.deepseek_v41.unified.staged import StagedBatchProcessor

if TYPE_CHECKING:
    from max.driver import Device
    from max.engine import Model


class UnifiedDSparkDeepseekV41GpuModel(UnifiedDSparkDeepseekV41Model):
    """The model on a GPU: inputs are staged, decode steps replay captured device graphs, results come with one wait.

    Args:
        config, graph, pages, leaves, engram_host_buffers, max_length, drafter: as for the CPU; leaves on the
            device, tables in pinned memory.
        device: the GPU.
        capture: whether steps that run one token of every request are captured; prompt chunks never are.
    """

    batch_processor_cls = StagedBatchProcessor
    batch_processor: StagedBatchProcessor

    def __init__(
        self,
        config: DeepseekV41Config,
        graph: Model,
        *,
        pages: PageLayout,
        leaves: Mapping[str, Buffer],
        engram_host_buffers: Sequence[Buffer],
        max_length: int,
        device: Device,
        capture: bool = True,
        drafter: EagleConfig | None = None,
    ) -> None:
        super().__init__(
            config,
            graph,
            pages=pages,
            leaves=leaves,
            engram_host_buffers=engram_host_buffers,
            max_length=max_length,
            device=device,
            drafter=drafter,
        )
        self.device = device
        self.captured = CapturedSteps(graph) if capture else None
        self._landings: dict[int, Landing] = {}

    def run(self, rows: Sequence[StepRow], *, width: int, draft: bool) -> UnifiedEagleOutputs:
        """Start one step; its results are on the device and valid until the next step of the same shape."""
        inputs = self.batch_processor.prepare(rows, width=width, draft=draft)
        if self.captured is None or any(len(row.tokens) != 1 for row in rows):
            return self.execute(inputs)
        shape = self.batch_processor.shape_of(rows, width, draft)
        return UnifiedEagleOutputs(*self.captured.run(shape, self.bind(inputs)))

    def step(self, rows: Sequence[StepRow], *, width: int, draft: bool) -> StepResult:
        """Run one step and read its results; see `StepModel.step`."""
        return self.read(self.run(rows, width=width, draft=draft), draft=draft)

    def read(self, outputs: UnifiedEagleOutputs, *, draft: bool) -> StepResult:
        """A step's outputs on the host, with one wait."""
        results = (
            outputs.num_accepted,
            outputs.next_tokens,
            outputs.next_draft_tokens,
            outputs.confidence,
            outputs.finite,
        )
        batch = int(outputs.num_accepted.shape[0])
        landing = self._landings.get(batch)
        if landing is None:
            landing = self._landings[batch] = Landing(results, self.device)
        accepted, tokens, drafts, confidence, finite = landing.fetch(results)
        block = slice(None if draft else 0)
        return StepResult(
            num_accepted=accepted.astype(np.int32),
            next_tokens=tokens.copy(),
            next_draft_tokens=drafts[:, block].copy(),
            confidence=confidence[:, block].copy(),
            finite=finite != 0,
            # Several requests of a step may ask; it is copied once.
            logits=cache(lambda: outputs.logits.to(CPU()).to_numpy()),
            draft_logits=cache(lambda: outputs.draft_logits.to(CPU()).to_numpy()),
        )

    def verify_replay(self, rows: Sequence[StepRow], *, width: int, draft: bool) -> None:
        """Check that a step's recording launches what the step launches; for tests.

        Raises:
            ValueError: captured steps are switched off.
            RuntimeError: it does not.
        """
        if self.captured is None:
            raise ValueError("there is no recording to verify: the model was loaded with capture=False")
        inputs = self.batch_processor.prepare(rows, width=width, draft=draft)
        self.captured.verify(self.batch_processor.shape_of(rows, width, draft), self.bind(inputs))
