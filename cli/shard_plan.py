"""A shard plan as text and as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from specdecode.core.checkpoint.sharding.layout import Strategy
from specdecode.core.checkpoint.sharding.memory import GB, USABLE, Caches, Fit, fits
from specdecode.core.checkpoint.sharding.plan import ENGRAM_TABLES, FAMILIES, Device, Plan

_WAYS = {Strategy.TENSOR: "tensor parallel", Strategy.EXPERT: "data parallel, experts dealt out"}


def plan_lines(model: str, plan: Plan, caches: Caches) -> Iterator[str]:
    """The tables and the sums below them."""
    ranks = plan.layout.ranks
    yield f"{model}: {plan.tensors:,} tensors, {plan.nbytes:,} bytes"
    yield f"{plan.layout}: {_WAYS[plan.layout.strategy]} on {_devices(ranks)}; bytes of weights"
    for devices in _alike(plan.devices):
        yield ""
        yield from _family_table(devices, plan)
    yield ""
    yield from _rank_table(plan)
    yield ""
    parts = f"{plan.split:,} split + {plan.replicated:,} replicated + {plan.host:,} Engram tables"
    yield f"adds up: {parts} = {plan.nbytes:,}"
    yield (
        f"host memory: {plan.host:,} bytes of Engram tables, stored once for all ranks"
        if plan.host
        else "host memory: no Engram tables"
    )
    yield from _memory(plan, caches)


def _family_table(devices: Sequence[Device], plan: Plan) -> Iterator[str]:
    device = devices[0]
    rows: list[Sequence[str]] = [
        (
            "family",
            "split",
            "replicated",
            "a device" if len(devices) == plan.layout.ranks else f"rank {_ranks(devices)}",
            "whole model",
        )
    ]
    for family in FAMILIES:
        if plan.whole[family] and family != ENGRAM_TABLES:
            share = device.families[family]
            rows.append((family, *map(_number, (share.split, share.replicated, share.total, plan.whole[family]))))
    total = device.sum
    rows.append(("sum", *map(_number, (total.split, total.replicated, total.total, plan.nbytes - plan.host))))
    return _aligned(rows)


def _rank_table(plan: Plan) -> Iterator[str]:
    rows: list[Sequence[str]] = [("rank", "split", "replicated", "bytes", "largest tensor")]
    for devices in _alike(plan.devices):
        device = devices[0]
        name, nbytes = device.largest
        figures = map(_number, (device.sum.split, device.sum.replicated, device.total))
        rows.append((_ranks(devices), *figures, f"{nbytes:,} {name}"))
    return _aligned(rows)


def _memory(plan: Plan, caches: Caches) -> Iterator[str]:
    needed = _needed(plan, caches)
    load = f"{caches.sequences} × {caches.context:,} tokens"
    yield f"caches of a device: {caches.allocated:,} bytes for {load}, as this program allocates them (float32 pages)"
    yield f"  in the released number formats: {caches.compact:,}"
    limit = f"{100 * USABLE:.0f} %"
    yield f"a device needs {needed:,} bytes of weights and caches, and fits where they are at most {limit}:"
    width = max(len(fit.name) for fit in fits(0))
    for fit in fits(needed):
        verdict = "fits" if fit.fits else "does not fit"
        yield f"  {fit.name:{width}} {fit.memory // GB:>4} GB  {verdict}, {100 * needed / fit.memory:.0f} %"


def plan_document(plan: Plan, caches: Caches) -> dict[str, object]:
    """Everything that the tables show; bytes throughout."""
    needed = _needed(plan, caches)
    return {
        "layout": {"strategy": plan.layout.strategy.value, "ranks": plan.layout.ranks},
        "tensors": plan.tensors,
        "bytes": plan.nbytes,
        "split": plan.split,
        "replicated": plan.replicated,
        "host": plan.host,
        "families": dict(plan.whole),
        "devices": [_device_document(device) for device in plan.devices],
        "caches": {
            "context": caches.context,
            "sequences": caches.sequences,
            "allocated": caches.allocated,
            "compact": caches.compact,
        },
        "needed": needed,
        "fits": [_fit_document(fit) for fit in fits(needed)],
    }


def _device_document(device: Device) -> dict[str, object]:
    return {
        "rank": device.rank,
        "bytes": device.total,
        "split": device.sum.split,
        "replicated": device.sum.replicated,
        "families": {
            name: {"split": share.split, "replicated": share.replicated} for name, share in device.families.items()
        },
        "largest": {"name": device.largest[0], "bytes": device.largest[1]},
    }


def _fit_document(fit: Fit) -> dict[str, object]:
    return {"device": fit.name, "memory": fit.memory, "fits": fit.fits}


def _needed(plan: Plan, caches: Caches) -> int:
    return max(device.total for device in plan.devices) + caches.allocated


def _alike(devices: Sequence[Device]) -> list[list[Device]]:
    """Neighbours with the same bytes in every family, which one line can stand for."""
    return [list(group) for _, group in groupby(devices, key=lambda device: tuple(device.families.values()))]


def _ranks(devices: Sequence[Device]) -> str:
    first, last = devices[0].rank, devices[-1].rank
    return f"{first}" if first == last else f"{first}–{last}"


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"


def _number(value: int) -> str:
    return f"{value:,}" if value else "–"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns of texts, all but the first flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            f"{row[0]:<{widths[0]}}",
            *(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        yield "  ".join(cells).rstrip()
