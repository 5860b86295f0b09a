"""The EAGLE drafter's folder, both ways: config.json and one file of tensors stored as the target's are."""

from __future__ import annotations

from pathlib import Path

import checkpoint
from config import Config
from eagle import Eagle, EagleConfig
from layers import Mode
from safetensors.torch import load_file, save_file
from torch import nn

WEIGHTS, PREFIX = "model.safetensors", "eagle"


def save(eagle: Eagle, folder: Path) -> None:
    """Write config.json and the weights; nothing of the target is repeated."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = checkpoint.disk_tensors(nn.ModuleDict({PREFIX: eagle}))
    contiguous = {name: value.contiguous() for name, value in sorted(tensors.items())}
    save_file(contiguous, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / "config.json").write_text(eagle.eagle_config.text())


def load(folder: Path, config: Config, mode: Mode) -> Eagle:
    """Return the drafter with exactly the values on disk."""
    eagle = Eagle(config, EagleConfig.load(folder), mode)
    checkpoint.fill(nn.ModuleDict({PREFIX: eagle}), load_file(folder / WEIGHTS))
    return eagle
