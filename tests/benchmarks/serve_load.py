"""Load and faults on `serve-local`: 64 clients for minutes, some of which break off, read slowly or send nonsense.

    python tests/benchmarks/serve_load.py --minutes 5 --clients 64

Every answer must equal the one that the same seeded request has alone, and so must what became of its drafts, so that
acceptance cannot drift; pages and memory must come back to the start: the idle server after its first answers and some
seconds of the crowd, in which every kind of request was there once. Exit code 1 if anything does not hold; the last
line is one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import httpx

from tests.benchmarks.serving.cases import Case, cases, whole_answers
from tests.benchmarks.serving.clients import Clients
from tests.benchmarks.serving.memory import Resident
from tests.benchmarks.serving.server import Served

PARTS = 10
_TOKENS = "vllm:generation_tokens_total"
MOST_DRIFT = 0.06
"""Between the acceptance rates of the first and the second half, in which chance has chosen other requests."""
MOST_GROWTH = 0.01
"""From the idle server before the load to the idle server after it, but for the runtime's pool."""

MOST_LATE = 4.0
"""MiB by which the runtime's pool may still grow in the second half; it never shrinks, but finds its size."""

WARM_UP = 15.0
"""Seconds of the crowd before the start."""

SETTLED = 4.0
"""Seconds without a request after which a server has given back what it has; its own pause is 2."""

MOST_OPEN = 40
"""Descriptors of an idle server: its own are some 14, and clients held more than 64."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A stretch of the run: acceptance rate in it, and memory and descriptors at its end."""

    rate: float
    resident: Resident
    descriptors: int


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--max-queue", type=int, default=48, help="answers that may wait")
    asked = parser.parse_args(arguments)
    options = ("--batch-size", str(asked.batch_size), "--max-queue", str(asked.max_queue), "--max-length", "512")
    server = Served(*options)
    try:
        report = run(server, minutes=asked.minutes, clients=asked.clients, seed=asked.seed)
    finally:
        code = server.stop()
    report["failures"] += [] if code == 0 else [f"the server ended with exit code {code}"]
    for line in report["failures"]:
        print(f"FAILED: {line}")
    print(json.dumps(report))
    return 1 if report["failures"] else 0


def run(
    server: Served, *, minutes: float, clients: int, seed: int = 0, parts: int = PARTS, known: list[Case] | None = None
) -> dict:
    """Alone, then together; what was seen, with `failures` in words."""
    known = known or cases()
    alone = [one_alone(server, case) for case in known]
    if [one_alone(server, case) for case in known[:4]] != alone[:4]:
        raise RuntimeError("the same request alone has two answers")
    early = Clients(url=server.url, cases=known, alone=alone, count=clients, seed=~seed)
    asyncio.run(early.run(time.monotonic() + min(WARM_UP, minutes * 60)))
    before = _settled(server)
    start = server.metrics()
    crowd = Clients(url=server.url, cases=known, alone=alone, count=clients, seed=seed)
    begin = time.monotonic()
    seen = asyncio.run(_watched(server, crowd, minutes * 60, parts))
    seconds = time.monotonic() - begin
    idle = _idle(server, start)
    after = _settled(server)
    last = Part(rate=seen[-1].rate, resident=after, descriptors=server.descriptors())
    report = _report(crowd, [*seen[:-1], last], seconds, start, server.metrics(), idle)
    report["idle_mib"] = {"before": before.rounded, "after": after.rounded}
    report["failures"] = [*early.seen.wrong[:20], *memory_failures(before, [*seen[:-1], last]), *report["failures"]]
    return report


def memory_failures(before: Resident, parts: Sequence[Part]) -> list[str]:
    """What is wrong with an idle server's memory at the end of the parts."""
    after = parts[-1].resident
    growth, late = after.rest - before.rest, after.runtime - parts[(len(parts) - 1) // 2].resident.runtime
    failures = [f"memory grew by {growth:.1f} MiB"] if growth > MOST_GROWTH * before.rest else []
    return failures + ([f"the runtime's pool still grew by {late:.1f} MiB"] if late > MOST_LATE else [])


def _settled(server: Served) -> Resident:
    """The memory of the server once it is idle."""
    time.sleep(SETTLED)
    return server.resident()


def one_alone(server: Served, case: Case) -> list[str]:
    """What a request is answered with while nothing else runs."""
    response = httpx.post(f"{server.url}{case.path}", json=case.body, timeout=60)
    response.raise_for_status()
    return whole_answers(response.json())


async def _watched(server: Served, crowd: Clients, seconds: float, parts: int) -> list[Part]:
    """The crowd at work, looked at after each of so many parts."""
    begin, seen = time.monotonic(), []
    running = asyncio.create_task(crowd.run(begin + seconds))
    before = await asyncio.to_thread(server.metrics)
    for place in range(parts):
        await asyncio.sleep(max(0.0, begin + seconds * (place + 1) / parts - time.monotonic()))
        after = await asyncio.to_thread(server.metrics)
        seen.append(Part(rate=_rate(before, after), resident=server.resident(), descriptors=server.descriptors()))
        before = after
    await running
    return seen


def _rate(before: dict[str, float], after: dict[str, float]) -> float:
    accepted, proposed = (
        after[name] - before[name]
        for name in ("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_draft_tokens_total")
    )
    return accepted / proposed if proposed else 0.0


def _idle(server: Served, start: dict[str, float], seconds: float = 20.0) -> bool:
    """Whether everything comes back: no request is left, every page is free."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        now = server.metrics()
        gone = now["vllm:num_requests_running"] == now["vllm:num_requests_waiting"] == 0
        if gone and now["specdecode:free_pages"] == start["specdecode:free_pages"]:
            return True
        time.sleep(0.1)
    return False


def _report(
    crowd: Clients, parts: list[Part], seconds: float, start: dict[str, float], end: dict[str, float], idle: bool
) -> dict:
    seen, half = crowd.seen, len(parts) // 2
    drift = statistics.mean(p.rate for p in parts[half:]) - statistics.mean(p.rate for p in parts[:half])
    failures = list(seen.wrong)
    failures += [] if idle else ["pages or requests were left at the end"]
    failures += [f"acceptance drifted by {drift:.3f}"] if abs(drift) > MOST_DRIFT else []
    held = parts[-1].descriptors
    failures += [f"{held} descriptors are open at the end"] if held > MOST_OPEN else []
    failures += [] if seen.counts["answers"] else ["there was no answer at all"]
    return {
        "seconds": round(seconds, 1),
        "clients": crowd.count,
        "requests": sum(n for name, n in seen.counts.items() if name not in ("answers", "429")),
        "answers_equal_to_solo": seen.counts["answers"] - sum("in place of" in line for line in seen.wrong),
        "answers": seen.counts["answers"],
        "manners": dict(seen.counts),
        "tokens_per_second": round((end[_TOKENS] - start[_TOKENS]) / seconds),
        "time_to_first_text": _median(seen.first),
        "time_per_output_token": _median(seen.each),
        "acceptance_rates": [round(part.rate, 4) for part in parts],
        "drift": round(drift, 4),
        "resident_mib": [round(part.resident.total, 1) for part in parts],
        "descriptors": [part.descriptors for part in parts],
        "pages_back": idle,
        "failures": failures[:20],
    }


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 4) if values else None


if __name__ == "__main__":
    sys.exit(main())
