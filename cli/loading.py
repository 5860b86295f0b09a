"""The one place where a command loads a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specdecode.core.progress import Progress

if TYPE_CHECKING:
    from specdecode.core.engine.step import StepModel


def load_step_model(
    path: Path,
    *,
    devices: str,
    data_parallel_degree: int = 1,
    max_length: int,
    max_batch: int,
    progress: Progress,
    drafter: Path | None = None,
    resident: bool = False,
) -> StepModel:
    """Load a checkpoint for running, its caches large enough for `max_batch` sequences of `max_length`.

    drafter: folder of an autoregressive drafter to use in place of the checkpoint's own. resident: whether the caches'
    memory is taken now.
    """
    from specdecode.core.models.deepseek_v41.load import load_step_model as load

    return load(
        path,
        devices=devices,
        data_parallel_degree=data_parallel_degree,
        max_length=max_length,
        num_pages=None,
        max_batch=max_batch,
        progress=progress,
        drafter=drafter,
        resident=resident,
    )
