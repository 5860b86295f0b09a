"""The load test for some seconds; minutes of it are `serve_load.py` itself, whose result is in `docs/serve.md`."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.benchmarks import serve_load
from tests.benchmarks.serving.cases import cases
from tests.benchmarks.serving.clients import MANNERS, Clients
from tests.benchmarks.serving.server import Served


@pytest.fixture(scope="module")
def server():
    served = Served("--batch-size", "8", "--max-queue", "24", "--max-length", "256")
    yield served
    assert served.stop() == 0


def test_nothing_is_lost_mixed_or_leaked(server):
    report = serve_load.run(server, minutes=0.08, clients=24, parts=2, known=cases()[::2])
    # Acceptance in so short a time says nothing, and memory is still finding its size: the long run judges these.
    assert [line for line in report["failures"] if "drifted" not in line and "grew" not in line] == []
    assert report["answers_equal_to_solo"] == report["answers"] > 10
    assert report["pages_back"]
    assert len(report["manners"].keys() & MANNERS.keys()) > 5


def test_another_answer_than_alone_would_be_noticed(server):
    known = cases()[:2]
    alone = [serve_load.one_alone(server, case) for case in known]
    crowd = Clients(url=server.url, cases=known, alone=alone[::-1], count=4)
    asyncio.run(crowd.run(time.monotonic() + 0.5))
    assert crowd.seen.counts["answers"] == sum("in place of" in line for line in crowd.seen.wrong) > 0
