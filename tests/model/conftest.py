"""Models that several tests share: one graph, loaded once."""

from __future__ import annotations

import pytest

from specdecode.core.checkpoint.locate import preset_folders
from specdecode.core.engine.graph_store import GraphStore
from specdecode.core.models.deepseek_v41.load import load_step_model
from specdecode.core.models.deepseek_v41.unified.model import UnifiedDSparkDeepseekV41Model
from tests.support.promise import GRAPHS, write_promise_checkpoint

MAX_LENGTH = 128


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> GraphStore:
    """The test checkpoint's graph: the shipped one, or compiled once in this run."""
    return GraphStore(shipped=GRAPHS, cache=tmp_path_factory.mktemp("graphs"))


@pytest.fixture(scope="session")
def small(tmp_path_factory, store) -> UnifiedDSparkDeepseekV41Model:
    """The test checkpoint's model."""
    folder = write_promise_checkpoint(tmp_path_factory.mktemp("promise"))
    return load_step_model(folder, max_length=MAX_LENGTH, num_pages=96, store=store)


@pytest.fixture(scope="session")
def demo(tmp_path_factory) -> UnifiedDSparkDeepseekV41Model:
    """The embedded checkpoint's model, with a drafter that was trained for it."""
    folder = preset_folders()["demo"]
    store = GraphStore(shipped=folder / "graphs", cache=tmp_path_factory.mktemp("graphs"))
    return load_step_model(folder, max_length=MAX_LENGTH, max_batch=8, store=store)
