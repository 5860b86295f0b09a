"""`specdecode shard-weights` as a user sees it: transcripts, JSON, options, progress."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest
from typer.testing import CliRunner

from specdecode.cli.app import make_app
from specdecode.cli.output import Output
from specdecode.cli.shard_bar import Bar
from specdecode.core.checkpoint.locate import preset_folders
from specdecode.core.checkpoint.sharding.memory import DEVICE_MEMORY
from tests.support.released import released_config
from tests.support.sharded import digests, flip, shard_weights

DEMO = preset_folders()["demo"]
# A new option is a decision: add it here on purpose.
OPTIONS = {
    "--tp", "--ep", "--context", "--batch-size", "--dry-run", "--verify", "--merge", "--json", "--quiet", "--debug",
    "--help",
}  # fmt: skip
TRANSCRIPT = """\
demo: 1,221 tensors, 14,927,072 bytes
--tp 2: tensor parallel on 2 devices; bytes of weights

family                       split  replicated   a device  whole model
embedding and head         786,432           –    786,432    1,572,864
attention                  738,192     447,408  1,185,600    1,923,792
indexer and compressor           –     225,424    225,424      225,424
routed experts           1,880,064           –  1,880,064    3,760,128
shared experts             442,800           –    442,800      885,600
router, norms, streams           –   1,819,296  1,819,296    1,819,296
Engram projections               –     744,144    744,144      744,144
drafter, routed experts    470,016           –    470,016      940,032
drafter, the rest          295,248   1,202,848  1,498,096    1,793,344
sum                      4,612,752   4,439,120  9,051,872   13,664,624

rank      split  replicated      bytes        largest tensor
0–1   4,612,752   4,439,120  9,051,872  393,216 embed.weight

adds up: 9,225,504 split + 4,439,120 replicated + 1,262,448 Engram tables = 14,927,072
host memory: 1,262,448 bytes of Engram tables, stored once for all ranks
caches of a device: 10,171,392 bytes for 1 × 2,048 tokens, as this program allocates them (float32 pages)
  in the released number formats: 280,448
a device needs 19,223,264 bytes of weights and caches, and fits where they are at most 90 %:
  H100     80 GB  fits, 0 %
  H200    141 GB  fits, 0 %
  B200    192 GB  fits, 0 %
  MI300X  192 GB  fits, 0 %
  MI325X  256 GB  fits, 0 %
  MI355X  288 GB  fits, 0 %
