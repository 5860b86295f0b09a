"""What a sharded folder may hold, and what is copied into it."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest

from specdecode.core.checkpoint.reader import Checkpoint
from specdecode.core.checkpoint.sharding import plan, splits
from specdecode.core.checkpoint.sharding.layout import COLUMNS, ROWS, Layout, Placement
from specdecode.core.checkpoint.slices import Axis
from specdecode.core.errors import CheckpointError
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
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


def in_the_first_edition(name: str, config: DeepseekV41Config, layout: Layout) -> Placement:
    """What edition 1 of tensor parallel placed otherwise."""
    if re.search(r"(wo_b|\.w2)\.(weight|scale)$", name):
        return COLUMNS
    return ROWS if name.endswith(("embed.weight", "markov_head.head.weight")) else splits.place(name, config, layout)


def test_a_folder_of_the_first_edition(place, monkeypatch):
    """It opens, verifies and merges; the command that would make it today does not mix its cuts with new ones."""
    with monkeypatch.context() as patch:
        patch.setattr(plan, "place", in_the_first_edition)
        assert shard_weights(*cut(place)).exit_code == 0
    manifest = place.out / "sharding/manifest.json"
    edit_json(manifest, lambda content: content.pop("splits"))
    original, old, new = (Checkpoint.open(folder) for folder in (place.model, place.out, place.sharded))
    assert all(np.array_equal(old.array(name), original.array(name)) for name in original.names())
    for name, before, now in [
        ("layers.0.attn.wo_b.scale", Axis.COLUMNS, Axis.ROWS),
        ("embed.weight", Axis.ROWS, Axis.COLUMNS),
        ("mtp.1.markov_head.head.weight", Axis.ROWS, None),
        ("layers.0.attn.wq_b.weight", Axis.ROWS, Axis.ROWS),
        ("norm.weight", None, None),
    ]:
        assert (old.axis(name), new.axis(name)) == (before, now)
    assert shard_weights(place.model, place.out, "--verify").exit_code == 0
    assert shard_weights(place.out, back := place.out.with_name("back"), "--merge").exit_code == 0
    assert digests(back) == digests(place.model)
    before = digests(place.out)
    result = shard_weights(*cut(place))
    assert result.exit_code == 2
    assert "was cut by another edition of this program" in result.stderr
    assert "It can be read, verified and merged as it is." in result.stderr
    manifest.rename(manifest.with_name("journal.json"))
    result = shard_weights(*cut(place))
    assert result.exit_code == 2
    assert "another edition of this program, which divides some tensors otherwise. Name another folder" in result.stderr
    assert set(digests(place.out).values()) == set(before.values())


def test_an_expert_folder_without_an_edition_goes_on(place):
    """Expert parallel places what it placed before."""
    assert shard_weights(place.model, place.out, "--ep", 2).exit_code == 0
    whole = digests(place.out)
    manifest = place.out / "sharding/manifest.json"
    edit_json(manifest, lambda content: content.pop("splits"))
    manifest.rename(manifest.with_name("journal.json"))
    assert shard_weights(place.model, place.out, "--ep", 2).exit_code == 0
    assert digests(place.out) == whole


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
