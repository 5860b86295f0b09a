"""The cache leaves: one set of pages, divided among layers and sources as the page layout says.

window [P, 1, L + stages, page, 1, K]; compressed [P, 1, 1, kv rows, 1, K]; keys [P, 1, 1, key rows, 1, I];
open_groups [P, 1, ratio > 1 sources, slots, 1, 2 K]. All float32, all addressed through one lookup table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from max.driver import Buffer
from max.dtype import DType

if TYPE_CHECKING:
    from max.driver import Device

    from specdecode.core.kernels.settings import PageLayout
    from specdecode.core.models.deepseek_v41.config import TextConfig

LEAVES = ("window", "compressed", "keys", "open_groups")


def leaf_shapes(text: TextConfig, pages: PageLayout) -> dict[str, tuple[int, int, int, int, int]]:
    """Shape of each leaf behind its page dimension."""
    layers, k = text.num_hidden_layers + text.num_stages, text.head_dim
    return {
        "window": (1, layers, pages.page_size, 1, k),
        "compressed": (1, 1, pages.kv_rows, 1, k),
        "keys": (1, 1, pages.key_rows, 1, text.index_head_dim),
        "open_groups": (1, max(len(pages.open_layers), 1), pages.open_slots, 1, 2 * k),
    }


def page_bytes(text: TextConfig, pages: PageLayout) -> int:
    """Bytes of one page over all leaves."""
    return sum(4 * int(np.prod(shape)) for shape in leaf_shapes(text, pages).values())


def allocate_leaves(
    text: TextConfig, pages: PageLayout, num_pages: int, device: Device | None = None
) -> dict[str, Buffer]:
    """Zeroed leaves of `num_pages` pages, on the CPU or on a GPU."""
    shapes = {name: (num_pages, *shape) for name, shape in leaf_shapes(text, pages).items()}
    if device is None or device.is_host:
        # NumPy's zeros take memory page by page as they are written.
        return {name: Buffer.from_numpy(np.zeros(shape, np.float32)) for name, shape in shapes.items()}
    return {name: Buffer.zeros(shape, DType.float32, device) for name, shape in shapes.items()}


@dataclass(frozen=True, kw_only=True)
class KVCacheInputs:
    """One device's cache inputs in graph order: leaves, cache_lengths uint32 [B], lookup_table uint32 [B, pages]."""

    leaves: Mapping[str, Buffer]
    cache_lengths: Buffer
    lookup_table: Buffer

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return (*(self.leaves[name] for name in LEAVES), self.cache_lengths, self.lookup_table)


@dataclass(frozen=True, kw_only=True)
class DeviceCaches:
    """The caches of several devices in graph order: each leaf device after device, then the lengths and the tables."""

    devices: tuple[KVCacheInputs, ...]

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return (
            *(own.leaves[name] for name in LEAVES for own in self.devices),
            *(own.cache_lengths for own in self.devices),
            *(own.lookup_table for own in self.devices),
        )
