"""Device memory against what a plan needs: weights and caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specdecode.core.checkpoint.sharding.layout import Layout, Strategy
from specdecode.core.models.deepseek_v41.config import TextConfig

GB = 10**9
DEVICE_MEMORY: Mapping[str, int] = {
    "H100": 80 * GB,
    "H200": 141 * GB,
    "B200": 192 * GB,
    "MI300X": 192 * GB,
    "MI325X": 256 * GB,
    "MI355X": 288 * GB,
}
"""Nominal memory of one device in bytes, by its maker's data sheet."""
USABLE = 0.9
"""Share of it that weights and caches may take; the rest is for activations, graphs and the driver."""


@dataclass(frozen=True, kw_only=True)
class Caches:
    """KV caches of one device.

    Attributes:
        context: tokens of a sequence, prompt and output together.
        sequences: how many at a time on this device.
        allocated: bytes that this program allocates: float32 pages of every layer's window and of compressed rows.
        compact: bytes in the released number formats with window rings, as a lower bound.
    """

    context: int
    sequences: int
    allocated: int
    compact: int


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Whether a device has room.

    Attributes:
        name: the device.
        memory: its bytes.
        needed: bytes of weights and caches.
    """

    name: str
    memory: int
    needed: int

    @property
    def fits(self) -> bool:
        return self.needed <= USABLE * self.memory


def fits(needed: int) -> list[Fit]:
    """Every known device against a need in bytes."""
    return [Fit(name=name, memory=memory, needed=needed) for name, memory in DEVICE_MEMORY.items()]


def plan_caches(text: TextConfig, layout: Layout, *, context: int, batch: int) -> Caches:
    """Caches of a device for `batch` sequences in all.

    Tensor parallel: every device sees every sequence, and the one KV head cannot be divided. Expert parallel: the
    sequences are dealt out.
    """
    from specdecode.core.cache.leaves import page_bytes
    from specdecode.core.kernels.settings import PageLayout
    from specdecode.core.models.deepseek_v41.load import PAGE_SIZE

    sequences = batch if layout.strategy is Strategy.TENSOR else -(-batch // layout.ranks)
    pages = sequences * -(-(context + text.dspark_block_size) // PAGE_SIZE)
    return Caches(
        context=context,
        sequences=sequences,
        allocated=pages * page_bytes(text, PageLayout.of(text, PAGE_SIZE)),
        compact=sequences * _compact(text, context),
    )


def _compact(text: TextConfig, context: int) -> int:
    """NVFP4 rows with a scale per 16, MXFP4 index keys with one per 32, FP8 windows with one per 32; one sequence."""
    row = text.head_dim // 2 + text.head_dim // 16
    key = text.index_head_dim // 2 + text.index_head_dim // 32
    rows = sum(-(-context // text.compress_ratio(source)) for source in text.kv_source_layer_ids)
    layers = text.num_hidden_layers + text.num_stages
    window = layers * min(text.sliding_window, context) * (text.head_dim + text.head_dim // 32)
    return rows * (row + key) + window
