"""What counts as a regression, and what cannot be compared."""

from __future__ import annotations

import json

import pytest

from specdecode.core.bench.baseline import compare, different_settings, read
from specdecode.core.bench.document import Document, Row
from specdecode.core.errors import UsageError

HERE = {"cpu": "x", "cores": 2, "max": "26.7.0"}


def row(rate: float = 100.0, speed_up: float = 2.0, length: float = 3.0, **changed: object) -> Row:
    figure = {"mad": 0.0, "values": []}
    content = {
        "devices": "cpu", "batch": 1, "temperature": 0.0, "category": "code", "mode": "dspark 5", "method": "dspark",
        "draft_tokens": 5, "prompts": 1, "failed": 0, "tokens": 9, "time_to_first_token": {"p50": None, "p95": None},
        "time_per_output_token": {"p50": None, "p95": None}, "tokens_per_second": {**figure, "median": rate},
        "speed_up": {**figure, "median": speed_up}, "identical": None, "seconds": None, "byte_floor": None,
        "acceptance": {"rounds": 1, "proposed": 5, "accepted": 2, "length": length - 1, "length_with_bonus": length,
                       "rate": 0.4, "per_position": []},
    }  # fmt: skip
    return Row.model_validate(content | changed)


def document(*rows: Row, machine: dict[str, object] = HERE, **settings: object) -> Document:
    return Document.model_validate(
        {
            "format": "specdecode.bench/1", "specdecode": "0", "machine": machine, "model": "demo", "server": None,
            "settings": {name: {"value": value, "forced": True} for name, value in settings.items()},
            "categories": [], "rows": list(rows), "copy_bytes_per_second": {}, "cores_busy_with_others": 0,
            "seconds": 1, "interrupted": False, "notes": [], "definitions": {}, "baseline": None,
        }
    )  # fmt: skip


def verdicts(now: Row, old: Document, limit: float = 0.1, machine: dict[str, object] = HERE) -> list[tuple[str, str]]:
    found = compare([now], machine, old, file="old.json", limit=limit)
    return [(change.figure, change.verdict) for change in found.changes]


@pytest.mark.parametrize(
    ("rate", "verdict"), [(100.0, "same"), (91.0, "same"), (89.0, "regression"), (109.0, "same"), (111.0, "better")]
)
def test_speed(rate, verdict):
    assert verdicts(row(rate), document(row())) == [("tokens/s", verdict), ("acceptance length", "same")]


def test_acceptance_may_be_lost_while_speed_is_not():
    assert verdicts(row(length=2.5), document(row()))[1] == ("acceptance length", "regression")


def test_elsewhere_speed_ups_are_compared():
    other = document(row(rate=1000.0), machine={**HERE, "cpu": "y"})
    assert verdicts(row(), other) == [("speed-up", "same"), ("acceptance length", "same")]
    assert verdicts(row(speed_up=1.5), other)[0] == ("speed-up", "regression")
    newer = {**HERE, "max": "26.8.0"}  # that is what somebody may want to compare
    assert verdicts(row(rate=80.0), document(row()), machine=newer)[0] == ("tokens/s", "regression")


def test_rows_without_a_partner_are_counted():
    old = document(row(), row(category="prose"))
    found = compare([row(), row(batch=8)], HERE, old, file="f", limit=0.1)
    assert (found.only_here, found.only_there, found.regressions) == (1, 1, 0)


def test_nothing_in_common():
    with pytest.raises(UsageError, match="f has no row of this run"):
        compare([row(batch=8)], HERE, document(row()), file="f", limit=0.1)


def test_other_settings_are_named():
    old = document(row(), max_tokens=64, seed=0)
    assert different_settings({"max_tokens": 128, "seed": 0}, old) == ["max_tokens 64 -> 128"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is no JSON"),
        ("[]", "has format None"),
        ('{"format": "specdecode.bench/9"}', "has format 'specdecode.bench/9', not 'specdecode.bench/1'"),
        ('{"format": "specdecode.bench/1"}', "specdecode: Field required"),
    ],
)
def test_what_is_no_baseline(tmp_path, text, why):
    file = tmp_path / "old.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=why):
        read(file)
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path / "missing.json")


def test_a_saved_document_is_read_again(tmp_path):
    file = tmp_path / "old.json"
    file.write_text(document(row()).model_dump_json())
    assert read(file) == document(row())
    content = json.loads(file.read_text())
    content["rows"][0]["more"] = 1
    file.write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"rows\.0\.more"):
        read(file)
