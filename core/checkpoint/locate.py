"""From what a user calls a model to the folder it lies in."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from specdecode.core.errors import ModelError


def locate_model(name: str) -> Path:
    """The checkpoint folder for the name of an embedded preset or a path.

    A folder that is called like a preset is `./demo`: what happens to lie here must not change what a name means.

    Raises:
        ModelError: it is neither.
    """
    presets = preset_folders()
    if name in presets:
        return presets[name]
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    known = ", ".join(presets) or "none in this installation"
    raise ModelError(f"{name} is neither a checkpoint folder nor a preset. Presets: {known}.")


def preset_folders() -> dict[str, Path]:
    """Embedded checkpoints by name, and configurations whose weights are elsewhere."""
    root = Path(str(files("specdecode.presets")))
    return {folder.name: folder for folder in sorted(root.iterdir()) if (folder / "config.json").is_file()}
