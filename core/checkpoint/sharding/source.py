"""The checkpoint that is cut: its shards with their headers, and everything else in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specdecode.core.checkpoint.reader import INDEX_FILE, Checkpoint
from specdecode.core.checkpoint.shard import TensorInfo
from specdecode.core.checkpoint.sharding.files import reading
from specdecode.core.checkpoint.sharding.manifest import FOLDER
from specdecode.core.checkpoint.sharding.plan import Tensor
from specdecode.core.errors import CheckpointError, UsageError
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One safetensors file whose tensors lie end to end.

    Attributes:
        header: bytes before the first tensor, length field included.
        size: bytes of the whole file.
        modified: when it was changed last, in nanoseconds.
        tensors: by name, in the order of their bytes.
    """

    path: Path
    header: int
    size: int
    modified: int
    tensors: Mapping[str, TensorInfo]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A folder to cut.

    Attributes:
        files: its shards.
        index: its index, if it has one.
        copies: what is copied as it is, relative to the folder.
        stray: safetensors files that its index does not name; they are left out.
    """

    path: Path
    config: DeepseekV41Config
    files: tuple[SourceFile, ...]
    index: Path | None
    copies: tuple[Path, ...]
    stray: tuple[str, ...]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor, vision included."""
        infos = [(name, info) for file in self.files for name, info in file.tensors.items()]
        return {name: Tensor(name=name, shape=info.shape, nbytes=info.nbytes) for name, info in infos}


def open_source(folder: Path) -> Source:
    """Open and check a checkpoint: sizes of all files against their headers, names, types and shapes. No weights.

    Raises:
        ModelError: it cannot be used, with the first reason.
        UsageError: it has been sharded before.
    """
    checkpoint = Checkpoint.open(folder)
    if checkpoint.ranks > 1 or (folder / FOLDER).exists():
        raise UsageError(
            f"{folder} is sharded for {checkpoint.ranks} ranks already. Restore the original with --merge first."
        )
    files = tuple(source_file(shard.path, shard.tensors) for shard in checkpoint.files)
    index = folder / INDEX_FILE
    weights = {file.path.name for file in files}
    copies, stray = [], []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if not path.is_file() or any(part.startswith(".") for part in relative.parts):
            continue
        if relative.name == str(relative) and (relative.name in weights or relative.name == INDEX_FILE):
            continue
        if relative.suffix == ".safetensors" and len(relative.parts) == 1:
            stray.append(relative.name)
        else:
            copies.append(relative)
    return Source(
        path=folder,
        config=checkpoint.config,
        files=files,
        index=index if index.exists() else None,
        copies=tuple(copies),
        stray=tuple(stray),
    )


def source_file(path: Path, tensors: Mapping[str, TensorInfo]) -> SourceFile:
    """A file and its tensors in the order of their bytes.

    Raises:
        CheckpointError: bytes belong to no tensor or to two, so that the tensors are not the whole file.
    """
    with reading(path):
        status = path.stat()
        with path.open("rb") as file:
            header = 8 + int.from_bytes(file.read(8), "little")
    ordered = sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes))
    at = header
    for name, info in ordered:
        if info.offset != at:
            raise CheckpointError(
                f"{path}: {name} begins at byte {info.offset}, and the tensor before it ends at {at}. Tensors must lie "
                "end to end, as the safetensors format asks. Write the file anew, or download it again."
            )
        at += info.nbytes
    if at != status.st_size:
        raise CheckpointError(
            f"{path} has {status.st_size} bytes, and its last tensor ends at {at}: {status.st_size - at} bytes too "
            "many. Download it again."
        )
    return SourceFile(path=path, header=header, size=status.st_size, modified=status.st_mtime_ns, tensors=dict(ordered))
