"""Ctrl-C: the program ends at once, except where a command wants to keep what it has.

An exception raised by a signal may surface in the middle of a C++ module that is being imported, and such a module
ends the process with an abort. Therefore no exception is raised while there is nothing to keep.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from specdecode.core.errors import ExitCode


def exit_when_interrupted() -> None:
    """From now on Ctrl-C is one message and an exit; where the shell has Ctrl-C ignored, it stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


@contextmanager
def raised_interrupts() -> Iterator[None]:
    """Within the body Ctrl-C raises KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is not _exit:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _exit)


def _exit(*_: object) -> None:
    with suppress(OSError):
        clear = b"\r\x1b[K" if os.isatty(2) else b""  # a progress line may be open
        os.write(2, clear + b"interrupted\n")
    os._exit(ExitCode.INTERRUPTED)
