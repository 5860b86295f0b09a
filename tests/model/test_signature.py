"""What `inspect-inputs` says is what the compiled graph declares."""

from __future__ import annotations

import pytest

from specdecode.core.engine.graph_store import GraphStore
from specdecode.core.inspection.signature import inputs, outputs
from specdecode.core.models.deepseek_v41.load import load_step_model
from tests.support.promise import PARALLEL_GRAPHS, write_parallel_checkpoint


@pytest.mark.parametrize("side", ["inputs", "outputs"])
@pytest.mark.parametrize("name", ["small", "eagle"])
def test_the_table_is_the_compiled_graphs_own(small, eagle, name, side):
    model = {"small": small, "eagle": eagle}[name]
    assert (model.batch_processor.runtime.drafter is None) == (name == "small")
    compare(model, side)


@pytest.mark.parametrize("side", ["inputs", "outputs"])
@pytest.mark.parametrize("degree", [1, 4])
def test_it_is_on_several_devices_too(cpu_only, tmp_path, side, degree):
    folder, store = write_parallel_checkpoint(tmp_path), GraphStore(shipped=PARALLEL_GRAPHS)
    compare(
        load_step_model(folder, devices="cpux4", data_parallel_degree=degree, max_length=32, num_pages=3, store=store),
        side,
    )


def compare(model, side: str) -> None:
    runtime = model.batch_processor.runtime
    entries = (inputs if side == "inputs" else outputs)(model.config, runtime.layout, drafter=runtime.drafter)
    graph = model._graph
    declared = graph.input_metadata if side == "inputs" else graph.output_metadata
    assert len(entries) == len(declared)
    for entry, spec in zip(entries, declared, strict=True):
        assert entry.dtype == str(spec.dtype).rpartition(".")[2], entry.name
        assert len(entry.shape) == len(spec.shape), entry.name
        for dim, size in zip(entry.shape, spec.shape, strict=True):
            assert size == (dim if isinstance(dim, int) else None), entry.name
