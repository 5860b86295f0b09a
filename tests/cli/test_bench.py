"""`specdecode bench` on a scripted model, as transcripts and documents."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from specdecode.cli import bench_local
from specdecode.core.bench.document import Document
from specdecode.core.engine.step import StepResult
from tests.cli.conftest import document
from tests.support.toy import ToyModel


def timeless(text: str) -> list[str]:
    """Lines with measured figures as T and spaces as one."""
    return [re.sub(r"\d+\.\d+%?", "T", re.sub(r" +", " ", line)) for line in text.splitlines()]


def test_a_transcript(bench, categories):
    result = bench("--warm-up", "0")
    assert result.exit_code == 0, result.stderr
    lines = timeless(result.stdout)
    assert lines[1:3] == [
        f"forced: prompts {categories}; max-tokens 12; repeats 2; warm-up 0; model {bench.command.checkpoint}",
        "default: batch 1; method dspark; temperature 0; devices cpu",
    ]
    assert lines[3:22] == [
        "prompts: a 2, mine 1",
        "",
        "cpu, batch 1, temperature 0",
        "category mode prompts tokens TTFT ms p50 / p95 TPOT ms p50 / p95 tokens/s speed-up same",
        "a plain 2 24 T / T T / T T ± T – 2/2",
        "a dspark 3 2 24 T / T T / T T ± T T ± T 2/2",
        "mine plain 1 12 T / T T / T T ± T – 1/1",
        "mine dspark 3 1 12 T / T T / T T ± T T ± T 1/1",
        "all plain 3 36 T / T T / T T ± T – 3/3",
        "all dspark 3 3 36 T / T T / T T ± T T ± T 3/3",
        "",
        "category mode length with / without bonus rate at position 1, 2, … rounds of copy verify ms draft ms host ms",
        "a plain – – – – T T T T",
        "a dspark 3 T / T 83% .86 .83 .80 7 T T T T",
        "mine plain – – – – T T T T",
        "mine dspark 3 T / T 78% T .67 .67 3 T T T T",
        "all plain – – – – T T T T",
        "all dspark 3 T / T 81% .90 .78 .75 10 T T T T",
        "",
    ]
    assert any(line.startswith(" acceptance length = accepted / rounds (without bonus);") for line in lines)
    assert "measuring cpu, batch 1, temperature 0: 12 runs\n" in result.stderr


def test_acceptance_is_that_of_generate(bench, specdecode, categories):
    row = document(bench("--json", "-q", "--category", "a")).rows[1]
    asked = [str(categories), "--max-tokens", "12", "--temperature", "0", "--json", "-q"]
    generated = json.loads(specdecode("generate", *asked).stdout)["results"][:2]
    assert row.acceptance is not None
    assert row.acceptance.rounds == sum(len(answer["rounds"]) for answer in generated) == 7
    assert row.acceptance.length_with_bonus == pytest.approx(22 / 7)


def test_json_is_the_last_line_and_alone_with_quiet(bench):
    result = bench("--json")
    assert len(result.stdout.splitlines()) > 10
    found = document(result)
    assert (found.format, found.interrupted, found.server, found.baseline) == ("specdecode.bench/1", False, None, None)
    assert found.settings["repeats"].forced is True
    assert found.settings["batch"].forced is False
    [line] = bench("--json", "--quiet").stdout.splitlines()
    assert Document.model_validate_json(line).settings == found.settings


def test_the_seconds_add_up(bench):
    for row in document(bench("--json", "-q")).rows:
        wall = sum(row.tokens / rate for rate in row.tokens_per_second.values)
        parts = row.seconds
        assert parts is not None
        assert parts.prompt + parts.verify + parts.draft + parts.host == pytest.approx(wall)
        assert (parts.draft == 0) is (row.mode == "plain")
        assert row.byte_floor is not None
        assert row.byte_floor.bytes_per_step > 0


def test_sweeps_measure_every_combination(bench):
    found = document(
        bench("--batch", "1,2", "--draft-tokens", "0,1,auto", "--method", "dspark,ngram", "--temperature", "0,1",
              "--json", "-q", "--category", "a")
    )  # fmt: skip
    modes = ["plain", "dspark 1", "dspark auto", "ngram 1"]
    assert [(row.batch, row.temperature, row.mode) for row in found.rows] == [
        (batch, temperature, mode) for batch in (1, 2) for temperature in (0.0, 1.0) for mode in modes
    ]
    assert found.notes == ["ngram auto is left out: it has no confidences to choose by"]
    assert all(row.identical is not None and row.identical.same == row.identical.compared for row in found.rows)


def test_plain_steps_run_no_drafter_and_a_batch_starts_together(bench):
    bench("--batch", "2", "--method", "none", "--warm-up", "0", "--category", "a", "--repeats", "1")
    [model] = bench.command.models
    assert {(width, draft) for _, width, draft in model.steps} == {(0, False)}
    assert [requests for requests, _, _ in model.steps[:3]] == [2, 2, 2]


class Differs(ToyModel):
    """Breaks the promise: what it says depends on the width that is verified."""

    def step(self, rows, *, width, draft) -> StepResult:
        result = super().step(rows, width=width, draft=draft)
        wrong = result.next_tokens + (1 if width > 1 else 0)
        return StepResult(**{**vars(result), "next_tokens": wrong})


def test_other_tokens_than_plain_decodings_are_exit_code_5(bench):
    bench.command.model_type = Differs
    result = bench("--json", "--category", "a")
    assert result.exit_code == 5
    row = document(result).rows[1]
    assert row.identical is not None
    assert row.identical.same < row.identical.compared
    assert "error: a, dspark 3 differs from plain decoding: " in result.stderr
    assert ":1: turn 1, output 4: plain 35, here 36" in result.stderr
    assert bench("--draft-tokens", "1", "--category", "a").exit_code == 0  # narrower, it keeps the promise


class Breaks(ToyModel):
    """Logits are broken for requests in wide steps."""

    def step(self, rows, *, width, draft) -> StepResult:
        result = super().step(rows, width=width, draft=draft)
        return StepResult(**{**vars(result), "finite": np.full(len(rows), width < 2)})


def test_prompts_that_fail_are_counted(bench):
    bench.command.model_type = Breaks
    result = bench("--category", "a", "--json")
    assert result.exit_code == 1
    row = document(result).rows[1]
    assert (row.failed, row.tokens) == (2, 0)
    assert "error: 2 prompts failed; they are left out of the figures" in result.stderr
    assert "nan" not in result.stdout.lower().replace("–", "")


class Interrupts(ToyModel):
    """Ctrl-C within the second batch size."""

    def step(self, rows, *, width, draft) -> StepResult:
        if len(rows) == 2:
            raise KeyboardInterrupt
        return super().step(rows, width=width, draft=draft)


def test_ctrl_c_keeps_what_is_done_and_saves_nothing(bench, tmp_path):
    bench.command.model_type = Interrupts
    saved = tmp_path / "saved.json"
    result = bench("--batch", "1,2", "--category", "a", "--json", "--save", str(saved), "--method", "none")
    assert result.exit_code == 130
    assert [row.batch for row in document(result).rows] == [1]
    assert document(result).interrupted is True
    assert "interrupted: 1 rows were done" in result.stderr
    assert not saved.exists()


def test_random_prompts_are_labelled(specdecode, monkeypatch):
    monkeypatch.setattr(bench_local, "copy_bandwidth", lambda device: 1e9)
    refused = specdecode("bench", "random")
    assert (refused.exit_code, refused.stdout) == (2, "")
    options = ["--force-random", "--per-category", "1", "--max-tokens", "4", "--repeats", "1", "--json"]
    result = specdecode("bench", "random", *options)
    assert "prompts: random (forced) 1 of random characters" in result.stdout
    assert document(result).categories[0].random is True


def test_prompts_that_are_too_long_are_left_out_and_said(bench, categories):
    categories.write_text(categories.read_text() + json.dumps({"prompt": "x" * 200, "category": "a"}) + "\n")
    result = bench("--json")
    assert result.exit_code == 0
    assert "note: a: 1 of 3 prompts are left out, too long for the context" in result.stderr
    assert [(c.name, c.prompts, c.left_out) for c in document(result).categories] == [("a", 2, 1), ("mine", 1, 0)]
    categories.write_text(json.dumps({"prompt": "x" * 200}) + "\n")
    alone = bench()
    assert (alone.exit_code, alone.stdout) == (2, "")
    assert "No prompt is left to measure" in alone.stderr


def test_rows_that_set_options_are_said(bench, categories):
    categories.write_text('{"prompt": "one", "max_tokens": 5, "temperature": 1}\n')
    result = bench("--json")
    assert "note: some prompts set temperature, max_tokens for themselves" in result.stderr
    assert document(result).rows[0].tokens == 5


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--devices", "8"], 4, "--devices 8 needs 8 GPUs, and MAX finds no GPU: gpu:0, gpu:1, gpu:2, gpu:3 … are"),
        (["--devices", "gpu:0,1"], 4, "--devices gpu:0,1 needs 2 GPUs, and MAX finds no GPU: gpu:0, gpu:1 are missing"),
        (["--devices", "cpu,1"], 4, "--devices gpu:0: MAX finds no GPU here"),
        (["--devices", "cpu×65"], 2, "--devices cpux65: a model runs on 1 to 64 devices"),
        (["--devices", "tpu"], 2, "--devices tpu is not supported"),
        (["--draft-tokens", "9"], 2, "--draft-tokens 9 is not possible (dspark: it drafts up to 3 tokens a round)"),
        (["--method", "none", "--draft-tokens", "2"], 2, "--method none drafts nothing"),
        (["--method", "medusa"], 2, "--method medusa: medusa is not possible"),
        (["--method", "eagle"], 3, "comes without an EAGLE drafter"),
        (["--draft-model", "x"], 2, "--draft-model names a drafter for --method eagle"),
        (["--max-tokens", "1"], 2, "--max-tokens must be 2 or more"),
        (["--category", "nix"], 2, "--category nix: no prompt has it. There are a, mine"),
        (["--save", "/nowhere/x.json"], 2, "the folder /nowhere does not exist"),
        (["--plot", "x.pdf"], 2, "is neither a .png nor an .svg file"),
        (["--baseline", "/nowhere/x.json"], 2, "--baseline /nowhere/x.json cannot be read"),
    ],
)  # fmt: skip
def test_what_is_not_possible_is_said_before_a_model_is_loaded(bench, monkeypatch, options, code, message):
    monkeypatch.setattr("max.driver.accelerator_count", lambda: 0)
    result = bench(*options)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert bench.command.loads == []


def test_logical_shards_need_no_gpu_and_have_no_byte_floor(bench):
    """Found on a machine without a GPU: everything was measured, then its name was asked for."""
    result = bench("--devices", "cpu,cpux2", "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout.splitlines()[-1])
    assert "gpu" not in document["machine"]
    floors = {row["devices"]: row["byte_floor"] for row in document["rows"] if row["mode"] != "plain"}
    assert floors["cpux2"] is None
    assert [load["devices"] for load in bench.command.loads] == ["cpu", "cpux2"]


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ("cpux2,cpu×2", "names cpux2 twice"),
        ("gpu:0,1,gpu:0,1", "names gpu:0,1 twice"),
        ("gpu:0+1", "--devices gpu:0+1 is not supported"),
        ("cpu,,cpux2", "an empty item is not possible"),
        ("cpu,", "an empty item is not possible"),
    ],
)
def test_lists_of_devices(bench, devices, said):
    result = bench("--devices", devices)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_an_eagle_drafter_on_several_devices_is_refused_before_anything_is_measured(bench):
    result = bench("--devices", "cpu,cpux2", "--method", "eagle")
    assert result.exit_code in (2, 3)
    assert bench.command.loads == []
