"""Telling somebody what takes long, without knowing how it is shown."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """Where progress goes; a command line writes it to standard error."""

    def note(self, message: str) -> None:
        """Something worth one lasting line."""

    def tick(self, message: str, seconds: float) -> None:
        """What is going on now and for how long; replaces the tick before it."""


class Silent:
    """Progress that nobody watches."""

    def note(self, message: str) -> None:
        """Drop it."""

    def tick(self, message: str, seconds: float) -> None:
        """Drop it."""


class Lines:
    """Progress as plain lines on standard output, every ten seconds of a long step."""

    def note(self, message: str) -> None:
        """Print it."""
        print(message, flush=True)

    def tick(self, message: str, seconds: float) -> None:
        """Print it with the time, at every tenth second."""
        if int(seconds) % 10 == 0:
            print(f"{message}: {seconds:.0f} s", flush=True)


@contextmanager
def ticking(progress: Progress, message: str, *, every: float = 1.0) -> Iterator[None]:
    """Tick from a thread while the body runs, because a compiler call does not come back in between."""
    start = time.monotonic()
    done = threading.Event()

    def tick() -> None:
        while not done.wait(every):
            progress.tick(message, time.monotonic() - start)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
