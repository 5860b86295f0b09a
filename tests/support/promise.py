"""A checkpoint for testing the promise: small enough for thousands of steps, with the block of the release."""

from __future__ import annotations

import copy
from pathlib import Path

from tests.support.tiny import CONFIG, write_checkpoint

GRAPHS = Path(__file__).parent / "graphs"
"""Its step graph, ready-made by examples/build_graphs.py."""


def promise_config() -> dict[str, object]:
    """`CONFIG` with five drafts a round."""
    content = copy.deepcopy(CONFIG)
    content["text_config"]["dspark_block_size"] = 5  # type: ignore[index]
    return content


def write_promise_checkpoint(folder: Path) -> Path:
    """Write it with random weights into an empty folder."""
    return write_checkpoint(folder, content=promise_config())
