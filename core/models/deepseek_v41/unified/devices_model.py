"""DeepSeek-V4.1 with its drafter on several GPUs, or on logical shards of one."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from max.driver import CPU, Buffer
from numpy.typing import NDArray

from specdecode.core.engine.staging import pinned_bytes, typed
from specdecode.core.engine.step import StepResult
from specdecode.core.models.deepseek_v41.unified.inputs import UnifiedDSparkDeepseekV41Inputs
from specdecode.core.models.deepseek_v41.unified.model import UnifiedDSparkDeepseekV41Model, UnifiedEagleOutputs
from specdecode.core.models.deepseek_v41.unified.processor import UnifiedDSparkDeepseekV41BatchProcessor
from specdecode.core.models.deepseek_v41.unified.staged import PINNED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from max.driver import Device

    from specdecode.core.device_layout import DeviceLayout
    from specdecode.core.engine.step import StepRow


class DevicesBatchProcessor(UnifiedDSparkDeepseekV41BatchProcessor):
    """Grammar masks, which kernels read from the host's memory, are in memory that a GPU can read."""

    def _array(self, name: str, dtype: Any, shape: tuple[int, ...]) -> tuple[NDArray[Any], Buffer]:
        device = self.runtime.device
        if name != PINNED or device is None or (name, shape) in self._kept:
            return super()._array(name, dtype, shape)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        buffer = typed(pinned_bytes(max(size, 1), device), 0, dtype, shape)
        pair = self._kept[name, shape] = (buffer.to_numpy(), buffer)
        return pair


class UnifiedDSparkDeepseekV41DevicesModel(UnifiedDSparkDeepseekV41Model):
    """The model on several devices: every input goes to the device that its graph has it on.

    Inputs are copied one by one, and steps are not captured: a batch of decoding requests costs a launch per kernel.
    """

    batch_processor_cls = DevicesBatchProcessor

    def bind(self, model_inputs: UnifiedDSparkDeepseekV41Inputs) -> tuple[Buffer, ...]:
        """Every graph input of a step, on its device.

        Pinned memory stays where it is: to MAX it belongs to a GPU, and a copy on the CPU could not be read from one.
        """
        buffers = super().bind(model_inputs)
        return tuple(
            buffer.to(home) if buffer.device.is_host and not home.is_host else buffer
            for buffer, home in zip(buffers, self._homes(), strict=True)
        )

    def step(self, rows: Sequence[StepRow], *, width: int, draft: bool) -> StepResult:
        """Run one step and read its results; see `StepModel.step`."""
        return _landed(self.run(rows, width=width, draft=draft), draft=draft)

    def _homes(self) -> list[Device]:
        """The device of each graph input."""
        if not hasattr(self, "_devices"):
            self._devices = list(self._graph.input_devices)
        return self._devices


def _landed(outputs: UnifiedEagleOutputs, *, draft: bool) -> StepResult:
    """A step's outputs on the host; without `draft` its empty block is dropped."""
    block = slice(None if draft else 0)
    here = CPU()
    return StepResult(
        num_accepted=outputs.num_accepted.to(here).to_numpy().astype(np.int32),
        next_tokens=outputs.next_tokens.to(here).to_numpy(),
        next_draft_tokens=outputs.next_draft_tokens.to(here).to_numpy()[:, block],
        confidence=outputs.confidence.to(here).to_numpy()[:, block],
        finite=outputs.finite.to(here).to_numpy() != 0,
        logits=cache(lambda: outputs.logits.to(here).to_numpy()),
        draft_logits=cache(lambda: outputs.draft_logits.to(here).to_numpy()),
    )


def signal_buffers(layout: DeviceLayout) -> list[Buffer]:
    """The buffers through which real devices wait for each other; none on one device or its logical shards."""
    if not layout.signals:
        return []
    from max.nn.comm import Signals

    return list(Signals(layout.devices).buffers())
