"""Files that are whole or not there: a temporary file takes their place once it is on the disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from specdecode.core.errors import SpecdecodeError, UsageError


def check_target(option: str, path: Path, *, overwrite: bool) -> None:
    """Refuse a file that could not be written, before anything is measured.

    Raises:
        UsageError: it is there already, or its folder is not.
    """
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder. Name a file in it.")
    if path.exists() and not overwrite:
        raise UsageError(f"{option} {path} is there already. Name another file, or add --overwrite.")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: the folder {path.parent} does not exist. Make it first.")


def save(path: Path, write: Callable[[Path], None]) -> None:
    """Put a file in its place. write: writes it to the path it is given, which has the same suffix.

    Raises:
        SpecdecodeError: it cannot be written.
    """
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as scratch:
            temporary = Path(scratch) / f"file{path.suffix}"
            write(temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
    except OSError as error:
        raise SpecdecodeError(f"{path} cannot be written: {error.strerror}.") from None
