"""Models that several tests share: one graph, loaded once, on every device that is there.

`SPECDECODE_TEST_DEVICE` names the one device to test; without it the CPU is tested, and the first GPU if there is one.
"""

from __future__ import annotations

import os

import pytest
from max.driver import accelerator_count

from specdecode.core.checkpoint.locate import preset_folders
from specdecode.core.engine.graph_store import GraphStore
from specdecode.core.engine.mef import cache_directory
from specdecode.core.models.deepseek_v41.load import load_step_model
from specdecode.core.models.deepseek_v41.unified.model import UnifiedDSparkDeepseekV41Model
from tests.support.promise import GRAPHS, write_promise_checkpoint

MAX_LENGTH = 128
USER_CACHE = cache_directory()  # as it is before tests get one of their own
_named = os.environ.get("SPECDECODE_TEST_DEVICE")
DEVICES = [_named] if _named else ["cpu", *(["gpu:0"] if accelerator_count() else [])]


@pytest.fixture(scope="session", params=DEVICES)
def device(request) -> str:
    """Where the models of this round of tests run."""
    return request.param


@pytest.fixture
def cpu_only(device) -> None:
    """For what has a meaning on the CPU only."""
    if device != "cpu":
        pytest.skip("the CPU's own")


@pytest.fixture(scope="session")
def store(tmp_path_factory, device) -> GraphStore:
    """The test checkpoint's graph: the shipped one, or compiled once in this run; for a GPU the user's cache has it."""
    cache = tmp_path_factory.mktemp("graphs") if device == "cpu" else USER_CACHE
    return GraphStore(shipped=GRAPHS, cache=cache)


@pytest.fixture(scope="session")
def small(tmp_path_factory, store, device) -> UnifiedDSparkDeepseekV41Model:
    """The test checkpoint's model."""
    folder = write_promise_checkpoint(tmp_path_factory.mktemp("promise"))
    return load_step_model(folder, devices=device, max_length=MAX_LENGTH, num_pages=96, store=store)


@pytest.fixture(scope="session")
def demo(tmp_path_factory, device) -> UnifiedDSparkDeepseekV41Model:
    """The embedded checkpoint's model, with a drafter that was trained for it."""
    folder = preset_folders()["demo"]
    cache = tmp_path_factory.mktemp("graphs") if device == "cpu" else USER_CACHE
    store = GraphStore(shipped=folder / "graphs", cache=cache)
    return load_step_model(folder, devices=device, max_length=MAX_LENGTH, max_batch=8, store=store)


@pytest.fixture(scope="session")
def eagle(tmp_path_factory, device) -> UnifiedDSparkDeepseekV41Model:
    """The embedded checkpoint's model with its EAGLE drafter in place of DSpark."""
    folder = preset_folders()["demo"]
    cache = tmp_path_factory.mktemp("graphs") if device == "cpu" else USER_CACHE
    store = GraphStore(shipped=folder / "graphs", cache=cache)
    return load_step_model(
        folder, devices=device, max_length=MAX_LENGTH, max_batch=8, store=store, drafter=folder / "eagle"
    )
