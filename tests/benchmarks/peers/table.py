"""The two models' figures side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from tests.benchmarks.peers.sizes import DIFFERENCES

Document = Mapping[str, Any]


def lines(document: Document) -> Iterator[str]:
    """The report on what was measured so far, from the content of the saved file."""
    parts = document["parts"]
    for part in parts.values():
        where = part["machine"]
        yield f"{part['title']}: GPU {where['device']}, MAX {where['max']}; host {where['cpu']}, {where['cores']} cores"
    yield ""
    yield f"{'graph':20}{'ops':>7}{'trace s':>10}{'compile s':>11}{'compile CPU-s':>15}{'load s':>9}"
    for part in parts.values():
        build = part["build"]
        yield (
            f"{part['title']:20}{build['ops']:7d}{build['trace']['wall']:10.1f}"
            f"{_seconds(build, 'compile', 'wall'):>11}{_seconds(build, 'compile', 'cpu'):>15}"
            f"{_seconds(build, 'load', 'wall'):>9}"
        )
    if any(part["steps"] for part in parts.values()):
        yield from _steps(parts)
    if not {"ours", "max"} <= set(parts):
        return
    yield ""
    yield from _ratios(parts["ours"], parts["max"])
    yield "equal: every size in the saved file; drafts a step, batch, context, ids, temperature 1. Not equal:"
    for difference in DIFFERENCES:
        yield textwrap.fill(difference, 118, initial_indent="- ", subsequent_indent="  ")


def _steps(parts: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"\n{'verify + draft step':20}{'batch':>6}{'context':>9}  {'mode':9}{'device ms':>17}{'results read ms':>19}"
        + (f"{'host call ms':>17}{'kernels':>9}")
    )
    for part in parts.values():
        for step in part["steps"]:
            yield (
                f"{part['title']:20}{step['batch']:6d}{step['context']:9d}  {step['mode']:9}"
                f"{_spread(step['device']):>17}{_spread(step['wall']):>19}{_spread(step['host']):>17}"
                f"{step['kernels']:9d}" + ("" if step["sound"] else "  results out of range")
            )


def _ratios(ours: Mapping[str, Any], peer: Mapping[str, Any]) -> Iterator[str]:
    """MAX's figures in ours."""
    mine, other = ours["build"], peer["build"]
    if mine["compile"] and other["compile"]:
        wall, cpu = (_whole(other, clock) / _whole(mine, clock) for clock in ("wall", "cpu"))
        yield f"trace and compile, MAX's in ours: {wall:.1f} by the clock, {cpu:.1f} in CPU time"
    for step in peer["steps"]:
        for own in ours["steps"]:
            if (own["batch"], own["context"]) == (step["batch"], step["context"]):
                device, wall = (step[kind]["median"] / own[kind]["median"] for kind in ("device", "wall"))
                yield (
                    f"batch {step['batch']}, context {step['context']}: MAX's eager step in our {own['mode']} ones: "
                    f"{device:.2f} on the device, {wall:.2f} with results read"
                )


def _whole(build: Mapping[str, Any], clock: str) -> float:
    return float(build["trace"][clock] + build["compile"][clock])


def _seconds(build: Mapping[str, Any], phase: str, clock: str) -> str:
    return f"{build[phase][clock]:.1f}" if build[phase] else "-"


def _spread(spread: Mapping[str, Any]) -> str:
    return f"{spread['median']:.3f} ± {spread['mad']:.3f}"
