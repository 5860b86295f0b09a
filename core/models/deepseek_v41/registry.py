"""The weights registry of a checkpoint, on the CPU or on a GPU, and the Engram tables in host memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from max.driver import Buffer, Usage
from max.dtype import DType
from numpy.typing import NDArray

from specdecode.core.engine.device import free_host_memory
from specdecode.core.errors import DeviceError
from specdecode.core.models.deepseek_v41.eagle_checkpoint import PREFIX
from specdecode.core.models.deepseek_v41.parallel.shares import all_weights
from specdecode.core.models.deepseek_v41.weights import GraphWeight, graph_weights, to_buffer

if TYPE_CHECKING:
    from max.driver import Device

    from specdecode.core.checkpoint.reader import Checkpoint
    from specdecode.core.device_layout import DeviceLayout
    from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
    from specdecode.core.models.deepseek_v41.eagle_checkpoint import EagleCheckpoint
    from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig

_ALIGNMENT = 64  # bytes: a cache line
_PIECE = 64 << 20  # bytes copied at a time into pinned memory, so that the mapped file need not stay in memory
Derived = Mapping[str, NDArray[np.generic]]
Source = Callable[[str], NDArray[np.generic]]


def weight_bytes(config: DeepseekV41Config, drafter: EagleConfig | None = None) -> int:
    """Bytes of all graph weights on one device."""
    return sum(_size(weight) for weight in graph_weights(config, drafter).values())


def rank_bytes(config: DeepseekV41Config, layout: DeviceLayout) -> list[int]:
    """Bytes of graph weights of each rank; logical shards share what they have alike, which counts for the first."""
    sizes = [0] * layout.count
    for rank, _, weight in all_weights(config, layout):
        sizes[rank] += _size(weight)
    return sizes


def load_weights(
    checkpoint: Checkpoint, derived: Derived, device: Device, drafter: EagleCheckpoint | None = None
) -> dict[str, Buffer]:
    """The weights registry of a checkpoint on a device, derived weights and another drafter's included."""
    weights = graph_weights(checkpoint.config, None if drafter is None else drafter.config)

    def source(name: str) -> NDArray[np.generic]:
        return drafter.array(name) if drafter is not None and name.startswith(PREFIX) else checkpoint.array(name)

    return _load(weights.items(), source, derived, device)


def load_rank_weights(
    checkpoint: Checkpoint, derived: Derived, layout: DeviceLayout, devices: Sequence[Device]
) -> dict[str, Buffer]:
    """The weights registry of a checkpoint on several devices, each with its part; one device per rank.

    Of a mapped file only the pages of a part are read.
    """
    ranks: list[list[tuple[str, GraphWeight]]] = [[] for _ in devices]
    for rank, name, weight in all_weights(checkpoint.config, layout):
        ranks[0 if layout.logical else rank].append((name, weight))
    registry: dict[str, Buffer] = {}
    for device, weights in zip(devices, ranks, strict=True):
        if weights:
            registry |= _load(weights, checkpoint.array, derived, device)
    return registry


Weights = Iterable[tuple[str, GraphWeight]]


def _load(weights: Weights, source: Source, derived: Derived, device: Device) -> dict[str, Buffer]:
    if device.is_host:
        return _in_one_allocation(list(weights), source, derived)
    return dict(_streamed(list(weights), source, derived, device))


def _in_one_allocation(
    weights: Sequence[tuple[str, GraphWeight]], source: Source, derived: Derived
) -> dict[str, Buffer]:
    """One large array gets huge pages from NumPy.

    A step reads every weight, and with 4 KiB pages the page walks cost as much as the reads.
    """
    arena = np.empty(sum(_aligned(_size(weight)) for _, weight in weights), np.uint8)
    registry, at = {}, 0
    for name, weight in weights:
        space = arena[at : at + _size(weight)]
        at += _aligned(_size(weight))
        registry[weight.name or name] = to_buffer(_fill(space, name, weight, source, derived), weight.dtype)
    return registry


