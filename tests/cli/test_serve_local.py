"""`specdecode serve-local`: its help page, and what is refused before a model is loaded."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from specdecode.cli.app import make_app

OPTIONS = {
    "--host", "--port", "--api-key", "--served-model-name", "--max-length", "--max-body", "--max-queue",
    "--drain-timeout", "--method", "--draft-model", "--draft-tokens", "--confidence-threshold", "--acceptance",
    "--no-speculation", "--devices", "--data-parallel-degree", "--batch-size", "--quiet", "--debug", "--help",
}  # fmt: skip


def run(*arguments: str):
    result = CliRunner().invoke(make_app(panels=False), ["serve-local", *arguments], env={"COLUMNS": "120"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_help_page():
    result = run("--help")
    assert result.exit_code == 0
    assert set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", result.stdout, flags=re.MULTILINE)) == OPTIONS
    for example in (
        "specdecode serve-local demo --port 8080 --batch-size 16",
        "curl http://127.0.0.1:8000/v1/completions",
    ):
        assert example in result.stdout
    assert "Serve a model to OpenAI clients." in CliRunner().invoke(make_app(panels=False), ["--help"]).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--max-length", "4096"], 2, "--max-length 4096 is more than the model's context, 2048"),
        (["--draft-tokens", "6"], 2, "--draft-tokens 6 is not possible: the checkpoint's drafter makes up to 5"),
        (["--draft-tokens", "auto", "--acceptance", "block"], 2, "contradict each other"),
        (["--method", "ngram", "--confidence-threshold", "0.5"], 2, "--method ngram has none"),
        (["--devices", "tpu"], 2, "--devices tpu is not supported"),
        (["--api-key", ""], 2, "--api-key (SPECDECODE_API_KEY) must be printable ASCII text, and not empty."),
        (["--host", "no.such.host.invalid"], 2, "--host no.such.host.invalid is no address of this machine"),
        (["--host", "192.0.2.1"], 1, "Port 8000 of 192.0.2.1 cannot be opened: Cannot assign requested address."),
        (["nowhere"], 3, "nowhere"),
        ([""], 2, "MODEL is empty."),
        (["--port", "70000"], 2, "70000"),
    ],
)
def test_what_is_refused(arguments, code, message):
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert result.stderr.count("error: ") == 1
