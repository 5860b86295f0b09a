"""Whether a server has become quiet: the moment to give memory back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Receive, Scope, Send

QUIET = 2.0
"""Seconds without a request before it counts as a pause."""


@dataclass(kw_only=True)
class Activity:
    """An ASGI application around another that knows when something was asked for last.

    It is called on the event loop and asked in another thread. Only what has a body counts: a probe of /health or
    /metrics leaves nothing behind.
    """

    app: ASGIApp
    clock: Callable[[], float] = time.monotonic
    _running: int = field(default=0, init=False)
    _last: float | None = field(default=None, init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        self._running += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self._running -= 1
            self._last = self.clock()

    def paused(self) -> bool:
        """Whether a pause has begun; once each."""
        last = self._last
        if self._running or last is None or self.clock() - last < QUIET:
            return False
        self._last = None
        return True
