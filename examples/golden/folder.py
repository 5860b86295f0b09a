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
from specdecode.core.errors import CheckpointError

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
        for name in ("golden.safetensors", "golden.json"):
            if not (path / name).exists():
                raise CheckpointError(
                    f"{path} has no {name}: a golden folder is a checkpoint together with a reference's outputs."
                )
        self.tensors = read_tensors(path / "golden.safetensors")
        self.facts = json.loads((path / "golden.json").read_text())
        self.prompts = [
            Prompt(name=p["name"], ids=tuple(p["ids"]), n_decode=p["n_decode"]) for p in self.facts["prompts"]
        ]
        self.asked: dict[str, set[str]] = {}
        self.had: dict[str, set[str]] = {}

    def tensor(self, prompt: Prompt, what: str, *, common: bool = False) -> Array | None:
        """Tensor `what` of a prompt, or None."""
        found = self.tensors.get(f"{'common' if common else self.mode}.{prompt.name}.{what}")
        (self.asked if found is None else self.had).setdefault(what, set()).add(prompt.name)
        return found

    def skipped(self) -> list[str]:
        """What could not be compared: prompts without any tensor, tensors that no prompt has or that some lack."""
        present = {name for names in self.had.values() for name in names}
        bare = [p.name for p in self.prompts if p.name not in present]
        never = sorted(set(self.asked) - set(self.had))
        some = sorted(set(self.asked) & set(self.had))
        lines = [f"skipped prompts, no tensor at all: {', '.join(bare)}"] if bare else []
        lines += [f"skipped everywhere, no prompt has it: {', '.join(never)}"] if never else []
        return lines + ([f"skipped for the prompts that lack it: {', '.join(some)}"] if some else [])

    def result(self, prompt: Prompt) -> dict[str, Any]:
        """Tokens, drafts and speculation rounds of a prompt; empty when the folder has none."""
        found: dict[str, Any] = self.facts.get("results", {}).get(self.mode, {}).get(prompt.name, {})
        return found
