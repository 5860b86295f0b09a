"""Standard streams that are closed, full, or of a poor encoding."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from specdecode.cli.output import Output

FULL = Path("/dev/full")


def shell(redirections: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-m", "specdecode.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "-p", "a"]])
def test_closed_standard_output(arguments):
    result = shell(">&-", *arguments)
    message = "error: standard output cannot be written: Bad file descriptor\n"
    assert (result.returncode, result.stderr) == (1, message)


def test_closed_standard_input():
    result = shell("<&-", "generate", "-")
    message = "error: Standard input is closed, so - has no prompts to read. Name a file or use -p TEXT.\n"
    assert (result.returncode, result.stderr) == (2, message)


def test_closed_standard_error_changes_nothing():
    arguments = ["generate", "-p", "a", "--max-tokens", "4"]
    result = shell("2>&-", *arguments)
    assert (result.returncode, result.stdout, result.stderr) == (0, shell("", *arguments).stdout, "")
    assert result.stdout


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "arguments", [["--help"], ["generate", "--help"], ["--version"], ["generate", "-p", "a", "--max-tokens", "1", "-q"]]
)
def test_a_full_disk(arguments):
    result = shell(">/dev/full", *arguments)
    message = "error: standard output cannot be written: No space left on device\n"
    assert (result.returncode, result.stderr) == (1, message)


def test_json_keeps_characters_that_the_encoding_lacks():
    content = {"text": "é 👍"}
    for encoding in ("ascii", "latin-1", "utf-8"):
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding=encoding)
        Output(stdout=stream, stderr=io.StringIO()).document(content)
        assert json.loads(raw.getvalue().decode(encoding)) == content
        assert ("👍" in raw.getvalue().decode(encoding)) is (encoding == "utf-8")
