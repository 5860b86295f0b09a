"""The model on several logical shards of the CPU, against itself on one device: bit for bit, whatever the layout.

One graph per layout, thousands of rows through each. Four ranks divide the test checkpoint's sizes into four, two or
no parts (see `parallel_config`), so gathering, holding the same part twice and holding a whole are all run.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from max.driver import Buffer

from specdecode.core.cache.leaves import DeviceCaches
from specdecode.core.checkpoint.locate import preset_folders
from specdecode.core.engine.costs import step_seconds
from specdecode.core.engine.engine import Engine
from specdecode.core.engine.graph_store import GraphStore
from specdecode.core.engine.request import FinishedEvent, Request
from specdecode.core.engine.step import StepRow
from specdecode.core.models.deepseek_v41.load import load_step_model
from specdecode.core.models.deepseek_v41.unified.model import UnifiedDSparkDeepseekV41Model
from tests.support.promise import PARALLEL_GRAPHS, write_parallel_checkpoint
from tests.support.random_steps import Steps, answers, forget

LENGTH = 64
OWN = 5  # pages of a request
RANKS = 4
STEPS = 60

pytestmark = pytest.mark.usefixtures("cpu_only")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_parallel_checkpoint(tmp_path_factory.mktemp("parallel"))


def load(folder, tmp_path_factory, devices="cpu", degree=1) -> UnifiedDSparkDeepseekV41Model:
    store = GraphStore(shipped=PARALLEL_GRAPHS, cache=tmp_path_factory.mktemp("graphs"))
    pages = 8 * OWN // degree
    return load_step_model(
        folder, devices=devices, data_parallel_degree=degree, max_length=LENGTH, num_pages=pages, store=store
    )


@pytest.fixture(scope="module")
def one(folder, tmp_path_factory) -> UnifiedDSparkDeepseekV41Model:
    return load(folder, tmp_path_factory)


@pytest.fixture(scope="module")
def tensor(folder, tmp_path_factory) -> UnifiedDSparkDeepseekV41Model:
    return load(folder, tmp_path_factory, "cpux4")


@pytest.fixture(scope="module")
def expert(folder, tmp_path_factory) -> UnifiedDSparkDeepseekV41Model:
    return load(folder, tmp_path_factory, "cpux4", 4)


@pytest.mark.parametrize("layout", ["tensor", "expert"])
def test_every_step_is_bit_for_bit_that_of_one_device(request, one, layout):
    """Two requests of the eight belong to each replica, so steps are uneven and leave replicas without any."""
    model = request.getfixturevalue(layout)
    assert (model.replicas, model.num_pages) == (RANKS if layout == "expert" else 1, one.num_pages)
    forget(one, model)
    replicas = set()
    for rows, width, draft in Steps(one, count=STEPS, seed=5):
        replicas.add(len({row.pages[0] // (2 * OWN) for row in rows}))
        assert answers(model, rows, width, draft) == answers(one, rows, width, draft)
    assert replicas == {1, 2, 3, 4}


@pytest.mark.parametrize("layout", ["tensor", "expert"])
def test_one_device_that_is_off_by_a_position_is_seen(request, one, layout, monkeypatch):
    """The twin that must fail: the last device believes that its caches hold one token more."""
    model = request.getfixturevalue(layout)
    processor = model.batch_processor
    whole = processor._caches

    def skewed(rows):
        caches = whole(rows)
        last = caches.devices[-1]
        lengths = Buffer.from_numpy(last.cache_lengths.to_numpy() + np.uint32(1))
        return DeviceCaches(devices=(*caches.devices[:-1], replace(last, cache_lengths=lengths)))

    monkeypatch.setattr(processor, "_caches", skewed)
    forget(one, model)
    differences = 0
    for rows, width, draft in Steps(one, count=STEPS, seed=6):
        differences += answers(model, rows, width, draft) != answers(one, rows, width, draft)
    assert differences > STEPS // 2


def completions(model: UnifiedDSparkDeepseekV41Model, requests: list[Request]) -> list[tuple[int, ...]]:
    engine = Engine(model, max_batch=6, token_budget=24)
    for request in requests:
        engine.submit(request)
    ended = [event for event in engine.run() if isinstance(event, FinishedEvent)]
    return [event.completion.tokens for event in sorted(ended, key=lambda event: event.request_id)]


@pytest.mark.parametrize("count", [1, 3, 11])
def test_the_engine_gives_the_same_tokens_on_every_layout(one, tensor, expert, count):
    """Fewer requests than replicas, and more than rows; speculative, and plain on one device."""
    rng = np.random.default_rng(count)
    requests = [
        Request(
            prompt=tuple(rng.integers(3, 250, int(rng.integers(1, 30))).tolist()),
            max_tokens=int(rng.integers(1, 24)),
            temperature=(0.0, 0.8)[place % 2],
            seed=place,
        )
        for place in range(count)
    ]
    plain = [Request(**{**vars(request), "draft_tokens": 0}) for request in requests]
    expected = completions(one, plain)
    assert completions(tensor, requests) == expected
    assert completions(expert, requests) == expected
    assert completions(expert, plain) == expected


def test_costs_of_more_requests_than_a_step_has_room_for(expert, monkeypatch):
    """Found with a batch of 64: their prompts in one step were more rows than the experts' buffers have."""
    processor = expert.batch_processor
    rows = (1 + expert.block_size) * 8 * 3  # a decoding step of eight, three experts a row
    monkeypatch.setattr(processor, "_ep_buffers", tuple(buffer[:rows, :] for buffer in processor._ep_buffers))
    assert step_seconds(expert, 8, [(0, True), (expert.block_size, True)]) is not None


def test_pages_of_a_request_are_one_replica_s(expert):
    row = Steps(expert, count=1, seed=7).row(0, 0)
    own = expert.num_pages // RANKS
    straddling = StepRow(**{**vars(row), "pages": tuple(range(own - 1, own + 4))})
    with pytest.raises(ValueError, match="row 0 has pages of several replicas, 10 pages each"):
        expert.step([straddling], width=0, draft=False)
    late = StepRow(**{**vars(row), "pages": tuple(range(own, own + OWN))})
    with pytest.raises(ValueError, match="row 1 belongs to replica 0, but comes after rows of replica 1"):
        expert.step([late, row], width=0, draft=False)


def test_a_step_beyond_the_experts_buffers_is_refused(expert, monkeypatch):
    processor = expert.batch_processor
    monkeypatch.setattr(processor, "_ep_buffers", tuple(buffer[:5, :] for buffer in processor._ep_buffers))
    row = Steps(expert, count=1, seed=8).row(0, 0)
    longer = StepRow(**{**vars(row), "tokens": [5] * 4, "cache_length": 0, "lookback": ()})
    with pytest.raises(ValueError, match="a step of 4 rows needs 12 rows in the expert-parallel buffers, which have 5"):
        expert.step([longer], width=0, draft=False)


@pytest.mark.parametrize("degree", [1, 2])
def test_the_demo_on_two_shards_speaks_as_on_one_device(demo, tmp_path_factory, degree):
    folder = preset_folders()["demo"]
    store = GraphStore(shipped=folder / "graphs", cache=tmp_path_factory.mktemp("graphs"))
    model = load_step_model(
        folder, devices="cpux2", data_parallel_degree=degree, max_length=64, max_batch=4, store=store
    )
    requests = [
        Request(prompt=(0, *range(40 + place, 50 + place)), max_tokens=24, temperature=place / 2, seed=place)
        for place in range(3)
    ]
    assert completions(model, requests) == completions(demo, requests)
