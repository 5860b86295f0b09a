"""DeepSeek-V4.1 with its drafter on several GPUs, or on logical shards of one."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from max.driver import Buffer
from numpy.typing import NDArray

from specdecode.core.models.deepseek_v41.unified.inputs import UnifiedDSparkDeepseekV41Inputs
from specdecode.core.models.deepseek_v41.unified.model import UnifiedDSparkDeepseekV41Model
from specdecode.core.models.deepseek_v41.unified.processor import UnifiedDSparkDeepseekV41BatchProcessor
from specdecode.core.models.deepseek_v41.unified.staged import PINNED, pinned_pair

if TYPE_CHECKING:
    from max.driver import Device

    from specdecode.core.device_layout import DeviceLayout


class DevicesBatchProcessor(UnifiedDSparkDeepseekV41BatchProcessor):
    """Grammar masks, which kernels read from the host's memory, are in memory that a GPU can read."""

    def _array(self, name: str, dtype: Any, shape: tuple[int, ...]) -> tuple[NDArray[Any], Buffer]:
        device = self.runtime.device
        if name != PINNED or device is None or (name, shape) in self._kept:
            return super()._array(name, dtype, shape)
        pair = self._kept[name, shape] = pinned_pair(dtype, shape, device)
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
            for buffer, home in zip(buffers, self._homes, strict=True)
        )

    @cached_property
    def _homes(self) -> list[Device]:
        """The device of each graph input."""
        return list(self._graph.input_devices)


def signal_buffers(layout: DeviceLayout) -> list[Buffer]:
    """The buffers through which real devices wait for each other; none on one device or its logical shards."""
    if not layout.signals:
        return []
    from max.nn.comm import Signals

    return list(Signals(layout.devices).buffers())
