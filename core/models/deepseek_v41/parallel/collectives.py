"""What the devices of a layout tell each other: parts are put side by side, never summed.

A sum over devices depends on how many there are; putting parts together does not. Logical shards of one device are
concatenated there; devices of their own gather through their signal buffers.
"""

from __future__ import annotations

from collections.abc import Sequence

from max.graph import BufferValue, Dim, TensorValue, ops

from specdecode.core.device_layout import DeviceLayout


class Collectives:
    """Gathers of one step.

    Args:
        layout: the devices.
        signals: their signal buffers; none for logical shards.
    """

    def __init__(self, layout: DeviceLayout, signals: Sequence[BufferValue]) -> None:
        self.layout, self._signals = layout, list(signals)

    def columns(self, values: Sequence[TensorValue], parts: int) -> list[TensorValue]:
        """The last axis whole, on every device; `parts` of the values differ, neighbours having the same."""
        if parts == 1:
            return list(values)
        if self.layout.logical:
            return [ops.concat(self._different(values, parts), axis=-1)] * len(values)
        if parts == len(values):
            gathered: list[TensorValue] = ops.allgather(values, self._signals, axis=-1)
            return gathered
        chosen = self._different(values, parts)
        return [ops.concat([value.to(device) for value in chosen], axis=-1) for device in self.layout.devices]

    def columns_on_first(self, values: Sequence[TensorValue], parts: int) -> TensorValue:
        """The same, on the first device alone."""
        chosen = [value.to(self.layout.first) for value in self._different(values, parts)]
        return chosen[0] if parts == 1 else ops.concat(chosen, axis=-1)

    def rows(self, values: Sequence[TensorValue], total: Dim) -> list[TensorValue]:
        """The first axis of all devices' rows, in rank order, on every device; `total` is the name of their sum.

        A body's arguments may have named sizes only, no sums of them.
        """
        gathered = [ops.concat(values)] * len(values) if self.layout.logical else ops.allgather(values, self._signals)
        return [value.rebind([total, *value.shape[1:]]) for value in gathered]

    def _different(self, values: Sequence[TensorValue], parts: int) -> list[TensorValue]:
        ranks = len(values)
        return [values[part * ranks // parts] for part in range(parts)]