"""


def test_the_plan_of_the_demo():
    result = shard_weights("demo", "--tp", 2, "--dry-run")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout == TRANSCRIPT


def test_nothing_is_written_by_a_dry_run(tmp_path):
    before = digests(DEMO)
    assert shard_weights(DEMO, tmp_path / "out", "--tp", 2, "--dry-run").exit_code == 0
    assert not (tmp_path / "out").exists()
    assert digests(DEMO) == before


def test_the_preset_plans_both_layouts_without_any_weights():
    result = shard_weights("deepseek-v4.1-flash", "--dry-run")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "deepseek-v4.1-flash: 96,085 tensors, 510,286,023,000 bytes"
    assert [line for line in lines if line.startswith("adds up: ")] == [
        "adds up: 305,223,047,168 split + 2,304,943,432 replicated + 202,758,032,400 Engram tables = 510,286,023,000",
        "adds up: 295,997,276,160 split + 11,530,714,440 replicated + 202,758,032,400 Engram tables = 510,286,023,000",
    ]
    assert "host memory: 202,758,032,400 bytes of Engram tables, stored once for all ranks" in lines
    verdicts = [line.split() for line in lines if re.match(r"  H[12]00 ", line)]
    assert [(line[0], "not" not in line) for line in verdicts] == [
        ("H100", False), ("H200", True), ("H100", True), ("H200", True),
    ]  # fmt: skip


def test_the_plan_as_json(tmp_path):
    path = tmp_path / "any.json"
    path.write_text(json.dumps(released_config()))
    result = shard_weights(path, "--ep", 8, "--dry-run", "--context", 4096, "--batch-size", 16, "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    document = json.loads(result.stdout)
    assert document.keys() == {"model", "plans"}
    (plan,) = document["plans"]
    assert plan["layout"] == {"strategy": "ep", "ranks": 8}
    assert (plan["tensors"], plan["bytes"]) == (96_085, 510_286_023_000)
    assert plan["split"] + plan["replicated"] + plan["host"] == plan["bytes"] == sum(plan["families"].values())
    for device in plan["devices"]:
        families = device["families"].values()
        assert sum(share["split"] for share in families) == device["split"]
        assert device["split"] + device["replicated"] == device["bytes"] == 48_530_373_960
    assert plan["caches"]["sequences"] == 2
    assert plan["needed"] == 48_530_373_960 + plan["caches"]["allocated"]
    assert [fit["device"] for fit in plan["fits"]] == list(DEVICE_MEMORY)


def test_write_verify_and_merge(tmp_path):
    out, back = tmp_path / "out", tmp_path / "back"
    result = shard_weights(DEMO, out, "--ep", 4, "--verify")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-2:] == [
        f"{out}: 12 weight files, {sum(path.stat().st_size for path in out.glob('*.safetensors')):,} bytes; "
        "SHA-256 of each in sharding/manifest.json",
        f"verified: every file has its SHA-256 and gives the bytes of {DEMO}",
    ]
    assert result.stderr.splitlines() == [
        "model-00001-of-00002.safetensors: cut, 1 of 2",
        "model-00002-of-00002.safetensors: cut, 2 of 2",
        "model-00001-of-00002.safetensors: same bytes",
        "model-00002-of-00002.safetensors: same bytes",
    ]
    result = shard_weights(out, "--verify", "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{out}: verified: every file has its SHA-256\n"
    result = shard_weights(DEMO, out, "--verify", "--json")
    assert json.loads(result.stdout) == {"model": str(DEMO), "verified": True}
    result = shard_weights(out, back, "--merge", "--json", "--quiet")
    assert json.loads(result.stdout)["written"] == {"files": 2, "nbytes": 15_047_352, "resumed": 0}
    assert digests(back) == digests(DEMO)


def test_sha256_of_the_manifest_is_what_everybody_computes(tmp_path):
    assert shard_weights(DEMO, tmp_path, "--tp", 2).exit_code == 0
    manifest = json.loads((tmp_path / "sharding/manifest.json").read_text())
    listed = {part["name"]: part["sha256"] for unit in manifest["units"] for part in (*unit["parts"], unit["header"])}
    listed |= {copy["name"]: copy["sha256"] for copy in manifest["copies"]}
    listed[manifest["index"]["name"]] = manifest["index"]["sha256"]
    found = digests(tmp_path)
    del found["sharding/manifest.json"], found["model.safetensors.index.json"]
    assert listed == found


def test_a_damaged_file_is_exit_code_5(tmp_path):
    assert shard_weights(DEMO, tmp_path, "--tp", 2).exit_code == 0
    flip(tmp_path / "model-rank-0-of-2-00001.safetensors")
    result = shard_weights(tmp_path, "--verify", "--quiet")
    assert result.exit_code == 5
    assert "model-rank-0-of-2-00001.safetensors has other bytes than were written" in result.stderr


@pytest.mark.parametrize("panels", [False, True])
def test_the_options(panels, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    result = CliRunner().invoke(make_app(panels=panels), ["shard-weights", "--help"])
    assert result.exit_code == 0
    assert set(re.findall(r"^[│ ]+(?:-\w, )?(--[a-z-]+)", result.stdout, flags=re.MULTILINE)) == OPTIONS
    for example in ("deepseek-v4.1-flash --dry-run", "demo-tp2 --verify", "demo-tp2 demo-again --merge"):
        assert f"specdecode shard-weights {example}\n" in re.sub(r" +\n", "\n", result.stdout)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "quiet", "bar"), [(Terminal, False, True), (Terminal, True, False)])
def test_a_terminal_gets_a_bar_that_goes_away(monkeypatch, stream, quiet, bar):
    monkeypatch.setattr(sys, "stderr", stream())
    with Output(quiet=quiet) as output, Bar(output) as shown:
        shown.begin(2_000_000_000, 500_000_000)
        shown.advance(500_000_000)
        shown.note("one shard: done")
    written = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert ("500M/2.00G" in written) is bar
    assert ("going on after 500,000,000 of 2,000,000,000 bytes" in written) is bar
    assert "one shard" not in written
    assert not written.splitlines()[-1:] or not written.splitlines()[-1].strip()
