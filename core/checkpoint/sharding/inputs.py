"""What a plan is made from: a configuration alone, or a checkpoint with its files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specdecode.core.checkpoint.inventory import expected_tensors
from specdecode.core.checkpoint.locate import locate_model
from specdecode.core.checkpoint.reader import INDEX_FILE, SINGLE_FILE
from specdecode.core.checkpoint.shard import NUMPY_VIEW
from specdecode.core.checkpoint.sharding.plan import Tensor
from specdecode.core.checkpoint.sharding.source import Source, open_source
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config


@dataclass(frozen=True, kw_only=True)
class PlanInput:
    """A configuration with its tensors; `source` is None where there are no weight files."""

    path: Path
    config: DeepseekV41Config
    tensors: Mapping[str, Tensor]
    source: Source | None


def plan_input(model: str) -> PlanInput:
    """A checkpoint folder, a preset, or a `config.json` or folder without weights.

    Raises:
        ModelError: it cannot be used. UsageError: it is sharded already.
    """
    path = Path(model).expanduser()
    if not path.is_file():
        path = locate_model(model)
    if path.is_dir() and any((path / name).exists() for name in (INDEX_FILE, SINGLE_FILE)):
        source = open_source(path)
        return PlanInput(path=path, config=source.config, tensors=source.tensors, source=source)
    config = DeepseekV41Config.from_json(path)
    return PlanInput(path=path, config=config, tensors=planned_tensors(config), source=None)


def planned_tensors(config: DeepseekV41Config) -> dict[str, Tensor]:
    """The tensors that a configuration asks for."""
    tensors = {}
    for name, spec in expected_tensors(config).items():
        nbytes = math.prod(spec.shape) * np.dtype(NUMPY_VIEW[spec.dtype]).itemsize
        tensors[name] = Tensor(name=name, shape=spec.shape, nbytes=nbytes)
    return tensors
