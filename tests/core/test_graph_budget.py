"""The step's graph stays small: MAX charges compile time by its operations, above all by call sites of kernels."""

from __future__ import annotations

import json
import re

import pytest

from specdecode.core.engine.graph_store import count_ops
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.load import PAGE_SIZE, StepGraph
from specdecode.core.models.deepseek_v41.unified.digest import CORE

DEMO = CORE.parent / "presets" / "demo"
COMPILE_CPU_SECONDS = 250
SEQUENTIAL_CPU_SECONDS = 300
# A call site costs one to two CPU-seconds on a busy machine, everything else next to nothing: 60 of them leave
# room for half the budget. The graph had 35 when this was written, and 700 operations, most of them weights.
KERNEL_CALLS = 60
OPS = 800


@pytest.fixture(scope="module")
def traced() -> object:
    """The embedded checkpoint's graph, traced; takes seconds."""
    config = DeepseekV41Config.from_json(DEMO)
    return StepGraph(config=config, pages=PageLayout.of(config.text_config, PAGE_SIZE)).build()


def test_the_traced_graph_is_within_its_budget(traced):
    text = str(traced.module.mlir_module)
    calls = re.findall(r"\bmo\.custom \[symbol = \"(\w+)\"\]", text)
    assert len(calls) <= KERNEL_CALLS, calls
    assert count_ops(traced) <= OPS


def test_a_layer_is_a_subgraph_that_is_called_again(traced):
    text = str(traced.module.mlir_module)
    bodies, calls = len(re.findall(r"^\s*mo\.graph ", text, flags=re.MULTILINE)) - 1, text.count("mo.call ")
    assert 0 < 3 * bodies <= calls, (bodies, calls)  # two of them have a single call


def test_the_sequential_drivers_graph_was_compiled_within_its_budget():
    manifest = json.loads((DEMO / "graphs" / "eagle-step.x86-64-v3.mef.json").read_text())
    assert manifest["compile_cpu_seconds"] <= SEQUENTIAL_CPU_SECONDS
    assert manifest["ops"] <= OPS


def test_the_shipped_graph_was_compiled_within_its_budget(traced):
    manifest = json.loads((DEMO / "graphs" / "step.x86-64-v3.mef.json").read_text())
    assert manifest["compile_cpu_seconds"] <= COMPILE_CPU_SECONDS
    assert manifest["ops"] == count_ops(traced), "stale: run `python examples/build_graphs.py` and commit the files"
