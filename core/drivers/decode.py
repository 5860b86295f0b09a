"""A step graph's input values as a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from max.graph import BufferType, BufferValue, TensorValue, Value

from specdecode.core.batch import BlockBatch, BlockCaches, DistributedInputs, Sampling, StructuredOutput
from specdecode.core.cache.leaves import LEAVES
from specdecode.core.device_layout import DeviceLayout
from specdecode.core.drivers.input_types import MERGED_ROWS_DIM, NamedInput

_PLAIN = (
    "tokens",
    "input_row_offsets",
    "draft_tokens",
    "draft_probs_full",
    "return_n_logits",
    "draft_slot_ids",
    "draft_block_offsets",
    MERGED_ROWS_DIM,
)


class _Named:
    """Values by name, each taken once."""

    def __init__(self, inputs: Sequence[NamedInput], values: Sequence[Value[Any]], layout: DeviceLayout) -> None:
        self.layout = layout
        self.left: dict[str, Any] = {
            known.name: value.buffer if isinstance(known.type, BufferType) else value.tensor
            for known, value in zip(inputs, values, strict=True)
        }

    def tensor(self, name: str) -> TensorValue:
        value: TensorValue = self.left.pop(name)
        return value

    def buffer(self, name: str) -> BufferValue:
        value: BufferValue = self.left.pop(name)
        return value

    def tensors(self, name: str) -> list[TensorValue]:
        """One per device."""
        return [self.tensor(self.layout.named(name, rank)) for rank in range(self.layout.count)]

    def buffers(self, name: str) -> list[BufferValue]:
        """One per device."""
        return [self.buffer(self.layout.named(name, rank)) for rank in range(self.layout.count)]


def decode(inputs: Sequence[NamedInput], values: Sequence[Value[Any]], layout: DeviceLayout) -> BlockBatch:
    """The values of a graph's inputs as a batch; names that no phase knows go to `extra`."""
    named = _Named(inputs, values, layout)
    distributed = None
    if layout.data_parallel:
        distributed = DistributedInputs(
            host_input_row_offsets=named.tensor("host_input_row_offsets"),
            data_parallel_splits=named.tensor("data_parallel_splits"),
        )
    return BlockBatch(
        **{name: named.tensor(name) for name in _PLAIN},
        kv_collections=_caches(named),
        sampling=Sampling(**{name: named.tensor(name) for name in Sampling.__dataclass_fields__}),
        structured_output=_masks(named),
        devices=layout.devices,
        data_parallel_degree=layout.data_parallel_degree,
        distributed=distributed,
        signal_buffers=named.buffers("signal_buffer") if layout.signals else [],
        batch_context_lengths=named.tensors("batch_context_length") if layout.data_parallel else [],
        ep_inputs=list(named.buffers("ep_buffer")) if layout.data_parallel else None,
        vision_embeddings=named.tensors("vision_embeddings"),
        vision_scatter_indices=named.tensors("vision_scatter_indices"),
        extra=named.left,
    )


def _caches(named: _Named) -> list[BlockCaches]:
    leaves = {name: named.buffers(f"kv_{name}") for name in LEAVES}
    lengths, tables = named.tensors("cache_lengths"), named.tensors("lookup_table")
    return [
        BlockCaches(
            leaves={name: buffers[rank] for name, buffers in leaves.items()},
            cache_lengths=lengths[rank],
            lookup_table=tables[rank],
        )
        for rank in range(named.layout.count)
    ]


def _masks(named: _Named) -> StructuredOutput | None:
    if "pinned_bitmask" not in named.left:
        return None
    return StructuredOutput(
        pinned_bitmask=named.tensor("pinned_bitmask"),
        wait_payload=named.buffer("wait_payload"),
        device_bitmask_scratch=named.buffer("device_bitmask_scratch"),
    )
