"""`generate --n`: several answers to a prompt, each with a seed of its own, in every form of output."""

from __future__ import annotations

import json

import pytest

from specdecode.core.engine.request import sample_seed
from tests.cli.conftest import Script
from tests.cli.test_comparison import Wrong
from tests.cli.test_generate import Breaks, Interrupts
from tests.cli.test_results import lines
from tests.support.byte_tokenizer import byte_id


class Seeded(Script):
    """Writes a letter that tells the seed."""

    def sample(self, table, before, last, *, position: int, seed: int, temperature: float, **limits: float) -> int:
        return byte_id(ord("a") + seed % 26)


def letters(seed: int, sample: int, count: int = 4) -> str:
    return chr(ord("a") + sample_seed(seed, sample) % 26) * count


@pytest.fixture
def seeded(specdecode):
    specdecode.script = Seeded("")
    return specdecode


def test_samples_are_texts_of_their_own_in_order(seeded):
    result = seeded("generate", "-p", "x", "-p", "y", "--max-tokens", "4", "--n", "3", "--seed", "5")
    texts = [letters(5, sample) for sample in range(3)]
    assert len(set(texts)) == 3
    assert result.stdout == "\n\n".join(texts * 2) + "\n"
    said = [line for line in result.stderr.splitlines() if line.startswith("[")]
    assert said == [f"[{k + 1}/6] {'xy'[k // 3]} (sample {k % 3})" for k in range(6)]
    assert "2 prompts with 6 answers, 24 tokens" in result.stderr


def test_a_sample_is_found_again_by_its_seed(seeded):
    results = json.loads(seeded("generate", "-p", "x", "--max-tokens", "4", "--n", "3", "--json").stdout)["results"]
    assert [(r["sample"], r["seed"], r["text"]) for r in results] == [
        (k, sample_seed(0, k), letters(0, k)) for k in range(3)
    ]
    again = seeded("generate", "-p", "x", "--max-tokens", "4", "--seed", str(results[2]["seed"]), "-q")
    assert again.stdout == results[2]["text"] + "\n"


def test_a_row_says_how_many_it_wants(seeded, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "n": 2, "seed": 3}\n{"prompt": "b"}\n')
    results = json.loads(seeded("generate", str(rows), "--max-tokens", "4", "--n", "3", "--json").stdout)["results"]
    assert [(r["prompt"], r["sample"]) for r in results] == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)]
    assert [r["text"] for r in results[:2]] == [letters(3, 0), letters(3, 1)]
    shown = seeded("generate", str(rows), "--n", "3", "--show-config", "--json")
    assert [p["n"]["value"] for p in json.loads(shown.stdout)["prompts"]] == [2, 3]
    rows.write_text('{"prompt": "a", "n": 0}\n')
    refused = seeded("generate", str(rows))
    assert refused.stderr == f"error: {rows}:1: n is 0; it must be a whole number from 1 to 10000.\n"


def test_more_samples_are_added_to_a_file_and_fewer_are_an_error(seeded, tmp_path):
    out = tmp_path / "out.jsonl"
    arguments = ["generate", "-p", "x", "--max-tokens", "4", "--output", str(out), "-q"]
    assert seeded(*arguments, "--n", "2").exit_code == 0
    before = lines(out)
    assert seeded(*arguments, "--n", "3", "--resume").exit_code == 0
    assert (lines(out)[:2], [line["sample"] for line in lines(out)]) == (before, [0, 1, 2])
    assert len({line["id"] for line in lines(out)}) == 3
    fewer = seeded(*arguments, "--n", "2", "--resume")
    assert (fewer.exit_code, f"{out}:3 answers no prompt of this run" in fewer.stderr) == (2, True)


BATCH = {"custom_id": "r-1", "url": "/v1/completions", "body": {"prompt": "x", "n": 2, "max_tokens": 4}}


@pytest.fixture
def batch(tmp_path):
    file = tmp_path / "batch.jsonl"
    other = {**BATCH, "custom_id": "r-2", "body": {**BATCH["body"], "n": 1}}
    file.write_text(json.dumps(BATCH) + "\n" + json.dumps(other) + "\n")
    return file


def test_a_batch_has_one_line_a_request_and_one_choice_a_sample(seeded, batch, tmp_path):
    out = tmp_path / "out.jsonl"
    arguments = ["generate", str(batch), "--output", str(out)]
    assert seeded(*arguments, "-q").exit_code == 0
    first, second = lines(out)
    body = first["response"]["body"]
    assert [(c["index"], c["text"]) for c in body["choices"]] == [(k, letters(0, k)) for k in range(2)]
    assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 8, "total_tokens": 10}
    assert len(second["response"]["body"]["choices"]) == 1
    assert first["id"] != second["id"]
    seeded.loads.clear()
    assert "has 2 of 2 results already" in seeded(*arguments, "--resume").stderr
    assert seeded.loads == []
    batch.write_text(json.dumps({**BATCH, "body": {**BATCH["body"], "n": 3}}) + "\n")
    assert seeded(*arguments, "--resume").exit_code == 2  # one line cannot grow


def test_a_request_of_a_batch_fails_as_a_whole(seeded, batch, tmp_path):
    seeded.model_type = Breaks
    out = tmp_path / "out.jsonl"
    result = seeded("generate", str(batch), "--output", str(out), "--draft-tokens", "0", "-q")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {batch}:1, sample 1: The model's logits after ")
    assert (lines(out)[0]["response"], lines(out)[0]["error"]["code"]) == (None, "request_failed")


def test_a_request_that_is_interrupted_has_no_line(seeded, batch, tmp_path):
    seeded.model_type = Interrupts
    out = tmp_path / "out.jsonl"
    arguments = ["generate", str(batch), "--output", str(out), "--batch-size", "1", "--draft-tokens", "0"]
    result = seeded(*arguments)
    assert (result.exit_code, out.read_text()) == (130, "")
    assert "interrupted: 0 of 2 prompts were finished\n0 prompts with 1 answer, 4 tokens" in result.stderr


def test_samples_are_compared_one_by_one(seeded):
    same = seeded("generate", "-p", "x", "--n", "3", "--max-tokens", "12", "--compare", "-q")
    assert (same.exit_code, "identical: 3/3 samples\n" in same.stderr) == (0, True)
    seeded.model_type = Wrong
    result = seeded("generate", "-p", "x", "--n", "3", "--max-tokens", "24", "--compare", "-q")
    assert result.exit_code == 5
    assert "first difference: -p, sample 0, output token " in result.stderr
