"""An EAGLE drafter's folder: its configuration and its memory-mapped weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specdecode.core.checkpoint.inventory import compare_tensors, eagle_tensors
from specdecode.core.checkpoint.reader import SINGLE_FILE
from specdecode.core.checkpoint.shard import Shard
from specdecode.core.errors import CheckpointError
from specdecode.core.models.deepseek_v41.config import TextConfig
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig

FOLDER = "eagle"
"""Where a checkpoint has a drafter of this kind, if it has one."""
PREFIX = "eagle."


@dataclass(frozen=True, kw_only=True)
class EagleCheckpoint:
    """An opened and checked drafter.

    Attributes:
        path: its folder.
        config: its configuration.
    """

    path: Path
    config: EagleConfig
    _shard: Shard

    @classmethod
    def open(cls, folder: Path, target: TextConfig) -> EagleCheckpoint:
        """Open a drafter and check it against its own configuration and its target.

        Raises:
            ConfigError: the configuration is not supported or is for another target.
            CheckpointError: the weights are missing, short, or not those of the configuration.
        """
        config = EagleConfig.from_folder(folder, target)
        path = folder / SINGLE_FILE
        if not path.exists():
            raise CheckpointError(f"{folder} holds no {SINGLE_FILE}, so the drafter has no weights.")
        shard = Shard(path)
        compare_tensors(eagle_tensors(target, config), shard.tensors, folder)
        return cls(path=folder, config=config, _shard=shard)

    def array(self, name: str) -> NDArray[np.generic]:
        """A read-only view of a tensor, as `Checkpoint.array` gives it."""
        return self._shard.array(name)
