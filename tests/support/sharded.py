"""A small checkpoint that divides by four, and the command line over it."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner, Result

from specdecode.cli.app import make_app
from tests.support.tiny import CONFIG, write_checkpoint

FIRST, SECOND, THIRD = (f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3))
PART = "model-rank-1-of-2-00002.safetensors"
_DIVISIBLE = {
    "vocab_size": 268,
    "hidden_size": 128,
    "moe_intermediate_size": 128,
    "num_attention_heads": 4,
    "o_groups": 4,
    "n_routed_experts": 4,
    "dspark_n_routed_experts": 4,
}


def divisible_config() -> dict[str, object]:
    """The tiny configuration with sizes that two and four ranks divide."""
    config = copy.deepcopy(CONFIG)
    config["text_config"].update(_DIVISIBLE)  # type: ignore[attr-defined]
    return config


def write_divisible(folder: Path) -> Path:
    """Write it with random weights, in three shards, vision tensors included, and some more files."""
    folder.mkdir()
    write_checkpoint(folder, shards=3, vision=True, content=divisible_config())
    (folder / "LICENSE").write_text("as you like\n")
    (folder / "encoding").mkdir()
    (folder / "encoding" / "encoding.py").write_text("# not ours\n")
    return folder


def shard_weights(*arguments: object) -> Result:
    """Run the command in this process."""
    result = CliRunner().invoke(make_app(panels=False), ["shard-weights", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file by its relative path."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def flip(path: Path, at: int = -1) -> None:
    """Change one bit of one byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def truncate(path: Path, by: int = 1) -> None:
    """Cut bytes off the end."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - by)


def edit_json(path: Path, change: Callable[[dict], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@dataclass(frozen=True, kw_only=True)
class Place:
    """A model, a sharded copy of it, and a free name."""

    model: Path
    sharded: Path
    out: Path


def cut(p: Place) -> tuple[object, ...]:
    return p.model, p.out, "--tp", 2


def check(p: Place) -> tuple[object, ...]:
    return p.sharded, "--verify"


def merged(p: Place) -> tuple[object, ...]:
    return p.sharded, p.out, "--merge"
