"""What a user may call a model."""

from __future__ import annotations

import pytest

from specdecode.core.checkpoint import locate
from specdecode.core.errors import ModelError


@pytest.fixture
def presets(tmp_path, monkeypatch):
    root = tmp_path / "presets"
    for name in ("small", "unfinished"):
        (root / name).mkdir(parents=True)
    (root / "small" / "config.json").write_text("{}")
    (root / "notes.txt").write_text("")
    monkeypatch.setattr(locate, "files", lambda package: root)
    return root


def test_a_preset_by_name(presets):
    assert locate.locate_model("small") == presets / "small"


def test_a_folder_that_happens_to_be_called_so_changes_no_preset(presets, tmp_path, monkeypatch):
    (tmp_path / "here" / "small").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert locate.locate_model("small") == presets / "small"
    assert locate.locate_model("./small").resolve() == tmp_path / "here" / "small"
    assert locate.locate_model(str(presets)) == presets


def test_neither(presets):
    with pytest.raises(ModelError, match=r"unfinished is neither .* Presets: small\."):
        locate.locate_model("unfinished")
