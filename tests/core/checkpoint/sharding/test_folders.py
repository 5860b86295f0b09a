"""What a sharded folder may hold, and what is copied into it."""

from __future__ import annotations

import json
import shutil

import pytest

from specdecode.core.checkpoint.reader import Checkpoint
from specdecode.core.errors import CheckpointError
from tests.support.sharded import FIRST, cut, digests, edit_json, shard_weights


def test_files_of_two_layouts(place, tmp_path):
    assert shard_weights(place.model, place.out, "--tp", 4).exit_code == 0
    index = place.sharded / "model.safetensors.index.json"
    other = json.loads((place.out / index.name).read_text())["weight_map"]
    name = next(name for name, file in other.items() if file == "model-rank-3-of-4-00001.safetensors")
    shutil.copy(place.out / other[name], place.sharded)
    moved = {held: file for held, file in other.items() if file == other[name]}
    edit_json(index, lambda content: (content["weight_map"].update(moved), content["metadata"].pop("total_size")))
    with pytest.raises(CheckpointError, match="Files of two sharded checkpoints are mixed"):
        Checkpoint.open(place.sharded)


def test_the_files_of_one_rank_alone(place):
    """Somebody copied one rank's files and mended the index."""
    index = place.sharded / "model.safetensors.index.json"

    def of_rank_0(content: dict) -> None:
        content["weight_map"] = {name: file for name, file in content["weight_map"].items() if "-1-of-2" not in file}
        del content["metadata"]["total_size"]

    edit_json(index, of_rank_0)
    with pytest.raises(CheckpointError, match=r"lacks slice 1 of embed\.weight, which is cut into 2"):
        Checkpoint.open(place.sharded)


def test_stray_files_are_left_out_and_named(place):
    shutil.copy(place.model / FIRST, place.model / "leftover.safetensors")
    result = shard_weights(*cut(place))
    assert result.exit_code == 0
    assert "left out: leftover.safetensors, which the index of" in result.stderr
    assert "leftover.safetensors" not in digests(place.out)


def test_hidden_files_are_not_copied(place):
    (place.model / ".cache").mkdir()
    (place.model / ".cache" / "lock").write_text("")
    assert shard_weights(*cut(place)).exit_code == 0
    assert digests(place.out) == digests(place.sharded)
