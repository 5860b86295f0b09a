"""The load test for some seconds; minutes of it are `serve_load.py` itself, whose result is in `docs/serve.md`."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.benchmarks import serve_load
from tests.benchmarks.serving.cases import cases
from tests.benchmarks.serving.clients import MANNERS, Clients
from tests.benchmarks.serving.memory import Resident, parsed
from tests.benchmarks.serving.server import Served

OPTIONS = ("--batch-size", "8", "--max-queue", "24", "--max-length", "256")
TOO_SHORT = ("drifted", "pool")
"""What so short a time says nothing about: acceptance, and the size that the runtime's pool comes to."""

LEAK = """
from specdecode.core.server.calls import Call
from specdecode.cli.__main__ import main
kept, make = [], Call.__init__
def keeping(self, *arguments, **named):
    make(self, *arguments, **named)
    kept.append(b"x" * (1 << 18))
Call.__init__ = keeping
main()
"""


@pytest.fixture(scope="module")
def server():
    served = Served(*OPTIONS)
    yield served
    assert served.stop() == 0


def test_nothing_is_lost_mixed_or_leaked(server):
    report = serve_load.run(server, minutes=0.08, clients=24, parts=2, known=cases()[::2])
    assert [line for line in report["failures"] if not any(word in line for word in TOO_SHORT)] == []
    assert report["answers_equal_to_solo"] == report["answers"] > 10
    assert report["pages_back"]
    assert len(report["manners"].keys() & MANNERS.keys()) > 5


def test_a_server_that_keeps_a_little_of_each_call_would_be_noticed():
    served = Served(*OPTIONS, entry=("-c", LEAK))
    try:
        report = serve_load.run(served, minutes=0.04, clients=8, parts=2, known=cases()[:4])
    finally:
        served.stop()
    assert any(line.startswith("memory grew by") for line in report["failures"])


def test_another_answer_than_alone_would_be_noticed(server):
    known = cases()[:2]
    alone = [serve_load.one_alone(server, case) for case in known]
    crowd = Clients(url=server.url, cases=known, alone=alone[::-1], count=4)
    asyncio.run(crowd.run(time.monotonic() + 0.5))
    assert crowd.seen.counts["answers"] == sum("in place of" in line for line in crowd.seen.wrong) > 0


@pytest.mark.parametrize(
    ("pools", "rest", "failures"),
    [
        ([50, 56, 57], 201.9, []),
        ([50, 56, 57], 202.1, ["memory grew by 2.1 MiB"]),
        ([50, 56, 61], 190.0, ["the runtime's pool still grew by 5.0 MiB"]),
    ],
)
def test_memory_that_does_not_come_back_is_a_failure(pools, rest, failures):
    first, half, last = (
        serve_load.Part(rate=0.5, descriptors=9, resident=Resident(runtime=pool, rest=rest)) for pool in pools
    )
    before = Resident(runtime=40, rest=200)
    assert serve_load.memory_failures(before, [first, half, half, last]) == failures


def test_the_runtimes_pool_is_what_lies_in_whole_gibibytes():
    def mapping(begin: int, end: int, kib: int, name: str = "") -> str:
        return f"{begin:x}-{end:x} rw-p 00000000 00:00 0 {name}\nSize: 1 kB\nRss: {kib} kB\nPss: 7 kB\n"

    gib = 1 << 30
    text = (
        mapping(4096, 8192, 1024, "[heap]")
        + mapping(5 * gib, 5 * gib + 4096, 0)
        + mapping(5 * gib + 4096, 6 * gib, 2048)  # one stretch with the one before
        + mapping(7 * gib, 8 * gib, 512, "/lib/other.so")
        + mapping(9 * gib, 10 * gib - 4096, 256)
    )
    assert parsed(text) == Resident(runtime=2.0, rest=1.75)
