"""A checkpoint folder: configuration, index and memory-mapped shards.

checkpoint = Checkpoint.open(Path("checkpoint"))
checkpoint.array("layers.0.attn.wq_a.weight")     # uint8 view of the FP8 codes, nothing is copied

A folder that `specdecode shard-weights` wrote opens alike: `array` joins the slices of a tensor, `rank_array` gives
one of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from specdecode.core.checkpoint.inventory import check_tensors, is_vision
from specdecode.core.checkpoint.shard import Shard, TensorInfo
from specdecode.core.checkpoint.slices import Axis, Stored, gather
from specdecode.core.errors import CheckpointError
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """An opened and checked checkpoint.

    Attributes:
        path: its folder.
        config: its configuration.
        note: what was recognised and left out (vision tensors), or None.
        files: its shards, in the index's order.
        ranks: for how many ranks it is sharded; 1 for an ordinary checkpoint.
    """

    path: Path
    config: DeepseekV41Config
    note: str | None
    files: tuple[Shard, ...]
    ranks: int
    _tensors: dict[str, Stored]

    @classmethod
    def open(cls, path: Path | str) -> Checkpoint:
        """Open a folder in the released layout and check it against its own configuration.

        Reads config.json, the index and the shards' headers; no weights.

        Raises:
            ConfigError: the configuration is not supported.
            CheckpointError: a file is missing or short, the index disagrees with the files, or a tensor
            is
                missing, unexpected or of the wrong type or shape.
        """
        folder = Path(path)
        config = DeepseekV41Config.from_json(folder)
        shards = _open_shards(folder)
        tensors, ranks = gather(shards, folder)
        check_tensors(config, {name: tensor.info for name, tensor in tensors.items()}, folder)
        vision = [name for name in tensors if is_vision(name)]
        note = f"{len(vision)} vision tensors are left out: images are not supported." if vision else None
        text = {name: tensor for name, tensor in tensors.items() if not is_vision(name)}
        files = tuple(_unique(shards.values()))
        return cls(path=folder, config=config, note=note, files=files, ranks=ranks, _tensors=text)

    def names(self) -> tuple[str, ...]:
        """Every tensor of the text model and the drafter, in the index's order."""
        return tuple(self._tensors)

    def info(self, name: str) -> TensorInfo:
        """Type, shape and place of a tensor; of one in slices the place of the first."""
        return self._tensors[name].info

    def array(self, name: str) -> NDArray[np.generic]:
        """A whole tensor: F8, E8M0 and I8 as uint8, BF16 as uint16 bits, F32 as float32.

        A read-only view, or a fresh array where the tensor is in slices.
        """
        return self._tensors[name].array()

    def rank_names(self, rank: int) -> tuple[str, ...]:
        """The tensors that a rank needs, whole or a slice: all but the experts that other ranks own.

        Raises:
            CheckpointError: the checkpoint is not sharded for so many ranks.
        """
        self._check_rank(rank)
        return tuple(name for name, tensor in self._tensors.items() if tensor.owner in (None, rank))

    def rank_array(self, name: str, rank: int) -> NDArray[np.generic]:
        """What a rank holds of a tensor, as a read-only view: its slice, or the whole tensor where it is not cut.

        Raises:
            CheckpointError: the checkpoint is not sharded for so many ranks, or another rank owns the tensor.
        """
        self._check_rank(rank)
        tensor = self._tensors[name]
        if tensor.owner not in (None, rank):
            raise CheckpointError(f"{name} of {self.path} belongs to rank {tensor.owner}; rank {rank} has none of it.")
        return tensor.rank_array(rank)

    def axis(self, name: str) -> Axis | None:
        """Along which axis a tensor is cut, or None if every rank that has it has the whole."""
        return self._tensors[name].axis

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.ranks:
            raise CheckpointError(
                f"{self.path} is sharded for {self.ranks} ranks, and rank {rank} is not one of 0 to {self.ranks - 1}. "
                "Run with as many devices, or shard the checkpoint for another number."
            )


def _open_shards(folder: Path) -> dict[str, Shard]:
    """Tensor name -> its shard, after comparing the index with what the shards hold."""
    index_path = folder / INDEX_FILE
    if not index_path.exists():
        single = folder / SINGLE_FILE
        if not single.exists():
            raise CheckpointError(f"{folder} holds neither {INDEX_FILE} nor {SINGLE_FILE}, so it has no weights.")
        shard = Shard(single)
        return dict.fromkeys(shard.tensors, shard)
    weight_map, total_size = _read_index(index_path)
    shards = {file: Shard(folder / file) for file in _unique(weight_map.values())}
    _compare(index_path, weight_map, shards)
    found = sum(info.nbytes for shard in shards.values() for info in shard.tensors.values())
    if total_size not in (None, found):
        raise CheckpointError(
            f"{index_path} says total_size {total_size}, but the tensors of its shards have {found} bytes. "
            "The index and the shards are not from the same checkpoint."
        )
    return {name: shards[file] for name, file in weight_map.items()}


def _read_index(path: Path) -> tuple[dict[str, str], int | None]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        weight_map = content["weight_map"]
        total_size = content.get("metadata", {}).get("total_size")
        if not all(isinstance(file, str) and Path(file).name == file for file in weight_map.values()):
            raise ValueError("weight_map must map tensor names to file names in the same folder")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is not a safetensors index: {error!r}. Download it again.") from None
    return weight_map, total_size


def _compare(index_path: Path, weight_map: dict[str, str], shards: dict[str, Shard]) -> None:
    for name, file in weight_map.items():
        if name not in shards[file].tensors:
            elsewhere = [other for other, shard in shards.items() if name in shard.tensors]
            where = f"it is in {elsewhere[0]}" if elsewhere else "no shard holds it"
            raise CheckpointError(f"{index_path} says that {name} is in {file}, but {where}.")
    for file, shard in shards.items():
        for name in shard.tensors:
            if weight_map.get(name) != file:
                raise CheckpointError(f"{shard.path} holds {name}, which {index_path} does not place there.")


def _unique(items: Iterable[T]) -> Iterable[T]:
    return dict.fromkeys(items)
