"""One thread that owns the engine: takes requests from the event loop, steps, and hands events back to it.

Between steps it looks at what the loop has sent; while there is nothing to do it sleeps. The loop hears of a whole step
at once, so that a step costs one wake-up however many requests it serves.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

from specdecode.core.engine.costs import StepCosts
from specdecode.core.engine.engine import Engine
from specdecode.core.engine.report import StepReport
from specdecode.core.engine.request import Event, FailedEvent, Request, TokensEvent
from specdecode.core.errors import SpecdecodeError
from specdecode.core.server.calls import Broken, Call, Ended, Gained, Message
from specdecode.core.server.costs import Spent, draft_seconds
from specdecode.core.server.errors import too_many, unavailable
from specdecode.core.server.metrics import Metrics
from specdecode.core.server.state import Loaded, State

_FAILURES = 3
"""Steps in a row that fail as a whole before the engine is given up."""
LEAVING = "The server is stopping, and this answer was not complete when its time was up."


@dataclass(kw_only=True)
class _Route:
    """A request in the engine and who hears of it."""

    call: Call
    choice: int
    request: Request
    submitted: float
    first: bool = True
    spent: Spent = field(default_factory=Spent)


class Runner:
    """See the module. Its public methods are called on the event loop, `run` in its thread.

    Args:
        batch: requests that run at a time. queue: how many more may wait.
        metrics: told of everything.
        log: told of failures of the engine, with the exception.

    Attributes:
        state: where the server is.
    """

    def __init__(
        self, *, batch: int, waiting: int, metrics: Metrics, log: Callable[[str, Exception], None] | None = None
    ) -> None:
        self.state = State.LOADING
        self.metrics = metrics
        self._capacity = batch + waiting
        self._in_flight = 0
        self._log = log or (lambda message, error: None)
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._routes: dict[int, _Route] = {}
        self._engine: Engine | None = None
        self._costs: StepCosts | None = None
        self._failures = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def capacity(self) -> int:
        """Requests that run and wait, at most."""
        return self._capacity

    @property
    def in_flight(self) -> int:
        """Choices that were taken and have not ended."""
        return self._in_flight

    async def submit(self, requests: Sequence[Request]) -> Call:
        """Hand requests to the engine.

        Raises:
            ApiError: not now.
            SpecdecodeError: the engine refuses one of them; then none runs.
        """
        self.check_ready()
        if self._in_flight + len(requests) > self._capacity:
            raise too_many(f"{self._in_flight} answers are running or waiting, and the queue is full. Try again later.")
        self._in_flight += len(requests)
        call = Call(len(requests), ended=self._one_less, drop=self._drop)
        done: Future[None] = Future()
        self._loop = asyncio.get_running_loop()
        self._commands.put(lambda: self._submit(requests, call, done))
        try:
            await asyncio.wrap_future(done)
        except BaseException:
            call.cancel()
            raise
        return call

    def check_ready(self) -> None:
        """Refuse what comes too early or too late.

        Raises:
            ApiError: 503.
        """
        if self.state is not State.READY:
            why = {State.LOADING: "The model is being loaded.", State.DRAINING: "The server is stopping."}
            raise unavailable(why.get(self.state, "The engine has failed. Start the server again."))

    def drain(self) -> None:
        """Take nothing new."""
        if self.state in (State.LOADING, State.READY):
            self.state = State.DRAINING

    def leave(self) -> None:
        """End whatever still runs with a message."""
        self._commands.put(lambda: self._fail_all(LEAVING, leaving=True))

    def stop(self) -> None:
        """End the thread."""
        self._commands.put(None)

    def observe(self, report: StepReport) -> None:
        """The engine's observer: who pays for a step."""
        draft = draft_seconds(self._costs, report)
        for request in report.decoding:
            if request in self._routes:
                self._routes[request].spent.add(report.seconds, draft)

    def failed(self, error: Exception) -> None:
        """The engine's `failures`: one request is broken."""
        self._log("a request failed in the engine; others go on", error)

    def run(self, load: Callable[[], Loaded]) -> None:
        """Load, generate a token, then serve until `stop`; whatever `load` raises comes out."""
        try:
            loaded = load()
            self._engine, self._costs = loaded.engine, loaded.costs
            loaded.engine.submit(loaded.warm_up)
            if not any(isinstance(event, TokensEvent) for event in loaded.engine.run()):
                raise SpecdecodeError("The model was tried and gave no token. The checkpoint or the device is broken.")
        except BaseException:
            self.state = State.FAILED
            raise
        self.metrics.load(loaded.engine.load)
        if self.state is State.LOADING:
            self.state = State.READY
        try:
            while self._take_commands(loaded.engine):
                self._step(loaded.engine)
                self.metrics.load(loaded.engine.load)
        except BaseException:
            self.state = State.FAILED
            self._fail_all("The engine has failed.", leaving=True)
            raise

    def _take_commands(self, engine: Engine) -> bool:
        """Do what the loop asks for; without work wait for it. False at the end."""
        while True:
            try:
                command = self._commands.get(block=not engine.busy)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            self.metrics.load(engine.load)

    def _step(self, engine: Engine) -> None:
        try:
            events = engine.step()
        except Exception as error:
            self._log("a step failed as a whole; all its requests end", error)
            self._failures += 1
            if self._failures == _FAILURES:
                raise
            self._fail_all(f"The engine failed ({type(error).__name__}). Try again.", leaving=False)
            return
        self._failures = 0
        self._deliver([message for event in events for message in self._messages(event)])

    def _messages(self, event: Event) -> list[tuple[Call, Message]]:
        route = self._routes.get(event.request_id)
        if route is None:
            return []
        if isinstance(event, TokensEvent):
            self.metrics.tokens(event)
            if route.first:
                route.first = False
                self.metrics.first(time.perf_counter() - route.submitted, len(route.request.prompt))
            return [(route.call, Gained(choice=route.choice, event=event))]
        del self._routes[event.request_id]
        if isinstance(event, FailedEvent):
            self.metrics.ended("error")
            return [(route.call, Broken(choice=route.choice, message=event.message))]
        self.metrics.finished(event.completion)
        return [(route.call, Ended(choice=route.choice, completion=event.completion, spent=route.spent))]

    def _submit(self, requests: Sequence[Request], call: Call, done: Future[None]) -> None:
        assert self._engine is not None
        made: list[int] = []
        if not call.open:  # its client has gone already
            done.set_result(None)
            return
        try:
            for choice, request in enumerate(requests):
                number = self._engine.submit(request)
                made.append(number)
                route = _Route(call=call, choice=choice, request=request, submitted=time.perf_counter())
                self._routes[number] = route
        except Exception as error:
            for number in made:
                self._engine.cancel(number)
                del self._routes[number]
            done.set_exception(error)
            return
        done.set_result(None)

    def _drop(self, call: Call) -> None:
        self._commands.put(lambda: self._cancel(call))

    def _cancel(self, call: Call) -> None:
        assert self._engine is not None
        for number in [number for number, route in self._routes.items() if route.call is call]:
            self._engine.cancel(number)
            del self._routes[number]
            self.metrics.ended("abort")

    def _fail_all(self, message: str, *, leaving: bool) -> None:
        told: list[tuple[Call, Message]] = []
        for number, route in self._routes.items():
            if self._engine is not None:
                self._engine.cancel(number)
            self.metrics.ended("error")
            told.append((route.call, Broken(choice=route.choice, message=message, leaving=leaving)))
        self._routes.clear()
        self._deliver(told)

    def _deliver(self, told: list[tuple[Call, Message]]) -> None:
        if told and self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and with it everybody who would listen
                self._loop.call_soon_threadsafe(_put, told)

    def _one_less(self) -> None:
        self._in_flight -= 1


def _put(told: list[tuple[Call, Message]]) -> None:
    for call, message in told:
        call.put(message)
