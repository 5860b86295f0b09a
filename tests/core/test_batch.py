"""`SequentialBatch` as its page describes it: fields in order, frozen, and what its properties say."""

from __future__ import annotations

import dataclasses
import inspect
from types import SimpleNamespace

import pytest
from max.graph import DeviceRef

from specdecode.core.batch import DistributedInputs, SequentialBatch

# fmt: off
FIELDS = [
    "tokens", "input_row_offsets", "draft_tokens", "signal_buffers", "kv_collections", "draft_kv_collections",
    "passthrough_kv", "draft_cache_lengths", "return_n_logits", "distributed", "batch_context_lengths",
    "ep_inputs", "devices", "data_parallel_degree", "vision_embeddings", "vision_scatter_indices",
    "merged_tokens", "merged_offsets", "merged_offsets_per_dev", "query_offsets_per_dev", "extra",
    "num_accepted",
]
# fmt: on


def batch(**changes) -> SequentialBatch:
    values = dict.fromkeys(FIELDS) | {"devices": [DeviceRef.CPU()], "extra": {}} | changes
    return SequentialBatch(*(values[name] for name in FIELDS))


def test_fields_are_those_of_the_page_in_its_order():
    assert [field.name for field in dataclasses.fields(SequentialBatch)] == FIELDS
    assert list(inspect.signature(SequentialBatch).parameters) == FIELDS
    with pytest.raises(TypeError):
        SequentialBatch()


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch().num_accepted = 1


def test_properties():
    devices = [DeviceRef.GPU(0), DeviceRef.GPU(1)]
    made = batch(devices=devices, draft_tokens=SimpleNamespace(shape=(4, 3)))
    assert made.device0 == devices[0]
    assert made.n_devs == 2
    assert made.num_draft_tokens == 3
    assert made.num_accepted is None


def test_dist_explains_a_wiring_mistake():
    with pytest.raises(ValueError, match="this graph has one device and therefore no distributed inputs"):
        _ = batch().dist
    inputs = DistributedInputs(host_input_row_offsets="offsets", data_parallel_splits="splits")
    assert batch(distributed=inputs).dist is inputs


def test_extra_is_carried_unread():
    extra = {"anything": object()}
    assert dataclasses.replace(batch(extra=extra), num_accepted="n").extra is extra
