"""What stands before the application: the key, the size of bodies, and the time that they may take."""

from __future__ import annotations

import asyncio
import hmac
import time
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdecode.core.server.errors import ApiError

BODY_SECONDS = 30.0
"""A body that is not here by then is given up."""
_DISCARD, _DISCARD_SECONDS = 32 << 20, 5.0
"""How much of a body that is too large is read and dropped: a client that is still sending does not hear the answer."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """An ASGI application before another.

    Attributes:
        api_key: what `/v1` asks for as a bearer token; None = nothing.
        max_body: bytes.
    """

    app: ASGIApp
    max_body: int
    api_key: str | None = None
    body_seconds: float = BODY_SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, its body already read, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self._check_key(scope)
            body = await asyncio.wait_for(self._body(scope, receive), self.body_seconds)
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        except asyncio.TimeoutError:
            late = ApiError(408, f"The body did not arrive within {self.body_seconds:.0f} seconds.")
            late.headers["Connection"] = "close"
            await late.response()(scope, receive, send)
            return
        if body is None:  # the client went away
            return
        replayed = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return replayed.pop() if replayed else await receive()

        await self.app(scope, again, send)

    def _check_key(self, scope: Scope) -> None:
        if self.api_key is None or not scope["path"].startswith("/v1"):
            return
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if not hmac.compare_digest(given, b"Bearer " + self.api_key.encode()):
            why = "is not the one that this server was started with" if given else "is missing"
            raise ApiError(
                401,
                f"The API key {why}. Send it as `Authorization: Bearer KEY`.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole body; None where the client went away meanwhile."""
        parts, size, start = [], 0, time.monotonic()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            size += len(part)
            if size <= self.max_body:
                parts.append(part)
            else:
                parts.clear()
            late = time.monotonic() - start > _DISCARD_SECONDS or size > self.max_body + _DISCARD
            if size > self.max_body and (late or not message.get("more_body", False)):
                raise ApiError(
                    413,
                    f"The body is larger than this server takes, {self.max_body} bytes (--max-body).",
                    code="body_too_large",
                    headers={"Connection": "close"},
                )
            if not message.get("more_body", False):
                return b"".join(parts)
