"""Standard streams that are closed, full, or of an encoding that lacks characters."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from specdecode.core.errors import SpecdecodeError


class StandardOutputError(SpecdecodeError):
    """Standard output takes no more; exit code 1."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror or error}")


def replace_closed() -> None:
    """Give the numbers of closed streams to the null device, or the next file that is opened would get them.

    Without standard error nobody hears of anything, and the results come all the same. The other two stay None.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8")


def discard_stdout() -> None:
    """Drop what is still to be written, or Python complains when it flushes at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def printable(text: str, stream: TextIO) -> str:
    """The text with what the stream's encoding lacks replaced by question marks."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, errors="replace").decode(encoding)
