"""A server's memory: the largest step is as large as any, pauses are noticed, and what is free is given back."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from max.driver import Buffer

from specdecode.core.cache.resident import make_resident
from specdecode.core.server.activity import QUIET, Activity
from specdecode.core.server.memory import run_largest_step
from tests.benchmarks.serving.memory import resident

OWN = "import os; from tests.benchmarks.serving.memory import resident; now = lambda: resident(os.getpid()).rest\n"


def largest(*, max_batch: int = 8, token_budget: int = 512, **changed):
    """The rows of the step, with its width; None where there was none."""
    known = {"page_size": 16, "num_pages": 264, "replicas": 1, "block_size": 5, "max_length": 512, "lookback_length": 2}
    steps = []
    model = SimpleNamespace(**known | changed, step=lambda rows, *, width, draft: steps.append((rows, width, draft)))
    run_largest_step(model, max_batch=max_batch, token_budget=token_budget)
    return steps[0] if steps else None


def test_the_largest_step_fills_the_budget_at_the_end_of_the_context():
    rows, width, draft = largest()
    assert (len(rows), width, draft) == (8, 5, True)
    assert sum(len(row.tokens) + len(row.draft_tokens) for row in rows) == 512
    assert {row.cache_length + len(row.tokens) + width for row in rows} == {512}
    assert {len(row.lookback) for row in rows} == {2}
    assert len({page for row in rows for page in row.pages}) == 8 * 32


@pytest.mark.parametrize(
    "changed",
    [
        {"max_length": 20, "num_pages": 16},
        {"num_pages": 20},
        {"num_pages": 3},
        {"block_size": 0},
        {"max_batch": 1, "num_pages": 33},
        {"max_batch": 1000, "num_pages": 2000},
        {"max_length": 6},
    ],
)
def test_the_largest_step_stays_within_the_caches(changed):
    rows, width, _ = largest(**changed)
    pages = [page for row in rows for page in row.pages]
    assert len(pages) == len(set(pages))
    assert set(pages) <= set(range(changed.get("num_pages", 264)))
    for row in rows:
        assert row.tokens
        end = row.cache_length + len(row.tokens) + width
        assert end <= min(len(row.pages) * 16, changed.get("max_length", 512))
        assert row.cache_length >= len(row.lookback)


def test_caches_without_room_for_a_block_run_nothing():
    assert largest(max_length=5) is None


def test_the_largest_step_leaves_each_request_on_one_replica():
    rows, _, _ = largest(replicas=2)
    assert len(rows) == 8
    assert [{page // 132 for page in row.pages} for row in rows] == [{0}] * 4 + [{1}] * 4


def test_a_pause_begins_once():
    clock = SimpleNamespace(now=0.0)
    running = asyncio.Event()

    async def app(scope, receive, send) -> None:
        await running.wait()

    async def asked() -> None:
        activity = Activity(app=app, clock=lambda: clock.now)
        clock.now = 100.0
        assert not activity.paused()  # nothing was asked yet
        request = asyncio.create_task(activity({"type": "http", "method": "POST"}, None, None))
        await asyncio.sleep(0)
        clock.now = 200.0
        assert not activity.paused()
        running.set()
        await request
        assert not activity.paused()
        clock.now += QUIET
        assert [activity.paused(), activity.paused()] == [True, False]
        await activity({"type": "http", "method": "GET"}, None, None)
        clock.now += QUIET
        assert not activity.paused()

    asyncio.run(asked())


# Blocks of a size that malloc serves from a thread's heap, all but one in a hundred freed.
BURST = """
import threading
start, kept = now(), []
def work():
    blocks = [b"x" * 30_000 for _ in range(1000)]
    kept.append(blocks[::100])
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
release()
print(now() - start)
"""


def grown(before: str, release: str) -> float:
    """MiB that are left of a burst in a process of its own, whose kept blocks are some 1.2."""
    script = f"{OWN}from specdecode.core.server import memory\n{before}\nrelease = {release}\n{BURST}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return float(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_a_burst_leaves_free_is_given_back():
    assert grown("memory.bound_free_memory()", "memory.release") < 8


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_is_not_given_back_would_be_noticed():
    assert grown("", "lambda: None") > 20


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_caches_are_resident_once_they_are_written():
    before = resident(os.getpid()).rest
    leaf = Buffer.from_numpy(np.zeros((64, 1 << 18), np.float32))
    reserved = resident(os.getpid()).rest
    make_resident([leaf])
    assert reserved - before < 8
    assert resident(os.getpid()).rest - before > 56
