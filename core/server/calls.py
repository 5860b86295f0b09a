"""What one API request hears from the engine: messages on the event loop, from a queue of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from specdecode.core.engine.request import Completion, TokensEvent
from specdecode.core.server.costs import Spent


@dataclass(frozen=True, kw_only=True)
class Gained:
    """A choice has more tokens."""

    choice: int
    event: TokensEvent


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A choice is complete."""

    choice: int
    completion: Completion
    spent: Spent


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A choice cannot go on; `leaving`: because the server stops, else because of itself."""

    choice: int
    message: str
    leaving: bool = False


Message = Gained | Ended | Broken


class Call:
    """The choices of one API request, on the side of the event loop.

    What comes is bounded by the tokens that were asked for, so a slow reader holds up nobody and fills nothing.

    Args:
        choices: how many there are.
        ended: called once for each choice that will take no more of the engine.
        drop: called once when the client has gone.
    """

    def __init__(self, choices: int, *, ended: Callable[[], None], drop: Callable[[Call], None]) -> None:
        self._open = set(range(choices))
        self._ended, self._drop = ended, drop
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._cancelled = False

    @property
    def open(self) -> bool:
        """Whether choices are still to come."""
        return bool(self._open)

    def put(self, message: Message) -> None:
        """A message of the engine."""
        if message.choice not in self._open:
            return
        if not isinstance(message, Gained):
            self._close(message.choice)
        self._messages.put_nowait(message)

    async def get(self) -> Message:
        """The next message; there is one for each choice that ends."""
        return await self._messages.get()

    def cancel(self) -> None:
        """Nobody listens any more: free what the engine holds. Harmless where everything has ended."""
        if self._open and not self._cancelled:
            self._cancelled = True
            self._drop(self)
        for choice in list(self._open):
            self._close(choice)

    def _close(self, choice: int) -> None:
        self._open.discard(choice)
        self._ended()
