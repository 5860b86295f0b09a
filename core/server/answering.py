"""How an answer is waited for, whole or as a stream, and given up where its client goes away."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from fastapi import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from specdecode.core.server.answers import Answers
from specdecode.core.server.calls import Broken, Call, Ended, Gained
from specdecode.core.server.errors import ApiError
from specdecode.core.server.runner import Runner
from specdecode.core.server.translate import Asked, Translator
from specdecode.core.server.usage import UsageReport

_DONE = b"data: [DONE]\n\n"
_CLIENT_GONE = 499
"""nginx's status for a client that went away; nobody reads it."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """What the routes share: who runs requests, who reads them, and the limits of the gate."""

    runner: Runner
    translator: Translator
    report: UsageReport
    max_body: int
    api_key: str | None = None
    started: int = field(default_factory=lambda: int(time.time()))


async def answer(server: Server, request: Request, translate: Callable[[], Asked]) -> Response:
    """The response to a request that `translate` reads.

    Raises:
        ApiError: there is none.
    """
    server.runner.check_ready()
    asked = await asyncio.to_thread(translate)  # a long prompt or a grammar must not hold up the others
    call = await server.runner.submit(asked.requests)
    answers = Answers(
        asked=asked,
        model=server.translator.model,
        tokenizer=server.translator.tokenizer,
        report=server.report,
    )
    if asked.stream:
        return _EventStream(call, _events(call, answers))
    try:
        ended = await _unless_gone(request, _collect(call, len(asked.requests)))
    finally:
        call.cancel()
    return Response(status_code=_CLIENT_GONE) if ended is None else JSONResponse(answers.whole(ended))


async def _collect(call: Call, choices: int) -> list[Ended]:
    ended: list[Ended] = []
    while len(ended) < choices:
        message = await call.get()
        if isinstance(message, Broken):
            raise _broken(message)
        if isinstance(message, Ended):
            ended.append(message)
    return ended


async def _events(call: Call, answers: Answers) -> AsyncIterator[bytes]:
    """Server-sent events; a choice that breaks ends the stream with an error object."""
    for chunk in answers.begin():
        yield _event(chunk)
    ended: list[Ended] = []
    while len(ended) < len(answers.asked.requests):
        message = await call.get()
        if isinstance(message, Broken):
            yield _event(_broken(message).body())
            yield _DONE
            return
        if isinstance(message, Gained):
            made = answers.gained(message.choice, message.event)
            if made is not None:
                yield _event(made)
        else:
            ended.append(message)
            yield _event(answers.ended(message))
    if answers.asked.usage_chunk:
        yield _event(answers.usage(ended))
    yield _DONE


class _EventStream(StreamingResponse):
    """A stream that frees what the engine holds when it ends, whoever ended it."""

    def __init__(self, call: Call, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._call.cancel()


async def _unless_gone(request: Request, work: Awaitable[list[Ended]]) -> list[Ended] | None:
    """What the work gives; None where the client goes away first."""
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _broken(message: Broken) -> ApiError:
    return ApiError(503 if message.leaving else 500, message.message, code="stopping" if message.leaving else "failed")


def _event(content: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False, allow_nan=False).encode() + b"\n\n"
