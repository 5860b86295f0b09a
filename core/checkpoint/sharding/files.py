"""Files that appear whole or not at all, and what the system refuses, said to people."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from specdecode.core.errors import CheckpointError, StorageError

PARTIAL = ".partial"
_BUFFER = 64 << 10  # gathers small tensors; what is larger goes out as it is
_AHEAD = 4 << 20  # bytes of a file after which the disk is set to work, so that it is busy from the beginning
# Python has no name for it. What it returns does not matter: `sync` reports what cannot be written.
_LIBC = ctypes.CDLL(None)
_SYNC_FILE_RANGE_WRITE = 2
_ADVICE = {
    errno.ENOSPC: "The disk is full. Make room",
    errno.EDQUOT: "Your quota is used up. Make room",
    errno.EROFS: "The file system is read-only. Name a folder elsewhere",
    errno.EACCES: "The folder does not let you write. Change its permissions or name another",
    errno.EPERM: "The folder does not let you write. Change its permissions or name another",
    errno.ENOTDIR: "A part of the path is a file. Name another folder",
}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an `OSError` of the body into a `StorageError` about `path`."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "Mend this")
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}. {advice}, and run the command again: it goes on "
            "after the last finished file, and the original is as it was."
        ) from None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an `OSError` of the body into a `CheckpointError` about `path`."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from None


class PartialFile:
    """A file under a temporary name beside its own, until `keep`.

    Opening truncates what an earlier run left there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._on_its_way = 0
        self._temporary = path.with_name(path.name + PARTIAL)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self._temporary.open("wb", buffering=_BUFFER)

    def write(self, data: bytes) -> None:
        """Append.

        Raises:
            StorageError: the system refuses.
        """
        with writing(self.path):
            self._file.write(data)
            self.size += len(data)
            if self.size - self._on_its_way >= _AHEAD:
                self.start_writing()

    def start_writing(self) -> None:
        """Let the disk begin with what is there, or `sync` would wait for all of it at the end."""
        start, length = ctypes.c_int64(self._on_its_way), ctypes.c_int64(self.size - self._on_its_way)
        _LIBC.sync_file_range(self._file.fileno(), start, length, _SYNC_FILE_RANGE_WRITE)
        self._on_its_way = self.size

    def sync(self) -> None:
        """Get everything onto the disk."""
        with writing(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())

    def keep(self) -> None:
        """Take the final name; `sync` first."""
        with writing(self.path):
            self._file.close()
            self._temporary.replace(self.path)

    def drop(self) -> None:
        """Remove it; nothing happens after `keep`."""
        with suppress(OSError):  # the rest of its buffer may have no room on the disk, and is not wanted either
            self._file.close()
        self._temporary.unlink(missing_ok=True)


class Reader:
    """The next bytes of a file that is open without a buffer."""

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        self._stream, self._path = stream, path

    def __call__(self, size: int) -> bytes:
        """So many bytes.

        Raises:
            CheckpointError: the file has become shorter, or the system refuses.
        """
        with reading(self._path):
            data = self._stream.read(size)
            while len(data) < size and (more := self._stream.read(size - len(data))):
                data += more
        if len(data) < size:
            raise CheckpointError(
                f"{self._path} became shorter while it was read: at least {size - len(data)} bytes are missing. Is "
                "something still writing it? Run the command again when it is whole."
            )
        return data


def write_whole(path: Path, content: bytes) -> None:
    """A small file, whole or not at all."""
    file = PartialFile(path)
    try:
        file.write(content)
        file.sync()
        file.keep()
    except BaseException:
        file.drop()
        raise


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last."""
    with writing(folder):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_space(folder: Path, needed: int) -> None:
    """Refuse what the disk has no room for, before the first byte.

    Raises:
        StorageError: with both sizes.
    """
    place = folder
    while not place.exists():
        place = place.parent
    with writing(folder):
        free = shutil.disk_usage(place).free
    if free < needed:
        raise StorageError(
            f"{folder} needs {needed:,} bytes, and its disk has {free:,} free: {needed - free:,} are missing. "
            "Make room or name a folder on another disk. Nothing was written."
        )


def remove_partial(folder: Path, names: Iterable[str]) -> None:
    """Remove what an interrupted run left of these files, which are named relative to the folder."""
    with writing(folder):
        for name in names:
            (folder / f"{name}{PARTIAL}").unlink(missing_ok=True)
