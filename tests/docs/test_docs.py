"""What the documents show is true: commands run, files exist, options and exit codes are those of the program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specdecode.cli.app import make_app
from specdecode.core.errors import ExitCode

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# What installs, tests, compiles or measures takes minutes: .ci/run runs these, as they stand here.
IN_CI = (
    "pip install",
    "python -m pytest",
    "python examples/build_graphs.py",
    "python tests/benchmarks/first.py",
    "python tests/benchmarks/sharding.py",
    ".ci/run",
)
# A server does not end; tests/max_arch runs it.
SERVERS = ("python -m specdecode.max_arch serve",)
# These need a GPU; here their options are read.
ON_A_GPU = ("python tests/benchmarks/released_layers.py", "python tests/kernels/run.py")


def blocks(language: str) -> list[tuple[str, str]]:
    """(place, text) of every fenced block in this language."""
    fence = re.compile(rf"^```{language}\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
    found = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for match in fence.finditer(text):
            found.append((f"{path.name}:{text.count(chr(10), 0, match.start()) + 2}", match[1]))
    return found


def slow(block: str) -> bool:
    return any(command in block for command in (*IN_CI, *SERVERS))


def on_a_gpu(block: str) -> list[str]:
    return [line.partition("#")[0].strip() for line in block.splitlines() if line.startswith(ON_A_GPU)]


HERE = [pytest.param(text, id=place) for place, text in blocks("sh") if not slow(text) and not on_a_gpu(text)]
THERE = [pytest.param(line, id=f"{place} {line}") for place, text in blocks("sh") for line in on_a_gpu(text)]


@pytest.mark.parametrize("block", HERE)
def test_a_shown_command_runs(block):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = ["bash", "-euo", "pipefail", "-c", block]
    result = subprocess.run(script, cwd=ROOT, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("command", THERE)
def test_a_command_for_a_gpu_has_the_options_shown(command):
    _, script, *words = command.split()
    asked = [sys.executable, script, "--help"]
    page = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for option in (word for word in words if word.startswith("--")):
        assert re.search(rf"{option}\b", page), f"{script} has no option {option}"


def test_slow_commands_are_run_by_ci():
    ci = (ROOT / ".ci" / "run").read_text()
    readme = [text for place, text in blocks("sh") if place.startswith("README")][:2]  # .ci/run takes these as they are
    for place, text in blocks("sh"):
        for line in text.splitlines():
            if slow(line) and not line.startswith((".ci/run", *SERVERS)):
                command = line.partition("#")[0].strip()
                assert any(command in known.splitlines() for known in readme) or command in ci, f"{place}: {command}"


def test_the_first_two_blocks_of_the_readme():
    first, second = [text for place, text in blocks("sh") if place.startswith("README")][:2]
    assert first.splitlines()[-2:] == ["pip install .", "specdecode generate examples/prompts.txt"]
    assert second.splitlines()[-2:] == ["pip install '.[test]'", "python -m pytest"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_files_exist(document):
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (document.parent / target).exists(), target
    tops = "|".join(("cli", "core", "max_arch", "presets", "tests", "examples", "docs", r"\.ci"))
    for name in re.findall(rf"`((?:{tops})/[\w./*-]*)`", text):
        assert list(ROOT.glob(name.rstrip("/"))), name


@pytest.mark.parametrize(
    ("command", "document"),
    [
        ("generate", "generate.md"),
        ("bench", "bench.md"),
        ("serve-local", "serve.md"),
        ("shard-weights", "shard-weights.md"),
    ],
)
def test_every_option_is_documented(command, document):
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| (?:`-\w`, )?`(--[a-z-]+)", text, flags=re.MULTILINE))
    page = CliRunner().invoke(make_app(panels=False), [command, "--help"], env={"COLUMNS": "120"}).stdout
    assert documented == set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", page, flags=re.MULTILINE))


def test_the_table_of_the_released_plan_is_what_the_command_says():
    plans = {}
    for layout in ("--tp", "--ep"):
        arguments = ["shard-weights", "deepseek-v4.1-flash", "--dry-run", "--json", layout, "8"]
        (plans[layout],) = json.loads(CliRunner().invoke(make_app(panels=False), arguments).stdout)["plans"]
    rows = [
        ("split over the devices", lambda plan: plan["split"]),
        ("replicated on each of them", lambda plan: plan["replicated"]),
        ("Engram tables, in the host's memory, once", lambda plan: plan["host"]),
        ("weights of a device", lambda plan: plan["devices"][0]["bytes"]),
        ("caches of a device, 8 sequences of 65,536 tokens over all", lambda plan: plan["caches"]["allocated"]),
    ]
    text = (ROOT / "docs" / "shard-weights.md").read_text(encoding="utf-8")
    for title, figure in rows:
        assert f"| {title} | {figure(plans['--tp']):,} | {figure(plans['--ep']):,} |" in text
    fitting = {layout: [fit["device"] for fit in plan["fits"] if fit["fits"]] for layout, plan in plans.items()}
    assert fitting["--tp"][:3] == ["H200", "B200", "MI300X"]
    assert fitting["--ep"][0] == "H100"


@pytest.mark.parametrize("command", ["generate", "bench"])
def test_every_exit_code_is_documented(command):
    text = (ROOT / "docs" / f"{command}.md").read_text(encoding="utf-8")
    table = text.partition("## Exit codes")[2].partition("\n## ")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, flags=re.MULTILINE)] == list(ExitCode)


def test_the_table_of_the_h200_is_its_raw_figures():
    run = json.loads((ROOT / "docs" / "benchmarks" / "released-h200.json").read_text())
    rows = []
    for case in run["cases"]:
        for step, times in case["steps"].items():
            ms, moved = times["median"], sum(case["traffic"][step].values())
            share = moved / (ms / 1e3) / run["copy_bytes_per_second"]
            host, kernels = case["wall"][step]["median"] - ms, case["launches"][step]
            sizes = f"| {case['batch']} | {case['context'] // 1024}k | {step}"
            rows.append(f"{sizes} | {ms:.2f} | {moved / 1e6:,.0f} | {100 * share:.0f} % | {host:.2f} | {kernels} |")
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \d+ \| \d+k \| .*$", text, flags=re.MULTILINE) == rows


def test_the_table_of_the_load_test_is_its_raw_figures():
    run = json.loads((ROOT / "docs" / "benchmarks" / "serve-load.json").read_text())
    table = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8").partition("## Under load")[2]
    did, rates, memory = run["manners"], run["acceptance_rates"], run["resident_mib"]
    before, after = run["idle_mib"]["before"], run["idle_mib"]["after"]
    for figures in (
        f"{run['seconds']:.0f}, {run['clients']}, {run['requests']}",
        f"{run['answers']}, {run['answers_equal_to_solo']}",
        f"{did['leave'] + did['leave whole']}, {did['oversize']}, {did['malformed']}, {did['unknown']}",
        f"{min(rates):.3f}, {max(rates):.3f}",
        f"{before['rest']:.1f}, {after['rest']:.1f}",
        f"{before['runtime']:.1f}, {after['runtime']:.1f}",
        f"{memory[0]:.0f}, {max(memory):.0f}",
        f"{max(run['descriptors'])}, {run['descriptors'][-1]}",
    ):
        assert f"| {figures} |" in table
    assert run["failures"] == []
