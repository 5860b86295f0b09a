"""A file of results, one JSON object a line, that is whole at every moment and can be continued.

A line is written by one call to the system, so a process that is killed leaves whole lines. Everything else happens in
a temporary file that takes the old one's place: dropping what a crash of the machine has cut, and putting the lines
into the order of the prompts at the end.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specdecode.core.errors import SpecdecodeError, UsageError


class ResultsFile:
    """Lines by the keys of the requests that they answer; one key may have several.

    Args:
        path: the file. What is not a regular file, such as a pipe, is written to and neither read nor sorted.
        keys: the keys of all requests of this run, in order.
        resume: continue a file that has lines already.

    Raises:
        UsageError: the file has lines and `resume` is off, or it holds what answers none of these requests.
    """

    def __init__(self, path: Path, keys: Sequence[str], *, resume: bool) -> None:
        self.path = path
        self._keys = keys
        self._lines: dict[int, bytes] = {}
        self._regular = path.is_file() or not path.exists()
        self._target = path.resolve() if self._regular else path  # a link stays a link to the sorted file
        with _reported(path):
            old = self._target.read_bytes() if self._regular and path.exists() else b""
        if old and not resume:
            raise UsageError(f"{path} has results already. Continue it with --resume, or name another file.")
        self._read(old)
        with _reported(path):
            kept = b"".join(self._lines.values())
            if kept != old:
                self._replace(kept)
            self._descriptor = os.open(self._target, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    @property
    def answered(self) -> frozenset[int]:
        """Places of the requests that have a line."""
        return frozenset(self._lines)

    def add(self, place: int, content: Mapping[str, object]) -> None:
        """Write one line, whole or not at all.

        Raises:
            SpecdecodeError: the file cannot be written.
        """
        line = json.dumps(content, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        self._lines[place] = line  # before it is written: an interrupt between the two must not lose it when sorting
        with _reported(self.path):
            before = os.fstat(self._descriptor).st_size
            written = os.write(self._descriptor, line)
            if written < len(line) and self._regular:
                del self._lines[place]
                os.ftruncate(self._descriptor, before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self._regular:
                os.fsync(self._descriptor)

    def close(self, *, sort: bool) -> None:
        """End; `sort` puts the lines into the order of the requests."""
        os.close(self._descriptor)
        if sort and self._regular and list(self._lines) != sorted(self._lines):
            with _reported(self.path):
                self._replace(b"".join(line for _, line in sorted(self._lines.items())))

    def _read(self, content: bytes) -> None:
        """Take over whole lines with answers; failed requests are to be tried again."""
        places = {key: [place for place, other in enumerate(self._keys) if other == key] for key in set(self._keys)}
        whole, _, _ = content.rpartition(b"\n")
        for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
            key, failed = _key(line, f"{self.path}:{number}")
            if failed:
                continue
            if not places.get(key):
                raise UsageError(
                    f"{self.path}:{number} answers no prompt of this run: a prompt, an option or the model has changed "
                    "since. Name another file, or run as before."
                )
            self._lines[places[key].pop(0)] = line + b"\n"

    def _replace(self, content: bytes) -> None:
        descriptor, name = tempfile.mkstemp(dir=self._target.parent, prefix=f".{self._target.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(descriptor, self._target.stat().st_mode & 0o777)
                os.fsync(descriptor)
            Path(name).replace(self._target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _key(line: bytes, place: str) -> tuple[str, bool]:
    """A line's key, and whether it says that the request failed."""
    try:
        content = json.loads(line)
        key = content["id"].rpartition("_")[2]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UsageError(f"{place} is no result of an earlier run. Name another file.") from None
    return key, content.get("error") is not None


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpecdecodeError(f"The results file {path} cannot be written: {error.strerror}.") from None
