"""Where a command's words go: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import TextIO

from specdecode.cli.streams import StandardOutputError, discard_stdout, printable

_TICKS_PER_LINE = 30  # without a terminal, a line of its own this many ticks (seconds) apart


class Output:
    """Results and notes of one command; also the `Progress` that core code reports to.

    Args:
        as_json: print one JSON document at the end instead of text.
        quiet: no notes and no progress, errors only.
    """

    def __init__(
        self,
        *,
        as_json: bool = False,
        quiet: bool = False,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self._stdout = stdout or sys.stdout
        self._stderr = stderr or sys.stderr
        self._line_open = False

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_line()  # or an error message would go on where the progress line stopped

    @property
    def streams(self) -> bool:
        """Whether somebody watches text as it comes."""
        return self._stdout.isatty() and not self.as_json

    @property
    def colour(self) -> bool:
        """Whether text may be coloured: on a terminal or with FORCE_COLOR, unless NO_COLOR is set (no-color.org)."""
        wanted = self._stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))
        return wanted and not os.environ.get("NO_COLOR")

    def text(self, piece: str) -> None:
        """A piece of the result."""
        self._write(printable(piece, self._stdout))

    def document(self, content: Mapping[str, object]) -> None:
        """The result as one JSON document."""
        line = json.dumps(content, ensure_ascii=False, allow_nan=False)
        if printable(line, self._stdout) != line:
            line = json.dumps(content, allow_nan=False)
        self._write(f"{line}\n")

    def note(self, message: str) -> None:
        """A lasting line beside the result."""
        if not self.quiet:
            self.error(message)

    def error(self, message: str) -> None:
        """A lasting line that is shown even to those who want quiet."""
        self._close_line()
        print(printable(message, self._stderr), file=self._stderr, flush=True)

    def tick(self, message: str, seconds: float) -> None:
        """What takes long: one line that is overwritten on a terminal, an occasional line elsewhere."""
        if self.quiet:
            return
        line = f"{message} … {seconds:.0f} s"
        if self._stderr.isatty():
            print(f"\r\x1b[K{line}", end="", file=self._stderr, flush=True)
            self._line_open = True
        elif round(seconds) % _TICKS_PER_LINE == 1:
            print(line, file=self._stderr, flush=True)

    def _write(self, piece: str) -> None:
        self._close_line()
        try:
            self._stdout.write(piece)
            self._stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            discard_stdout()
            raise StandardOutputError(error) from None

    def _close_line(self) -> None:
        if self._line_open:
            print("\r\x1b[K", end="", file=self._stderr, flush=True)
            self._line_open = False
