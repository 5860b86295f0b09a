"""The batch processor of a GPU: the same inputs, staged in pinned memory and sent with one copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from max.driver import Buffer

from specdecode.core.cache.leaves import DeviceCaches, KVCacheInputs
from specdecode.core.engine.staging import Frame, Name, Pair, Recent, pinned_bytes, typed
from specdecode.core.engine.step import StepRow
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.unified.inputs import UnifiedDSparkDeepseekV41Inputs
from specdecode.core.models.deepseek_v41.unified.limits import edits_size, mask_rows, probs_rows
from specdecode.core.models.deepseek_v41.unified.processor import (
    BatchRuntime,
    UnifiedDSparkDeepseekV41BatchProcessor,
)

if TYPE_CHECKING:
    from max.driver import Device

FRAMES = 48
"""Shapes of steps whose inputs stay allocated; more than there are recordings, as those hold on to their frames."""
ON_HOST = ("return_n_logits", "max_k", "min_top_p", "wait_payload")
"""Inputs that the graph takes from the CPU; no kernel reads them, so a recording need not know their values."""
PINNED = "pinned_bitmask"
"""The input that kernels read from the host's memory."""
Shape = tuple[int, int, int, int, bool, int, int, int]


@dataclass(kw_only=True)
class _Kept:
    """The arrays of one shape of step, their frame, the pages in the rows of its page table, and the limits set."""

    frame: Frame
    arrays: dict[Name, Pair]
    written: list[Sequence[int] | None]
    limited: set[Name]


class StagedBatchProcessor(UnifiedDSparkDeepseekV41BatchProcessor):
    """Fills pinned arrays and sends them to the device behind what it still runs.

    The inputs of a call stay valid on the device until the next call with the same shape, whose copy waits for the
    steps before it. The page table is widened to a power of two, so that a growing request changes shape seldom.
    """

    def __init__(self, config: DeepseekV41Config, runtime: BatchRuntime) -> None:
        super().__init__(config, runtime)
        if runtime.device is None:
            raise ValueError("inputs are staged for a device, but the runtime names none")
        device = self._device = runtime.device
        embeddings, scatter = self._no_images
        self._no_images = [b.to(device) for b in embeddings], [b.to(device) for b in scatter]
        self._frames: Recent[tuple[Any, ...], _Kept] = Recent(FRAMES)
        self._written: list[Sequence[int] | None] = []

    def shape_of(self, rows: Sequence[StepRow], width: int, draft: bool) -> Shape:
        """What every size of a step follows from: requests, tokens, draft positions, page table, drafting or not, and
        how many edits, rows of drafters' probabilities and rows of grammar masks there are."""
        sizes = edits_size(rows), probs_rows(rows, width), mask_rows(rows, width)
        return len(rows), sum(len(row.tokens) for row in rows), width, _table_width(rows), draft, *sizes

    def prepare(
        self,
        rows: Sequence[StepRow],
        *,
        width: int,
        draft: bool,
        kv_cache_inputs: KVCacheInputs | DeviceCaches | None = None,
        history: Buffer | None = None,
        sources: Sequence[int] | None = None,
    ) -> UnifiedDSparkDeepseekV41Inputs:
        """As in the base class; buffers are the same objects for the same shape."""

        def fill() -> UnifiedDSparkDeepseekV41Inputs:
            return super(StagedBatchProcessor, self).prepare(
                rows, width=width, draft=draft, kv_cache_inputs=kv_cache_inputs, history=history, sources=sources
            )

        shape = (*self.shape_of(rows, width, draft), kv_cache_inputs is None, history is None)
        kept = self._frames.get(shape)
        if kept is None:
            # The first call of a shape finds out on the host which arrays it has.
            self._kept, self._written, self._limited = {}, [None] * len(rows), set()
            fill()
            kept = self._staged()
            self._frames.put(shape, kept)
        self._kept, self._written, self._limited = kept.arrays, kept.written, kept.limited
        kept.frame.wait()
        inputs = fill()
        kept.frame.send()
        return inputs

    def _drop_too_many(self) -> bool:
        return False  # a frame holds the arrays of one shape, and frames are bounded

    def _staged(self) -> _Kept:
        here = {name: pair for name, pair in self._kept.items() if name[0] in ON_HOST or name[0] == PINNED}
        frame = Frame({name: array for name, (array, _) in self._kept.items() if name not in here}, self._device)
        return _Kept(frame=frame, arrays={**here, **frame.arrays}, written=self._written, limited=self._limited)

    def _array(self, name: str, dtype: Any, shape: tuple[int, ...]) -> Pair:
        if name != PINNED or (name, shape) in self._kept:
            return super()._array(name, dtype, shape)
        pair = self._kept[name, shape] = pinned_pair(dtype, shape, self._device)
        return pair

    def _check_pages(self, place: int, row: StepRow) -> None:
        if self._written[place] is not row.pages:
            super()._check_pages(place, row)

    def _caches(self, rows: Sequence[StepRow]) -> KVCacheInputs:
        table, buffer = self._array("lookup_table", np.uint32, (len(rows), _table_width(rows)))
        for place, row in enumerate(rows):
            # A request keeps its pages, thousands of them in a long context, from step to step.
            if self._written[place] is not row.pages:
                table[place, : len(row.pages)] = row.pages
                table[place, len(row.pages) :] = 0
                self._written[place] = row.pages if isinstance(row.pages, tuple) else None
        return KVCacheInputs(
            leaves=self.runtime.leaves,
            cache_lengths=self._filled("cache_lengths", np.uint32, (len(rows),), [r.cache_length for r in rows]),
            lookup_table=buffer,
        )


def pinned_pair(dtype: Any, shape: tuple[int, ...], device: Device) -> Pair:
    """An array, and the buffer over the same memory of the host, which the device reads."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    buffer = typed(pinned_bytes(max(size, 1), device), 0, dtype, shape)
    return buffer.to_numpy(), buffer


def _table_width(rows: Sequence[StepRow]) -> int:
    most = max((len(row.pages) for row in rows), default=1)
    return 1 << (most - 1).bit_length()
