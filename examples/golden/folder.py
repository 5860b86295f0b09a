"""A golden folder: checkpoint, expected tensors, expected tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdecode.core.checkpoint.reader import Checkpoint
from specdecode.core.checkpoint.shard import Shard

Array = NDArray[Any]


def read_tensors(path: Path) -> dict[str, Array]:
    """All tensors of a safetensors file; BF16 widened to float32."""
    shard = Shard(path)
    out = {}
    for name, info in shard.tensors.items():
        array = shard.array(name)
        out[name] = (array.astype(np.uint32) << 16).view(np.float32) if info.dtype == "BF16" else array
    return out


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One golden prompt: its ids, and how many greedy decode steps follow it."""

    name: str
    ids: tuple[int, ...]
    n_decode: int


class GoldenFolder:
    """Expected values of one mode (`fp32` or `exact`); a tensor that is not there is None and noted."""

    def __init__(self, path: Path, mode: str) -> None:
        self.path, self.mode = path, mode
        self.checkpoint = Checkpoint.open(path)
        self.tensors = read_tensors(path / "golden.safetensors")
        self.facts = json.loads((path / "golden.json").read_text())
        self.prompts = [
            Prompt(name=p["name"], ids=tuple(p["ids"]), n_decode=p["n_decode"]) for p in self.facts["prompts"]
        ]
        self.absent: set[str] = set()

    def tensor(self, prompt: Prompt, what: str, *, common: bool = False) -> Array | None:
        """Tensor `what` of a prompt, or None."""
        found = self.tensors.get(f"{'common' if common else self.mode}.{prompt.name}.{what}")
        if found is None:
            self.absent.add(what)
        return found

    def result(self, prompt: Prompt) -> dict[str, Any]:
        """Tokens, drafts and speculation rounds of a prompt; empty when the folder has none."""
        found: dict[str, Any] = self.facts.get("results", {}).get(self.mode, {}).get(prompt.name, {})
        return found
