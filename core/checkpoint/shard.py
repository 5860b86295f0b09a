"""One safetensors file, memory-mapped.

The format: eight bytes with the header's length, a JSON header that gives every tensor's dtype, shape
and byte range, then the bytes. Own parser, because the FP8 and E8M0 types must arrive as plain bytes
and without a copy.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specdecode.core.errors import CheckpointError

# On-disk type -> how its bytes are viewed. The narrow floats have no NumPy type and stay bit patterns.
NUMPY_VIEW: dict[str, str] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "F8_E4M3": "u1",
    "F8_E8M0": "u1",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "u1",  # packed FP4 pairs, not numbers
    "U8": "u1",
    "BOOL": "?",
}
_LENGTH_BYTES = 8
_LONGEST_HEADER = 100 << 20


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """Where and what a tensor is, without its values.

    Attributes:
        dtype: the on-disk type, as safetensors spells it (`F8_E4M3`, `BF16`, …).
        shape: its dimensions as stored; packed FP4 has half the columns.
        nbytes: bytes on disk.
        file: the shard that holds it.
        offset: first byte in that file.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: Path
    offset: int


class Shard:
    """The tensors of one file; arrays are views of its mapping and keep it open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors = read_header(path)
        self._bytes: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")

    def array(self, name: str) -> NDArray[np.generic]:
        """A read-only view of one tensor (see `NUMPY_VIEW` for its type)."""
        info = self.tensors[name]
        raw = self._bytes[info.offset : info.offset + info.nbytes]
        return np.asarray(raw).view(NUMPY_VIEW[info.dtype]).reshape(info.shape)


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Parse and check the header of a safetensors file.

    Raises:
        CheckpointError: the file is missing, too short, or its header is not what the format says.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, _LONGEST_HEADER):
                raise CheckpointError(_short(path, size, _LENGTH_BYTES + length, "its header needs"))
            header = json.loads(file.read(length))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist. Download the missing shard.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: {error}. Download it again.") from None
    data_start = _LENGTH_BYTES + length
    tensors = _tensors(path, header, data_start)
    needed = max((t.offset + t.nbytes for t in tensors.values()), default=data_start)
    if size < needed:
        last = max(tensors, key=lambda name: tensors[name].offset)
        raise CheckpointError(_short(path, size, needed, f"its header says (up to tensor {last})"))
    return tensors


def parse_header(path: Path, text: bytes, data_start: int) -> dict[str, TensorInfo]:
    """The tensors of a header whose file is elsewhere: `text` without its length, tensors from `data_start` on.

    Raises:
        CheckpointError: it is not a header; `path` is named in the message.
    """
    try:
        header = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{path} is not a safetensors header: {error}.") from None
    return _tensors(path, header, data_start)


def _tensors(path: Path, header: object, data_start: int) -> dict[str, TensorInfo]:
    if not isinstance(header, dict):
        raise CheckpointError(f"{path} is not a safetensors file: its header is not a JSON object.")
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    return {name: _tensor(path, name, entry, data_start) for name, entry in entries.items()}


def _tensor(path: Path, name: str, entry: object, data_start: int) -> TensorInfo:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])  # type: ignore[index]
        begin, end = entry["data_offsets"]  # type: ignore[index]
        whole = all(isinstance(n, int) and n >= 0 for n in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        whole = False
    if not whole:
        raise CheckpointError(f"{path}: the header entry of {name} is damaged: {entry!r}. Download it again.")
    if dtype not in NUMPY_VIEW:
        known = ", ".join(NUMPY_VIEW)
        raise CheckpointError(f"{path}: {name} has the unknown type {dtype}. Known are {known}.")
    nbytes = math.prod(shape) * np.dtype(NUMPY_VIEW[dtype]).itemsize
    if end - begin != nbytes:
        raise CheckpointError(
            f"{path}: {name} is {dtype} {list(shape)} and needs {nbytes} bytes, but its header gives it "
            f"{end - begin}. The file is damaged; download it again."
        )
    return TensorInfo(dtype=dtype, shape=shape, nbytes=nbytes, file=path, offset=data_start + begin)


def _short(path: Path, size: int, needed: int, what: str) -> str:
    return (
        f"{path} has {size} bytes, and {what} {needed}: {needed - size} are missing. The download was "
        "cut off; download this shard again."
    )
