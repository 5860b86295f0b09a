"""Traffic as `vllm bench serve` makes it: streamed requests at random moments, and metrics before and after."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from dataclasses import dataclass, field

import httpx

TOKENS = 24
RATE = 20.0


@dataclass
class Result:
    """What its client keeps of a request; times in seconds."""

    text: str = ""
    tokens: int = 0
    first: float = 0.0
    latency: float = 0.0
    gaps: list[float] = field(default_factory=list)


def completion(prompt: str) -> tuple[str, dict]:
    body = {"prompt": prompt, "repetition_penalty": 1.0, "max_tokens": TOKENS, "logprobs": None, "ignore_eos": True}
    return "/v1/completions", body


def chat(prompt: str) -> tuple[str, dict]:
    content = [{"type": "text", "text": prompt}]
    return "/v1/chat/completions", {
        "messages": [{"role": "user", "content": content}],
        "max_completion_tokens": TOKENS,
        "ignore_eos": True,
    }


async def ask(client: httpx.AsyncClient, path: str, body: dict) -> Result:
    shared = {"model": "demo", "temperature": 0.0, "stream": True, "stream_options": {"include_usage": True}}
    made, start = Result(), time.perf_counter()
    last = start
    async with client.stream("POST", path, json={**body, **shared}) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk, now = json.loads(line[6:]), time.perf_counter()
            if chunk["choices"]:
                choice = chunk["choices"][0]
                made.text += choice.get("text") or choice.get("delta", {}).get("content") or ""
                if made.first:
                    made.gaps.append(now - last)
                else:
                    made.first = now - start
                last = now
            elif chunk["usage"]:
                made.tokens = chunk["usage"]["completion_tokens"]
    made.latency = last - start
    return made


async def bench(url: str, requests: list[tuple[str, dict]]) -> list[Result]:
    """All requests, at the moments of a Poisson process."""
    chance = random.Random(0)
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        tasks = []
        for path, body in requests:
            tasks.append(asyncio.create_task(ask(client, path, body)))
            await asyncio.sleep(chance.expovariate(RATE))
        return await asyncio.gather(*tasks)


def speculation(url: str) -> dict[str, int]:
    """As its client reads /metrics: by the beginnings of lines, positions by their label."""
    found: dict[str, int] = {}
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        if line.startswith("vllm:spec_decode"):
            name, value = line.split()
            place = re.search(r'position="(\d+)"', name)
            key = f"position {place[1]}" if place else name.partition("{")[0]
            found[key] = found.get(key, 0) + int(float(value))
    return found


def test_a_benchmark_of_both_endpoints(demo):
    before = speculation(demo.url)
    requests = [kind(f"And God said {n}") for n in range(6) for kind in (completion, chat)]
    results = asyncio.run(bench(demo.url, requests))
    assert [result.tokens for result in results] == [TOKENS] * len(requests)
    for result in results:
        assert result.text
        assert 0 < result.first <= result.latency
        assert (result.latency - result.first) / (TOKENS - 1) > 0
    after = speculation(demo.url)
    grown = {key: after[key] - before[key] for key in after}
    drafts, proposed = grown["vllm:spec_decode_num_drafts_total"], grown["vllm:spec_decode_num_draft_tokens_total"]
    accepted = grown["vllm:spec_decode_num_accepted_tokens_total"]
    assert 0 < accepted <= proposed <= 5 * drafts
    assert sum(grown[f"position {place}"] for place in range(5)) == accepted
