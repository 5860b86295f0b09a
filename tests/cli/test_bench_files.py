"""`specdecode bench`: what it saves, compares with and draws."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from specdecode.core.bench.document import Document
from tests.cli.conftest import document


def test_save_and_baseline(bench, tmp_path):
    file = tmp_path / "before.json"
    assert bench("--save", str(file), "--category", "a").exit_code == 0
    assert list(tmp_path.glob(".*")) == []
    refused = bench("--save", str(file), "--category", "a")
    assert (refused.exit_code, "is there already" in refused.stderr) == (2, True)
    same = bench("--baseline", str(file), "--limit", "1", "--category", "a")
    assert same.exit_code == 0
    assert f"baseline {file}, limit 100%: 3 figures, 0 regressions" in same.stdout
    assert bench("--save", str(file), "--overwrite", "--category", "a").exit_code == 0


def test_a_regression_is_exit_code_5(bench, tmp_path):
    file = tmp_path / "before.json"
    bench("--save", str(file), "--category", "a")
    old = json.loads(file.read_text())
    for row in old["rows"]:
        row["tokens_per_second"]["median"] *= 1000
    file.write_text(json.dumps(old))
    result = bench("--baseline", str(file), "--category", "a", "--json", "--max-tokens", "13")
    assert result.exit_code == 5
    assert "regression: cpu, batch 1, temperature 0, a, dspark 3: tokens/s" in result.stdout
    assert "warning: the baseline was run otherwise: max_tokens 12 -> 13" in result.stderr
    verdict = document(result).baseline
    assert verdict is not None
    assert [(c.figure, c.verdict) for c in verdict.changes if c.figure == "tokens/s"] == [
        ("tokens/s", "regression")
    ] * 2


@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_a_plot(bench, tmp_path, suffix, begins):
    pytest.importorskip("matplotlib")
    file = tmp_path / f"speed.{suffix}"
    assert bench("--plot", str(file), "--batch", "1,2", "--category", "a").exit_code == 0
    assert file.read_bytes().startswith(begins)


def test_a_plot_without_matplotlib(bench, tmp_path, monkeypatch):
    monkeypatch.setattr("specdecode.core.bench.plot.find_spec", lambda name: None)
    result = bench("--plot", str(tmp_path / "a.svg"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--plot needs matplotlib, which is not installed. Get it with: pip install matplotlib" in result.stderr
    assert bench.command.loads == []


def test_the_schema_in_the_docs_names_every_field():
    text = (Path(__file__).resolve().parents[2] / "docs" / "bench.md").read_text(encoding="utf-8")
    table = text.partition("## The document")[2].partition("\n## ")[0]
    documented = set(re.findall(r"^\| `([\w.]+)` \|", table, flags=re.MULTILINE))
    assert documented == set(_fields(Document.model_json_schema()))


def _fields(schema, part=None, place=""):
    """Every field of a schema by its path, lists without numbers, free names as they are."""
    for name, field in (part or schema)["properties"].items():
        yield f"{place}{name}"
        for inner in _parts(schema, field):
            yield from _fields(schema, inner, f"{place}{name}.")


def _parts(schema, field):
    if "$ref" in field:
        inner = schema["$defs"][field["$ref"].rpartition("/")[2]]
        if "properties" in inner:
            yield inner
    for key in ("items", "additionalProperties"):
        if isinstance(field.get(key), dict):
            yield from _parts(schema, field[key])
    for option in field.get("anyOf", []):
        yield from _parts(schema, option)


@pytest.mark.parametrize("category", ["all", "y\nz"])
def test_a_category_that_the_table_could_not_show_is_refused(bench, tmp_path, category):
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "a", "category": category}) + "\n")
    result = bench(str(path))
    assert result.exit_code == 2
    assert f"has the category {category!r}" in result.stderr


def test_two_results_cannot_share_a_file(bench, tmp_path):
    path = tmp_path / "both.svg"
    result = bench("--save", str(path), "--plot", str(path))
    assert result.exit_code == 2
    assert "--save and --plot both name" in result.stderr
    assert not path.exists()
