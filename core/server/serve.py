"""A server's life: a port first, then the model, then requests, until a signal; what runs then is finished.

HTTP and the engine have a thread each. The main thread waits for signals, which Python delivers to it alone.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from specdecode.core.errors import ExitCode, SpecdecodeError, UsageError
from specdecode.core.server import memory
from specdecode.core.server.activity import Activity
from specdecode.core.server.connection import Connection
from specdecode.core.server.runner import Runner
from specdecode.core.server.state import Loaded, State

_TICK = 0.05
_BACKLOG = 2048
_GRACE = 3.0
"""Seconds for connections to take what they are told at the end."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, so that a port that is taken is found out before a model is loaded.

    Raises:
        SpecdecodeError: the address cannot be used.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError, OverflowError) as error:
        raise UsageError(f"--host {host} is no address of this machine: {error}.") from None
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
        taken.listen(_BACKLOG)
    except OSError as error:
        taken.close()
        hint = "Stop what listens there, or choose another with --port; 0 takes any that is free."
        if error.errno in (errno.EACCES, errno.EADDRNOTAVAIL):
            hint = "Choose another with --host and --port."
        raise SpecdecodeError(f"Port {port} of {host} cannot be opened: {error.strerror}. {hint}") from None
    return taken


def url(listening: socket.socket) -> str:
    """Where a socket listens."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@dataclass(kw_only=True)
class Life:
    """Runs a server to its end.

    Attributes:
        drain: seconds that requests have to finish once a signal has come.
        prepare: called in the main thread once the port answers, before anything is loaded.
        ready: called when requests are answered. note: told what happens.
    """

    app: ASGIApp
    runner: Runner
    load: Callable[[], Loaded]
    drain: float
    note: Callable[[str], None]
    prepare: Callable[[], None] = lambda: None
    ready: Callable[[], None] = lambda: None
    _signals: int = 0
    _last: int = 0
    _error: BaseException | None = None

    def run(self, listening: socket.socket) -> ExitCode:
        """Serve until SIGTERM (exit code 0) or Ctrl-C (130); a second signal ends what is still running.

        Raises:
            Exception: whatever ended the engine.
        """
        # Clients that go away in the middle of an answer are no news, and asyncio would warn of them.
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        activity = Activity(app=self.app)
        config = uvicorn.Config(
            activity,
            http=Connection,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=65,
        )
        http = uvicorn.Server(config)
        engine = threading.Thread(target=self._engine, daemon=True, name="engine")
        web = threading.Thread(target=http.run, kwargs={"sockets": [listening]}, daemon=True, name="http")
        with self._handlers():
            web.start()
            self.note(f"{url(listening)} is open; requests are answered once the model is loaded")
            self.prepare()
            engine.start()
            self._wait(engine, activity)
            ended_early = not engine.is_alive()
            loading = self.runner.state is State.LOADING
            self.runner.drain()
            if not loading and not ended_early:
                self._finish_requests()
            self.runner.stop()
            http.should_exit = True
            web.join(_GRACE + 1)
            http.force_exit = True
            web.join(_GRACE)
            if not loading:
                engine.join(_GRACE)
        if self._error is not None:
            raise self._error
        code = ExitCode.INTERRUPTED if self._last == signal.SIGINT else ExitCode.OK
        if engine.is_alive():
            # A compiler or a step is at work, and the interpreter cannot end under it.
            os._exit(code)
        return code

    def _engine(self) -> None:
        try:
            self.runner.run(self.load)
        except BaseException as error:
            self._error = error

    def _wait(self, engine: threading.Thread, activity: Activity) -> None:
        """Until a signal comes or the engine ends; memory is given back in pauses."""
        told = False
        while not self._signals and engine.is_alive():
            if not told and self.runner.state is State.READY:
                told = True
                memory.settle()
                self.ready()
            if not self.runner.in_flight and activity.paused():
                memory.release()
            time.sleep(_TICK)

    def _finish_requests(self) -> None:
        """Wait for what runs; after `drain` seconds or a second signal it is ended with a message."""
        if self.runner.in_flight:
            self.note(f"stopping; {self.runner.in_flight} answers have {self.drain:g} s to finish")
        deadline = time.monotonic() + self.drain
        while self.runner.in_flight and time.monotonic() < deadline and self._signals < 2:
            time.sleep(_TICK)
        if self.runner.in_flight:
            self.note(f"{self.runner.in_flight} answers were not finished in time and are ended")
            self.runner.leave()

    @contextmanager
    def _handlers(self) -> Iterator[None]:
        def handle(number: int, _: object) -> None:
            self._signals += 1
            self._last = number

        before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
