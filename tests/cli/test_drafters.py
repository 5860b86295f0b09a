"""`--method` and `--draft-model`: every drafter on the embedded checkpoint, and drafters that cannot be used."""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

from specdecode.cli.app import make_app
from specdecode.core.checkpoint.locate import preset_folders

EAGLE = preset_folders()["demo"] / "eagle"


def run(*arguments: str):
    result = CliRunner().invoke(make_app(panels=False), [*arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.mark.parametrize(
    ("method", "line"),
    [
        ("eagle", "EAGLE speculation, up to 3 drafts per round (num_draft_tokens 3); a draft is accepted if it is"),
        ("ngram", "prompt lookup (n-grams of 4 to 2 tokens), up to 5 drafts per round; a draft is accepted if it is"),
        ("dspark", "DSpark speculation, up to 5 drafts per round (dspark_block_size 5); a draft is accepted if it is"),
    ],
)
@pytest.mark.parametrize("options", [["--temperature", "0"], ["--temperature", "1", "--repetition-penalty", "1.3"]])
def test_every_drafter_gives_the_text_of_plain_decoding(method, line, options):
    prompts = ["-p", "And God said, And God said,", "-p", "def main():"]
    result = run("generate", *prompts, "--max-tokens", "40", "--method", method, "--compare", *options)
    assert result.exit_code == 0, result.stderr
    assert line in result.stderr
    assert "identical: 2/2 prompts" in result.stderr


@pytest.mark.parametrize(
    "policy",
    [["--draft-tokens", "auto"], ["--draft-tokens", "2"], ["--confidence-threshold", "0.7"], ["--regex", "[a-z ]+"]],
)
def test_policies_hold_for_an_autoregressive_drafter(policy):
    result = run("generate", "-p", "And God said", "--max-tokens", "24", "--method", "eagle", "--compare", *policy)
    assert result.exit_code == 0, result.stderr
    assert "identical: 1/1 prompts" in result.stderr


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_ratio_tests_run_against_its_probabilities(rule):
    arguments = ["generate", "-p", "And God said", "--max-tokens", "24", "--method", "eagle", "--acceptance", rule]
    first, again = run(*arguments), run(*arguments)
    assert first.exit_code == 0, first.stderr
    assert first.stdout == again.stdout != ""


def test_one_elsewhere(tmp_path):
    folder = shutil.copytree(EAGLE, tmp_path / "drafter")
    result = run("generate", "-p", "x", "--max-tokens", "4", "--method", "eagle", "--draft-model", str(folder))
    assert result.exit_code == 0, result.stderr


def test_the_graphs_inputs():
    content = json.loads(run("inspect-inputs", "demo", "--method", "eagle", "-p", "And God said", "--json").stdout)
    found = {entry["name"]: entry for entry in content["inputs"]}
    count = found["tokens"]["shape"][0]
    assert found["draft_next_tokens"]["values"] == [-1]
    assert found["shifted_rows"]["shape"] == found["merged_rows"]["shape"] == [count]
    assert found["draft_slot_ids"]["values"] == [0]
    plain = json.loads(run("inspect-inputs", "demo", "--method", "ngram", "--json").stdout)
    assert "shifted_rows" not in {entry["name"] for entry in plain["inputs"]}
    assert content["outputs"][2]["shape"] == ["batch", 3]


def changed(folder, name, value):
    content = json.loads((folder / "config.json").read_text())
    content[name] = value
    (folder / "config.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("spoil", "code", "message"),
    [
        (
            lambda f: changed(f, "hidden_size", 256),
            3,
            "has hidden_size 256, but the target has 192: the drafter was made",
        ),
        (lambda f: changed(f, "num_draft_tokens", 9), 3, "has num_draft_tokens 9; 1 to 5 are possible"),
        (lambda f: changed(f, "model_type", "llama"), 3, "has model_type 'llama'; an EAGLE drafter's is"),
        (lambda f: changed(f, "sliding_window", "wide"), 3, "has sliding_window 'wide'; it is a whole number"),
        (lambda f: (f / "config.json").unlink(), 3, "config.json does not exist, so"),
        (lambda f: (f / "config.json").write_text("{"), 3, "config.json is not a JSON file"),
        (lambda f: (f / "model.safetensors").unlink(), 3, "holds no model.safetensors, so the drafter has no weights"),
        (lambda f: changed(f, "markov_rank", 16), 3, "but config.json asks for BF16 [2048, 16]"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\x08"), 3, "bytes, and its header needs"),
        (shutil.rmtree, 3, "is not a folder"),
    ],
)
def test_a_drafter_that_cannot_be_used(tmp_path, spoil, code, message):
    folder = shutil.copytree(EAGLE, tmp_path / "drafter")
    spoil(folder)
    result = run("generate", "-p", "x", "--method", "eagle", "--draft-model", str(folder))
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert result.stderr.count("error: ") == 1


def test_what_contradicts_itself(tmp_path):
    result = run("generate", "-p", "x", "--draft-model", str(EAGLE))
    assert result.exit_code == 2
    assert "--draft-model names a drafter for --method eagle" in result.stderr
    copy = shutil.copytree(EAGLE.parent, tmp_path / "copy", ignore=shutil.ignore_patterns("eagle"))
    result = run("generate", "-p", "x", "--model", str(copy), "--method", "eagle")
    assert result.exit_code == 3
    assert "comes without an EAGLE drafter (eagle/)" in result.stderr
    result = run("generate", "-p", "x", "--method", "eagle", "--draft-tokens", "4")
    assert result.exit_code == 2
    assert "the EAGLE drafter makes up to 3 (num_draft_tokens in config.json)" in result.stderr
