"""A good model and its shards, and copies to break."""

from __future__ import annotations

import shutil

import pytest

from tests.support.sharded import Place, shard_weights, write_divisible


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Place:
    root = tmp_path_factory.mktemp("good")
    place = Place(model=write_divisible(root / "model"), sharded=root / "sharded", out=root / "out")
    assert shard_weights(place.model, place.sharded, "--tp", 2).exit_code == 0
    return place


@pytest.fixture
def place(good, tmp_path) -> Place:
    """A copy to break; times of files are kept, as a resumed run compares them."""
    for name in ("model", "sharded"):
        shutil.copytree(getattr(good, name), tmp_path / name)
    return Place(model=tmp_path / "model", sharded=tmp_path / "sharded", out=tmp_path / "out")
