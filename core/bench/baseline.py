"""An earlier document beside this one: what became slower, what became worse."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from specdecode.core.bench.document import FORMAT, Change, Document, Row, Verdict
from specdecode.core.errors import UsageError


def read(path: Path) -> Document:
    """A saved document.

    Raises:
        UsageError: it cannot be read, or is no document of this version.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--baseline {path} cannot be read: {error.strerror}. Make one with --save FILE.") from None
    except ValueError as error:
        raise UsageError(f"--baseline {path} is no JSON: {error}. Make one with --save FILE.") from None
    known = content.get("format") if isinstance(content, dict) else None
    if known != FORMAT:
        raise UsageError(f"--baseline {path} has format {known!r}, not {FORMAT!r}. Make it again with --save FILE.")
    try:
        return Document.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"--baseline {path}: {place}: {first['msg']}. Make it again with --save FILE.") from None


def compare(rows: Sequence[Row], machine: Mapping[str, object], old: Document, *, file: str, limit: float) -> Verdict:
    """Every row that both have. limit: the share that a figure may lose before it counts as a regression.

    Tokens per second mean something on the same machine only; elsewhere speed-ups stand in for them. Acceptance lengths
    do not depend on the machine.

    Raises:
        UsageError: no row is in both.
    """
    known = {row.key: row for row in old.rows}
    mine = {row.key for row in rows}
    same = _hardware(machine) == _hardware(old.machine)
    changes = [
        change
        for row in rows
        if row.key in known
        for change in _changes(row, known[row.key], same_machine=same, limit=limit)
    ]
    if not mine & known.keys():
        raise UsageError(
            f"--baseline {file} has no row of this run: devices, batch, temperature, category and mode must be the "
            "same. Run as it was run, or save a new one."
        )
    return Verdict(
        file=file,
        limit=limit,
        same_machine=same,
        changes=changes,
        only_here=len(mine - known.keys()),
        only_there=len(known.keys() - mine),
    )


def different_settings(settings: Mapping[str, object], old: Document) -> list[str]:
    """Settings that make figures differ whatever the code does, as `name was -> is`."""
    asked = ("model", "max_tokens", "ignore_eos", "seed", "prompts", "category", "per_category")
    before = {name: setting.value for name, setting in old.settings.items()}
    pairs = [(name, before.get(name), settings.get(name)) for name in asked]
    return [f"{name} {was} -> {now}" for name, was, now in pairs if was != now]


def _hardware(machine: Mapping[str, object]) -> list[object]:
    return [machine.get(name) for name in ("cpu", "cores", "gpu")]


def _changes(row: Row, old: Row, *, same_machine: bool, limit: float) -> Iterator[Change]:
    if same_machine:
        figures = {"tokens/s": (old.tokens_per_second.median, row.tokens_per_second.median)}
    elif old.speed_up is not None and row.speed_up is not None:
        figures = {"speed-up": (old.speed_up.median, row.speed_up.median)}
    else:
        figures = {}
    lengths = [r.acceptance.length_with_bonus if r.acceptance is not None else None for r in (old, row)]
    if lengths[0] is not None and lengths[1] is not None:
        figures["acceptance length"] = (lengths[0], lengths[1])
    for figure, (before, now) in figures.items():
        ratio = now / before if before else 1.0
        yield Change(
            devices=row.devices,
            batch=row.batch,
            temperature=row.temperature,
            category=row.category,
            mode=row.mode,
            figure=figure,
            before=before,
            now=now,
            ratio=ratio,
            verdict="regression" if ratio < 1 - limit else "better" if ratio > 1 + limit else "same",
        )
