"""Every refusal is one message with its exit code, never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from specdecode.cli import loading
from specdecode.cli.app import make_app
from specdecode.core.errors import DeviceError, ModelError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["generate"],
            "There is no prompt. Name a file with one prompt a line, - for standard input, or use -p TEXT.",
        ),
        (
            ["generate", "missing.txt"],
            "The prompt file missing.txt does not exist. For a prompt itself use -p TEXT.",
        ),
        (
            ["generate", "-p", "x", "--draft-tokens", "4"],
            "--draft-tokens 4 is not possible: the checkpoint's drafter makes up to 3 "
            "(dspark_block_size in config.json). "
            "Use 0 to 3.",
        ),
        (
            ["generate", "-p", "x", "--draft-tokens", "-1"],
            "--draft-tokens -1 is neither a whole number nor auto.",
        ),
        (
            ["generate", "-p", "x", "--draft-tokens", "é"],
            "--draft-tokens é is neither a whole number nor auto.",
        ),
        (
            ["generate", "-p", "x", "--draft-tokens", "auto", "--confidence-threshold", "0.5"],
            "--confidence-threshold and --draft-tokens auto contradict each other. Leave one out.",
        ),
        (
            ["generate", "-p", "x", "--no-speculation", "--confidence-threshold", "0.5"],
            "--confidence-threshold and plain decoding contradict each other. Leave one out.",
        ),
        (
            ["generate", "-p", "x", "--n", "10001"],
            "n is 10001; it must be a whole number from 1 to 10000.",
        ),
        (
            ["generate", "-p", "x", "--draft-tokens", "2", "--no-speculation"],
            "--no-speculation and --draft-tokens 2 contradict each other. Leave one out.",
        ),
        (
            ["generate", "-p", "x", "--devices", "tpu"],
            "--devices tpu is not supported. Use cpu, one GPU as gpu:0, several as gpu:0,1 or by their number as 2, or "
            "n logical shards of one as cpux4.",
        ),
        (
            ["generate", "-p", "see <|image|>"],
            "-p contains an image placeholder (token 264), and images are not supported. Remove it from the prompt.",
        ),
        (
            ["generate", "-p", "x" * 200],
            "-p: the prompt has 201 tokens, and the model's context of 128 (max_position_embeddings in "
            "config.json) has "
            "no room for any output. Shorten it.",
        ),
        (
            ["generate", "-p", "x", "--seed", str(2**64)],
            f"seed is {2**64}; it must be a whole number from 0 to 2^64-1.",
        ),
    ],
)
def test_usage(specdecode, arguments, message):
    result = specdecode(*arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"error: {message}\n")
    assert specdecode.loads == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "-p", "x", "--max-tokens", "-1"],
        ["generate", "-p", "x", "--batch-size", "0"],
        ["generate", "-p", "x", "--max-tokens", "many"],
        ["generate", "-p", "x", "--temperature", "nan"],
        ["generate", "-p", "x", "--seed", "-1"],
        ["generate", "-p", "x", "--top-k", "-1"],
        ["generate", "-p", "x", "--top-p", "1.5"],
        ["generate", "-p", "x", "--n", "0"],
        ["generate", "-p", "x", "--confidence-threshold", "é"],
        ["generate", "--no-such-option"],
        ["generate", "--seed"],
        ["no-such-command"],
    ],
)
def test_usage_that_the_parser_refuses(specdecode, arguments):
    result = specdecode(*arguments, model=False)
    assert (result.exit_code, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    assert line.startswith(
        f"error: {' '.join(arguments[3:])} is not possible: it must be " if arguments[3:] else "error: "
    )
    assert arguments[-1] in line
    assert line.endswith((f". See specdecode{' generate' * (len(arguments) > 1)} --help.", "requires an argument."))


def test_nothing_asked_for_is_help():
    result = CliRunner().invoke(make_app(panels=False), [])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "generate        Continue prompts." in result.stderr


def test_an_empty_model(specdecode):
    result = specdecode("generate", "-p", "x", "--model", "", model=False)
    message = "error: --model is empty. Name a checkpoint folder or a preset.\n"
    assert (result.exit_code, result.stderr) == (2, message)


def test_an_empty_file_of_prompts(specdecode, tmp_path):
    file = tmp_path / "prompts.txt"
    file.touch()
    result = specdecode("generate", str(file))
    assert (result.exit_code, result.stderr) == (2, f"error: {file} is empty. Write one prompt a line.\n")


def test_an_unknown_model(specdecode):
    result = specdecode("generate", "-p", "x", "--model", "no-such-model", model=False)
    assert result.exit_code == 3
    assert result.stderr.startswith("error: no-such-model is neither a checkpoint folder nor a preset. Presets: ")


def test_a_folder_that_is_no_checkpoint(specdecode, tmp_path):
    result = specdecode("generate", "-p", "x", "--model", str(tmp_path), model=False)
    assert (result.exit_code, result.stderr.count("\n")) == (3, 1)
    assert f"error: No config.json in {tmp_path}." in result.stderr


def test_an_unsupported_configuration(specdecode, tmp_path):
    config = json.loads((specdecode.checkpoint / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    result = specdecode("generate", "-p", "x", "--model", str(tmp_path), model=False)
    assert result.exit_code == 3
    assert result.stderr == f"error: {tmp_path}/config.json: model_type is 'llama'; supported: 'deepseek_v41'.\n"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ModelError("bad weights"), 3, "error: bad weights\n"),
        (DeviceError("no such GPU"), 4, "error: no such GPU\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (
            ZeroDivisionError("oops"),
            1,
            "internal error: ZeroDivisionError: oops\nThis is a defect of specdecode. Run the command "
            "again with "
            "--debug for a traceback to report.\n",
        ),
    ],
)
def test_exit_codes(specdecode, monkeypatch, error, code, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(loading, "load_step_model", fail)
    result = specdecode("generate", "-p", "x")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", message)


def test_debug_shows_the_traceback(specdecode):
    with pytest.raises(Exception, match="no-such-model is neither"):
        specdecode("generate", "-p", "x", "--model", "no-such-model", "--debug", model=False)


def test_a_closed_pipe_is_no_traceback():
    code = (
        "from specdecode.cli.errors import reported_errors\n"
        "with reported_errors(debug=False):\n"
        "    for _ in range(100000): print('text', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "text\n"
        process.stdout.close()
        error = process.stderr.read()
    assert "BrokenPipe" not in error
