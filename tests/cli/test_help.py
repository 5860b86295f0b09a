"""Help pages: what they say, what they import and what they cost."""

from __future__ import annotations

import re
import resource
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from specdecode.cli.app import make_app

COMMAND = [sys.executable, "-m", "specdecode.cli"]
# A new option is a decision: add it here on purpose.
OPTIONS = {
    "--prompt", "--max-tokens", "--temperature", "--seed", "--draft-tokens", "--no-speculation", "--model",
    "--devices", "--data-parallel-degree", "--batch-size", "--json", "--quiet", "--debug", "--help",
    "--chat", "--system", "--thinking", "--effort", "--min-tokens", "--stop", "--stop-token-id", "--include-stop",
    "--ignore-eos", "--compare", "--trace-tokens", "--output", "--output-format", "--resume", "--as-completed",
    "--show-config", "--confidence-threshold", "--top-k", "--top-p", "--n",
    "--min-p", "--repetition-penalty", "--frequency-penalty", "--presence-penalty", "--logit-bias", "--logprobs",
    "--acceptance", "--method", "--draft-model",
    "--json-schema", "--json-object", "--regex", "--grammar", "--thinking-budget",
}  # fmt: skip


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)


def test_help_lists_the_commands():
    result = run("--help")
    assert result.returncode == 0
    assert "generate        Continue prompts." in result.stdout
    assert "bench           Measure speed and acceptance." in result.stdout
    assert "inspect-inputs  Show the step graph's inputs and outputs." in result.stdout
    assert result.stderr == ""


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nsys.argv = ['specdecode', '--help']\n"
        "from specdecode.cli.__main__ import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in result.stderr.split()}
    assert "typer" in loaded
    heavy = {"max", "numpy", "tokenizers", "safetensors", "llguidance", "rich", "pydantic", "yaml", "jinja2"}
    assert not loaded & heavy


def cpu_seconds(command: list[str]) -> float:
    """The least CPU time of several runs; a busy machine only ever adds to it."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(times)


def test_help_costs_at_most_150_ms():
    assert cpu_seconds([*COMMAND, "--help"]) - cpu_seconds([sys.executable, "-c", "pass"]) <= 0.150


def test_the_limits_of_options_are_said():
    text = " ".join(CliRunner().invoke(make_app(panels=False), ["generate", "--help"]).stdout.split())
    assert "Key of the draws, 0 to 2^64 - 1:" in text
    assert "from 0 for plain decoding to what the checkpoint's drafter makes (dspark_block_size)" in text
    assert "the CPU, one NVIDIA GPU, several, that many, or N logical shards on the CPU" in text
    assert "1: all devices work on every token. Their number: each has its own requests" in text


@pytest.mark.parametrize("panels", [False, True])
def test_the_options_of_generate(panels, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    result = CliRunner().invoke(make_app(panels=panels), ["generate", "--help"])
    assert result.exit_code == 0
    named = re.findall(r"^[│ ]+(?:-\w, )?(--[a-z-]+)", result.stdout, flags=re.MULTILINE)
    assert set(named) == OPTIONS
    for example in ("", " --draft-tokens auto", " --confidence-threshold 0.5"):
        assert f"specdecode generate examples/prompts.txt{example}\n" in re.sub(r" +\n", "\n", result.stdout)
    for panel in ("Conversation", "Sampling", "Structured output", "Stopping", "Speculation", "Running", "Output"):
        assert (f"─ {panel} ─" in result.stdout) is panels


def test_version():
    result = run("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("specdecode 0.1.0 (MAX 26.7")


BENCH_OPTIONS = {
    "--category", "--per-category", "--force-random", "--batch", "--draft-tokens", "--method", "--temperature",
    "--devices", "--data-parallel-degree", "--max-tokens", "--ignore-eos", "--seed", "--repeats", "--warm-up",
    "--base-url", "--api-key", "--model", "--draft-model", "--save", "--overwrite", "--baseline", "--limit", "--plot",
    "--json", "--quiet", "--debug", "--help",
}  # fmt: skip


def test_the_options_of_bench(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    result = CliRunner().invoke(make_app(panels=True), ["bench", "--help"])
    named = re.findall(r"^[│ ]+(?:-\w, )?(--[a-z-]+)", result.stdout, flags=re.MULTILINE)
    assert set(named) == BENCH_OPTIONS
    assert "specdecode bench --base-url http://127.0.0.1:8000 --batch 1,4\n" in re.sub(r" +\n", "\n", result.stdout)
    for panel in ("Prompts", "Sweeps", "Measuring", "Result"):
        assert f"─ {panel} ─" in result.stdout
