"""Progress of `shard-weights`: a bar on a terminal, a line for each original shard elsewhere."""

from __future__ import annotations

import sys
from typing import Any

from specdecode.cli.output import Output


class Bar:
    """The `Watcher` of a run; nothing is shown with --quiet."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._shown = sys.stderr.isatty() and not output.quiet
        self._bar: Any = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, nbytes: int, done: int) -> None:
        """A new bar over so many bytes; those of an earlier run count as done."""
        from tqdm import tqdm

        if done:
            self._output.note(f"going on after {done:,} of {nbytes:,} bytes")
        if self._shown:
            self._bar = tqdm(total=nbytes, initial=done, unit="B", unit_scale=True, leave=False, file=sys.stderr)

    def advance(self, nbytes: int) -> None:
        """So many more."""
        if self._bar is not None:
            self._bar.update(nbytes)

    def note(self, message: str) -> None:
        """A line for a log; the bar shows as much."""
        if not self._shown:
            self._output.note(message)

    def close(self) -> None:
        """Remove the bar, so that messages begin on a line of their own."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
