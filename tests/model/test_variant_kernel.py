"""The test of the promise would notice a kernel whose sums depend on the batch: here is one."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from specdecode.core import kernels
from specdecode.core.engine.graph_store import GraphStore
from specdecode.core.models.deepseek_v41.load import load_step_model
from tests.model.test_promise import Plain
from tests.support.promise import Watched, write_promise_checkpoint

SUM = re.compile(r"^( +)(var total = .*)$", re.MULTILINE)
# A single row comes out in the last bits as another order of summation would give it: the usual fast path.
VARIANT = r"\1\2\n\1comptime if R == 1:\n\1    total += total * 2e-7"


@pytest.mark.slow
def test_a_batch_variant_kernel_is_caught(tmp_path, monkeypatch):
    """Compiles a graph, from nothing and through the store: the only test that does."""
    sources = shutil.copytree(kernels.SOURCES, tmp_path / "kernels" / kernels.SOURCES.name)
    linear = sources / "linear.mojo"
    text, changed = SUM.subn(VARIANT, linear.read_text())
    assert changed == 1
    linear.write_text(text)
    monkeypatch.setattr(kernels, "SOURCES", sources)
    kernels.kernel_package.cache_clear()
    try:
        folder = tmp_path / "checkpoint"
        folder.mkdir()
        store = GraphStore(cache=tmp_path / "cache")  # of its own: what was changed is not in the graph's key
        model = load_step_model(write_promise_checkpoint(folder), max_length=128, num_pages=96, store=store)
    finally:
        kernels.kernel_package.cache_clear()
    [manifest] = (tmp_path / "cache").rglob("*.mef.json")
    assert json.loads(manifest.read_text())["compile_cpu_seconds"] > 0
    plain = Plain(model, families=(0,))
    assert plain.holds(Watched, 0, 0, max_batch=1, token_budget=1)
    assert not plain.holds(Watched, 0, 0, max_batch=1)  # whole prompts
    assert not plain.holds(Watched, 0, 0, max_batch=3)
    assert not plain.holds(Watched, 0, 3, max_batch=1, token_budget=1)