def _streamed(
    weights: Sequence[tuple[str, GraphWeight]], source: Source, derived: Derived, device: Device
) -> Iterator[tuple[str, Buffer]]:
    """One weight after the other through pinned memory as large as the largest of them."""
    largest = max(_size(weight) for _, weight in weights)
    staging = Buffer(DType.uint8, [largest], device, usage=Usage.STAGING | Usage.UNTRACKED)
    host = staging.to_numpy()
    for name, weight in weights:
        size = _size(weight)
        _fill(host[:size], name, weight, source, derived)
        target = Buffer(DType.uint8, [size], device)
        target.inplace_copy_from(staging[:size])
        device.synchronize()  # the next weight overwrites the staging memory
        yield weight.name or name, target.view(weight.dtype, list(weight.shape))


def _fill(
    space: NDArray[np.uint8], name: str, weight: GraphWeight, source: Source, derived: Derived
) -> NDArray[np.generic]:
    """Put a weight together in `space`; the same memory in the weight's shape."""
    parts = _parts(weight, source) if weight.sources else [derived[name]]
    first = parts[0]
    if weight.dtype == DType.float32 and first.dtype == np.uint16:
        parts = [first := (first.astype(np.uint32) << 16).view(np.float32)]
    home = space.view(first.dtype).reshape(len(parts), *first.shape)
    for i, part in enumerate(parts):
        home[i] = part
    return home.reshape(weight.shape)


def _parts(weight: GraphWeight, source: Source) -> list[NDArray[np.generic]]:
    """A weight's sources, cut to the part that is wanted."""
    part, axis, sources = weight.part, weight.part.axis - weight.stacked, weight.sources
    if part.count == 1:
        return [source(name) for name in sources]
    if axis < 0:
        per = len(sources) // part.count
        return [source(name) for name in sources[part.index * per : (part.index + 1) * per]]
    cut = []
    for name in sources:
        array = source(name)
        per = array.shape[axis] // part.count
        cut.append(array[(slice(None),) * axis + (slice(part.index * per, (part.index + 1) * per),)])
    return cut


def engram_host_buffers(checkpoint: Checkpoint, device: Device) -> list[Buffer]:
    """Per Engram layer its table uint8 [R, E] and scales uint8 [R, E / 32], in host memory.

    For the CPU views of the mapped files; for a GPU pinned memory, which it reads over the bus, row by row.

    Raises:
        DeviceError: the main memory has no room for pinned tables.
    """
    layers = checkpoint.config.text_config.engram_layer_ids
    names = [f"layers.{layer}.engram.embed.{part}" for layer in layers for part in ("weight", "scale")]
    infos = [checkpoint.info(name) for name in names]
    if device.is_host:
        # MAX copies an array that it may not write to, so the files are mapped again, copy-on-write.
        return [Buffer.mmap(info.file, DType.uint8, info.shape, "copyonwrite", info.offset) for info in infos]
    need, free = sum(info.nbytes for info in infos), free_host_memory()
    if free is not None and need > free:
        raise DeviceError(
            f"The Engram tables do not fit: a GPU reads them from pinned main memory, they have {need >> 20} MiB, and "
            f"{free >> 20} MiB are free. Use a machine with more main memory, or --devices cpu, which maps them."
        )
    return [pinned(checkpoint.array(name), device) for name in names]


def pinned(array: NDArray[np.generic], device: Device) -> Buffer:
    """A copy of uint8 [R, E] in memory of the host that the device reads."""
    buffer = Buffer(DType.uint8, list(array.shape), device, usage=Usage.STAGING | Usage.UNTRACKED)
    home, rows = buffer.to_numpy(), max(1, _PIECE // max(1, array.shape[1]))
    for first in range(0, len(array), rows):
        home[first : first + rows] = array[first : first + rows]
    return buffer


def _size(weight: GraphWeight) -> int:
    return math.prod(weight.shape) * int(weight.dtype.size_in_bytes)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
