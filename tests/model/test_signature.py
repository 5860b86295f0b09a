"""What `inspect-inputs` says is what the compiled graph declares."""

from __future__ import annotations

import pytest
from max.graph import DeviceRef

from specdecode.core.inspection.signature import inputs, outputs


@pytest.mark.parametrize("side", ["inputs", "outputs"])
@pytest.mark.parametrize("name", ["small", "eagle"])
def test_the_table_is_the_compiled_graphs_own(small, eagle, name, side):
    model = {"small": small, "eagle": eagle}[name]
    drafter = model.batch_processor.runtime.drafter
    assert (drafter is None) == (name == "small")
    entries = (inputs if side == "inputs" else outputs)(model.config, DeviceRef.CPU(), drafter=drafter)
    graph = model._graph
    declared = graph.input_metadata if side == "inputs" else graph.output_metadata
    assert len(entries) == len(declared)
    for entry, spec in zip(entries, declared, strict=True):
        assert entry.dtype == str(spec.dtype).rpartition(".")[2], entry.name
        assert len(entry.shape) == len(spec.shape), entry.name
        for dim, size in zip(entry.shape, spec.shape, strict=True):
            assert size == (dim if isinstance(dim, int) else None), entry.name
