"""Random weights, caches and tables, made on the device by copying pieces of a few random blocks.

Values are of a size that keeps a network alive: FP8 codes without NaN and infinity, scales about 2^-7, gates that
choose experts evenly. What they add up to means nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from max.driver import Buffer
from max.dtype import DType
from numpy.typing import NDArray

from specdecode.core.cache.leaves import leaf_shapes
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config, TextConfig
from specdecode.core.models.deepseek_v41.registry import pinned
from specdecode.core.models.deepseek_v41.weights import GraphWeight, derived_arrays, graph_weights, to_buffer
from tests.benchmarks.released.config import hash_constants

if TYPE_CHECKING:
    from max.driver import Device

BLOCK = 32 << 20  # bytes of each random block
Bytes = NDArray[np.uint8]


def blocks(rng: np.random.Generator, size: int = BLOCK) -> dict[str, Bytes]:
    """A block of random values of each kind, as bytes."""
    normal = rng.standard_normal(size // 4).astype(np.float32)
    fp8 = rng.integers(0, 256, size, dtype=np.uint8) & 0xBF  # exponent below 8: magnitudes below 2, never NaN
    return {
        "fp8": fp8,
        "fp4": rng.integers(0, 256, size, dtype=np.uint8),
        "scale": rng.integers(119, 122, size, dtype=np.uint8),
        "normal": normal.view(np.uint8),
        "small": (0.02 * normal).view(np.uint8),
        "bf16": np.ascontiguousarray((0.02 * normal).view(np.uint16)[1::2]).view(np.uint8),
        "one": np.ones(size // 4, np.float32).view(np.uint8),
    }


def kind(name: str, weight: GraphWeight) -> str:
    """Which block a weight is made of."""
    if weight.dtype == DType.bfloat16:
        return "bf16"
    if weight.dtype == DType.float32:
        return "one" if name.endswith("norm.weight") else "small"
    if name.endswith(".scale"):
        return "scale"
    return "fp4" if ".ffn.experts." in name else "fp8"


class RandomMemory:
    """Fills memory of one device."""

    def __init__(self, device: Device, *, seed: int = 1, size: int = BLOCK) -> None:
        self.device, self.size = device, size
        self._blocks: dict[str, Buffer] = {}
        for name, block in blocks(np.random.default_rng(seed), size).items():
            self._blocks[name] = Buffer(DType.uint8, [len(block)], device)
            self._blocks[name].inplace_copy_from(Buffer.from_numpy(block))
            device.synchronize()

    def filled(self, what: str, dtype: DType, shape: tuple[int, ...]) -> Buffer:
        """A tensor of random values of one kind."""
        block = self._blocks[what]
        size, step = math.prod(shape) * int(dtype.size_in_bytes), int(block.shape[0])
        memory = Buffer(DType.uint8, [size], self.device)
        for at in range(0, size, step):
            count = min(step, size - at)
            memory[at : at + count].inplace_copy_from(block[:count])
        self.device.synchronize()
        return memory.view(dtype, list(shape))


def random_weights(config: DeepseekV41Config, memory: RandomMemory) -> dict[str, Buffer]:
    """The weights registry; what follows from the configuration has its own values."""
    return dict(
        _weights(graph_weights(config), derived_arrays(config, hash_constants(config.text_config), exact=True), memory)
    )


def _weights(
    weights: Mapping[str, GraphWeight], derived: Mapping[str, NDArray[Any]], memory: RandomMemory
) -> Iterator[tuple[str, Buffer]]:
    for name, weight in weights.items():
        if weight.sources:
            yield name, memory.filled(kind(name, weight), weight.dtype, weight.shape)
        else:
            yield name, to_buffer(np.ascontiguousarray(derived[name]), weight.dtype).to(memory.device)


def random_leaves(text: TextConfig, pages: PageLayout, num_pages: int, memory: RandomMemory) -> dict[str, Buffer]:
    """Caches full of random rows, so that selections spread over the context."""
    return {
        name: memory.filled("normal", DType.float32, (num_pages, *shape))
        for name, shape in leaf_shapes(text, pages).items()
    }


def random_tables(text: TextConfig, device: Device) -> list[Buffer]:
    """Per Engram layer its table and scales, in host memory."""
    rng, tables = np.random.default_rng(3), []
    for rows in text.engram_num_embeddings:
        width = text.engram_head_dim
        for array in (
            rng.integers(0, 256, (rows, width), dtype=np.uint8) & 0xBF,
            rng.integers(119, 122, (rows, width // 32), dtype=np.uint8),
        ):
            tables.append(Buffer.from_numpy(array) if device.is_host else pinned(array, device))
    return tables
