"""Clients that behave and clients that do not, and a record of what they saw."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import httpx

from tests.benchmarks.serving.cases import Case, Streamed, whole_answers

# What a client does, and how often.
MANNERS = {
    "whole": 4,
    "stream": 6,
    "slow": 1,
    "leave": 3,
    "leave whole": 1,
    "oversize": 1,
    "malformed": 1,
    "unknown": 1,
}


@dataclass(kw_only=True)
class Seen:
    """What all clients saw.

    Attributes:
        counts: by manner, and `429` for refusals of a full queue. wrong: whatever should not be, in words.
        first, each: seconds to the first text, and a token behind it, of streams.
    """

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    each: list[float] = field(default_factory=list)
    tokens: int = 0


@dataclass(kw_only=True)
class Clients:
    """`count` clients at a time against one server, until a moment.

    Attributes:
        alone: what each case was answered with when nothing else ran.
    """

    url: str
    cases: list[Case]
    alone: list[list[str]]
    count: int
    seed: int = 0
    max_body: int = 1 << 20
    seen: Seen = field(default_factory=Seen)

    async def run(self, until: float) -> None:
        """Until the monotonic clock says so; then every client ends what it is at."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self.count)
        async with httpx.AsyncClient(base_url=self.url, timeout=120, limits=limits) as http:
            await asyncio.gather(*(self._client(http, random.Random(self.seed + n), until) for n in range(self.count)))

    async def _client(self, http: httpx.AsyncClient, chance: random.Random, until: float) -> None:
        while time.monotonic() < until:
            manner = chance.choices(list(MANNERS), list(MANNERS.values()))[0]
            number = chance.randrange(len(self.cases))
            try:
                await self._ask(http, manner, number, chance)
            except (httpx.HTTPError, ValueError, KeyError) as error:
                self.seen.wrong.append(f"{manner}, case {number}: {type(error).__name__}: {error}")

    async def _ask(self, http: httpx.AsyncClient, manner: str, number: int, chance: random.Random) -> None:
        case = self.cases[number]
        self.seen.counts[manner] += 1
        if manner == "whole":
            response = await http.post(case.path, json=case.body)
            if await self._refused(response):
                return
            self._check(manner, number, response.status_code, whole_answers(response.json()))
        elif manner in ("stream", "slow", "leave"):
            await self._stream(http, manner, number, chance)
        elif manner == "leave whole":
            with suppress(httpx.TimeoutException):
                await http.post(case.path, json=case.body, timeout=httpx.Timeout(chance.uniform(0.05, 0.5)))
        elif manner == "oversize":
            body = b'{"prompt": "' + b"x" * (self.max_body + chance.randrange(1 << 20)) + b'"}'
            await self._expect(http, manner, case.path, body, 413)
        elif manner == "malformed":
            await self._expect(http, manner, case.path, b'{"prompt": "x", ' + bytes([chance.randrange(256)]), 400)
        else:
            await self._expect(http, manner, case.path, b'{"prompt": "x", "messages": [], "frobnicate": 1}', 400)

    async def _stream(self, http: httpx.AsyncClient, manner: str, number: int, chance: random.Random) -> None:
        case, streamed, start, first = self.cases[number], Streamed(), time.monotonic(), None
        left = chance.randrange(1, 12) if manner == "leave" else -1
        async with http.stream("POST", case.path, json=case.content(stream=True)) as response:
            if await self._refused(response):
                return
            async for line in response.aiter_lines():
                if streamed.line(line) and first is None:
                    first = time.monotonic()
                left -= bool(line)
                if left == 0:
                    return
                if manner == "slow" and line:
                    await asyncio.sleep(0.05)
        end = time.monotonic()
        if streamed.error or not streamed.done:
            self.seen.wrong.append(f"{manner}, case {number}: {streamed.error or 'the stream ended early'}")
            return
        self._check(manner, number, response.status_code, streamed.answers())
        self.seen.tokens += streamed.tokens
        if manner == "stream" and first is not None:
            self.seen.first.append(first - start)
            self.seen.each.append((end - first) / max(1, streamed.tokens - 1))

    async def _refused(self, response: httpx.Response) -> bool:
        """Whether the queue was full; then wait as long as the answer says."""
        if response.status_code != 429:
            return False
        self.seen.counts["429"] += 1
        await asyncio.sleep(float(response.headers["Retry-After"]))
        return True

    async def _expect(self, http: httpx.AsyncClient, manner: str, path: str, body: bytes, status: int) -> None:
        response = await http.post(path, content=body, headers={"Content-Type": "application/json"})
        if response.status_code != status or set(response.json()["error"]) != {"message", "type", "param", "code"}:
            self.seen.wrong.append(f"{manner}: {response.status_code} {response.text[:100]}")

    def _check(self, manner: str, number: int, status: int, answers: list[str]) -> None:
        self.seen.counts["answers"] += 1
        if status != 200 or answers != self.alone[number]:
            self.seen.wrong.append(f"{manner}, case {number}: {status}, {answers} in place of {self.alone[number]}")
