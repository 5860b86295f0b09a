"""Every fault is one clear message and an exit code; the original is untouched, and the mended run finishes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.sharded import (
    FIRST,
    PART,
    SECOND,
    THIRD,
    Place,
    check,
    cut,
    digests,
    edit_json,
    flip,
    merged,
    shard_weights,
    truncate,
)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


def leave_a_gap(path: Path) -> None:
    """Move every tensor but the first by one byte."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    first = min((name for name in header if name != "__metadata__"), key=lambda n: header[n]["data_offsets"][0])
    at = header[first]["data_offsets"][1]
    for name, entry in header.items():
        if name not in ("__metadata__", first):
            entry["data_offsets"] = [offset + 1 for offset in entry["data_offsets"]]
    text = json.dumps(header).encode()
    body = data[8 + length :]
    path.write_bytes(len(text).to_bytes(8, "little") + text + body[:at] + b"\0" + body[at:])


def drop_from_index(name: str) -> Callable[[dict], None]:
    return lambda content: content["weight_map"].pop(name)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is broken, which command meets it, and what it says."""

    name: str
    command: Callable[[Place], tuple[object, ...]]
    code: int
    says: str
    breaks: Callable[[Place], object] = lambda place: None


FAULTS = [
    Fault(name="truncated shard", command=cut, code=3, breaks=lambda p: truncate(p.model / SECOND, 5),
          says="its header says (up to tensor"),
    Fault(name="shard cut in its header", command=cut, code=3, says="and its header needs",
          breaks=lambda p: truncate(p.model / SECOND, (p.model / SECOND).stat().st_size - 99)),
    Fault(name="missing shard", command=cut, code=3, breaks=lambda p: (p.model / SECOND).unlink(),
          says=f"{SECOND} does not exist"),
    Fault(name="missing configuration", command=cut, code=3, breaks=lambda p: (p.model / "config.json").unlink(),
          says="No config.json in"),
    Fault(name="damaged header", command=cut, code=3, breaks=lambda p: flip(p.model / FIRST, 8),
          says="is not a safetensors file"),
    Fault(name="bytes after the last tensor", command=cut, code=3, breaks=lambda p: append(p.model / FIRST),
          says="1 bytes too many"),
    Fault(name="bytes between tensors", command=cut, code=3, breaks=lambda p: leave_a_gap(p.model / FIRST),
          says="Tensors must lie end to end"),
    Fault(name="index without a tensor", command=cut, code=3, says="which",
          breaks=lambda p: edit_json(p.model / "model.safetensors.index.json", drop_from_index("head.weight"))),
    Fault(name="no weights", command=lambda p: ("deepseek-v4.1-flash", p.out, "--tp", 8), code=3,
          says="has no weights to cut"),
    Fault(name="no such model", command=lambda p: ("nowhere", p.out, "--tp", 2), code=3, says="nowhere is neither"),
    Fault(name="indivisible heads", command=lambda p: (p.model, p.out, "--tp", 3), code=2,
          says="num_attention_heads = 4 heads, and 4 is not a multiple of 3. Numbers that work for --tp: 1, 2, 4."),
    Fault(name="indivisible experts", command=lambda p: (p.model, p.out, "--ep", 8), code=2,
          says="n_routed_experts is 4, and 4 is not a multiple of 8. Numbers that work for --ep: 1, 2, 4."),
    Fault(name="both ways", command=lambda p: (p.model, p.out, "--ep", 2, "--tp", 2), code=2, says="Choose one."),
    Fault(name="no way", command=lambda p: (p.model, p.out), code=2, says="How many devices?"),
    Fault(name="no folder", command=lambda p: (p.model, "--tp", 2), code=2, says="Name OUT"),
    Fault(name="several layouts", command=lambda p: ("deepseek-v4.1-flash", p.out), code=2,
          says="Choose one: --tp 8 or --ep 8;"),
    Fault(name="zero devices", command=lambda p: (p.model, p.out, "--tp", 0), code=2, says="--tp"),
    Fault(name="a context too long", command=lambda p: (p.model, "--dry-run", "--tp", 2, "--context", 129), code=2,
          says="--context 129 is longer than the 128 positions"),
    Fault(name="a folder with other files", command=cut, code=2, says="holds files that shard-weights did not write",
          breaks=lambda p: (p.out.mkdir(), (p.out / "thesis.txt").write_text("mine"))),
    Fault(name="a folder with somebody's download", command=cut, code=2, says="did not write, such as film.partial",
          breaks=lambda p: (p.out.mkdir(), (p.out / "film.partial").write_text("mine"))),
    Fault(name="merging over somebody's download", command=merged, code=2, says="holds film.partial",
          breaks=lambda p: (p.out.mkdir(), (p.out / "film.partial").write_text("mine"))),
    Fault(name="a file in place of the folder", command=cut, code=2, says="is a file",
          breaks=lambda p: p.out.write_text("mine")),
    Fault(name="inside the original", command=lambda p: (p.model, p.model / "out", "--tp", 2), code=2,
          says="lie in one another"),
    Fault(name="around the original", command=lambda p: (p.model, p.model.parent, "--tp", 2), code=2,
          says="lie in one another"),
    Fault(name="another number of ranks", command=lambda p: (p.model, p.sharded, "--tp", 4), code=2,
          says="was begun with --tp 2, and this run asks for --tp 4"),
    Fault(name="another strategy", command=lambda p: (p.model, p.sharded, "--ep", 2), code=2,
          says="was begun with --tp 2, and this run asks for --ep 2"),
    Fault(name="another original", command=lambda p: (p.model, p.sharded, "--tp", 2), code=2,
          says=f"was begun from other files: {THIRD} has changed since", breaks=lambda p: os.utime(p.model / THIRD)),
    Fault(name="a finished folder that lacks a file", command=lambda p: (p.model, p.sharded, "--tp", 2), code=2,
          says="is finished, but lacks files", breaks=lambda p: (p.sharded / PART).unlink()),
    Fault(name="sharded twice", command=lambda p: (p.sharded, p.out, "--tp", 2), code=2,
          says="is sharded for 2 ranks already"),
    Fault(name="flipped byte in a slice", command=check, code=5, says=f"{PART} has other bytes than were written",
          breaks=lambda p: flip(p.sharded / PART)),
    Fault(name="flipped byte in a copied file", command=check, code=5, says="config.json has other bytes",
          breaks=lambda p: flip(p.sharded / "config.json")),
    Fault(name="flipped byte in a kept header", command=check, code=5, says=".header has other bytes",
          breaks=lambda p: flip(p.sharded / f"sharding/{FIRST}.header")),
    Fault(name="flipped byte in the kept index", command=check, code=5, says="original.index.json has other bytes",
          breaks=lambda p: flip(p.sharded / "sharding/original.index.json")),
    Fault(name="flipped byte, merging", command=merged, code=5, says=f"{PART} has other bytes",
          breaks=lambda p: flip(p.sharded / PART)),
    Fault(name="truncated slices", command=merged, code=3, says="bytes, and was written with",
          breaks=lambda p: truncate(p.sharded / PART)),
    Fault(name="missing slices", command=check, code=3, says=f"{PART} is missing",
          breaks=lambda p: (p.sharded / PART).unlink()),
    Fault(name="no manifest", command=merged, code=3, says="is no finished result of shard-weights",
          breaks=lambda p: (p.sharded / "sharding/manifest.json").unlink()),
    Fault(name="not sharded", command=lambda p: (p.model, "--verify"), code=3, says="is no finished result"),
    Fault(name="damaged manifest", command=check, code=3, says="is not a manifest of shard-weights",
          breaks=lambda p: truncate(p.sharded / "sharding/manifest.json", 9)),
    Fault(name="a manifest from the future", command=check, code=3, says="version 9",
          breaks=lambda p: edit_json(p.sharded / "sharding/manifest.json", lambda c: c.update(version=9))),
    Fault(name="an index without a slice", command=check, code=3, says="which",
          breaks=lambda p: edit_json(p.sharded / "model.safetensors.index.json",
                                     drop_from_index("head.weight.rows-1-of-2"))),
    Fault(name="merging over other files", command=merged, code=2, says="holds thesis.txt",
          breaks=lambda p: (p.out.mkdir(), (p.out / "thesis.txt").write_text("mine"))),
    Fault(name="merging with a plan", command=lambda p: (*merged(p), "--tp", 2), code=2, says="--tp has no meaning"),
    Fault(name="merging nowhere", command=lambda p: (p.sharded, "--merge"), code=2, says="--merge needs OUT"),
    Fault(name="merging and verifying", command=lambda p: (*merged(p), "--verify"), code=2, says="Leave --verify out"),
    Fault(name="verifying with a context", command=lambda p: (*check(p), "--context", 5), code=2,
          says="--context has no meaning"),
    Fault(name="the original has changed", command=lambda p: (p.model, p.sharded, "--verify"), code=5,
          says="differ after byte", breaks=lambda p: flip(p.model / SECOND)),
    Fault(name="the original has become longer", command=lambda p: (p.model, p.sharded, "--verify"), code=5,
          says="differ after byte", breaks=lambda p: append(p.model / SECOND)),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_one_message(place, good, fault):
    fault.breaks(place)
    model, sharded = digests(place.model), digests(place.sharded)
    out = digests(place.out) if place.out.is_dir() else None
    result = shard_weights(*fault.command(place), "--quiet")
    assert result.exit_code == fault.code, result.stderr
    assert fault.says in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert digests(place.model) == model  # broken or not, it is as it was
    assert digests(place.sharded) == sharded
    if fault.command is not merged or fault.code != 5:
        assert (digests(place.out) if place.out.is_dir() else None) == out


def test_no_fault_is_listed_twice():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 20
