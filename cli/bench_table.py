"""A benchmark for people: its header, its tables, its definitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specdecode.core.bench.document import Document, Figure, Percentiles, Row, Seconds, Verdict

NOTHING = "–"
_TEXT = ("category", "mode", "at position 1, 2, …")


def header(document: Document) -> list[str]:
    """What was run and what was forced."""
    machine = document.machine
    where = f"server {document.server}, measured from here: " if document.server else ""
    gpu = f", {machine['gpu']}" if "gpu" in machine else ""
    forced = [f"{_flag(name)} {_shown(s.value)}" for name, s in document.settings.items() if s.forced]
    default = [
        f"{_flag(name)} {_shown(s.value)}"
        for name, s in document.settings.items()
        if not s.forced and s.value not in (None, False, [])
    ]
    sets = [f"{c.name} {c.prompts}{' of random characters' if c.random else ''}" for c in document.categories]
    return [
        f"{where}model {document.model}, specdecode {document.specdecode}, MAX {machine['max']}, {machine['cpu']}, "
        f"{machine['cores']} cores{gpu}",
        f"forced: {'; '.join(forced) or 'nothing'}",
        f"default: {'; '.join(default)}",
        f"prompts: {', '.join(sets)}",
    ]


def tables(rows: Sequence[Row]) -> list[str]:
    """Two tables for each place, batch size and temperature: speed, and where it comes from."""
    lines: list[str] = []
    for panel in dict.fromkeys((row.devices, row.batch, row.temperature) for row in rows):
        members = [row for row in rows if (row.devices, row.batch, row.temperature) == panel]
        lines += ["", f"{panel[0]}, batch {panel[1]}, temperature {panel[2]:g}"]
        lines += _aligned([_speed(row) for row in members])
        inside = [_inside(row) for row in members if row.acceptance is not None or row.seconds is not None]
        lines += ["", *_aligned(inside)] if inside else []
    return lines


def definitions(document: Document) -> list[str]:
    """One line for each term."""
    return ["", *(f"  {term} = {meaning}" for term, meaning in document.definitions.items())]


def verdict_lines(verdict: Verdict) -> list[str]:
    """What a baseline says: the sum, then every figure that moved beyond the limit."""
    what = "" if verdict.same_machine else ", another machine, so speed-ups stand for tokens/s"
    apart = f"; rows without a partner: {verdict.only_here} here, {verdict.only_there} there"
    count = verdict.regressions
    lines = [
        f"baseline {verdict.file}, limit {verdict.limit:.0%}{what}: {len(verdict.changes)} figures, "
        f"{count} regression{'s' * (count != 1)}" + (apart if verdict.only_here or verdict.only_there else "")
    ]
    for change in verdict.changes:
        if change.verdict != "same":
            place = f"{change.devices}, batch {change.batch}, temperature {change.temperature:g}, {change.category}"
            lines.append(
                f"  {change.verdict}: {place}, {change.mode}: {change.figure} {change.before:.4g} -> {change.now:.4g} "
                f"(ratio {change.ratio:.2f})"
            )
    return lines


def _speed(row: Row) -> dict[str, str]:
    same = row.identical
    return {
        "category": row.category,
        "mode": row.mode,
        "prompts": str(row.prompts) + (f" ({row.failed} failed)" if row.failed else ""),
        "tokens": str(row.tokens),
        "TTFT ms p50 / p95": _milliseconds(row.time_to_first_token, 1),
        "TPOT ms p50 / p95": _milliseconds(row.time_per_output_token, 2),
        "tokens/s": _spread(row.tokens_per_second, 1),
        "speed-up": NOTHING if row.speed_up is None else _spread(row.speed_up, 2),
        "same": NOTHING if same is None else f"{same.same}/{same.compared}",
    }


def _inside(row: Row) -> dict[str, str]:
    found, seconds, floor = row.acceptance, row.seconds, row.byte_floor
    cells = {
        "category": row.category,
        "mode": row.mode,
        "length with / without bonus": NOTHING,
        "rate": NOTHING,
        "at position 1, 2, …": NOTHING,
        "rounds": NOTHING,
    }
    if found is not None and found.length is not None and found.length_with_bonus is not None:
        cells["length with / without bonus"] = f"{found.length_with_bonus:.2f} / {found.length:.2f}"
        cells["rate"] = NOTHING if found.rate is None else f"{found.rate:.0%}"
        cells["at position 1, 2, …"] = " ".join(
            f".{min(round(100 * share), 99):02d}" if share < 1 else "1.0" for share in found.per_position
        )
        cells["rounds"] = str(found.rounds)
    if seconds is not None:
        cells["of copy"] = NOTHING if floor is None else f"{floor.share:.1%}"
        cells |= dict(zip(("verify ms", "draft ms", "host ms"), _each_step(seconds), strict=True))
    return cells


def _each_step(seconds: Seconds) -> list[str]:
    """Verification and drafting a decoding step, the host a step of any kind."""
    shares = [
        (seconds.verify, seconds.decode_steps),
        (seconds.draft, seconds.decode_steps),
        (seconds.host, seconds.steps),
    ]
    return [f"{1e3 * part / steps:.2f}" if steps else NOTHING for part, steps in shares]


def _milliseconds(values: Percentiles, digits: int) -> str:
    return " / ".join(NOTHING if v is None else f"{1e3 * v:.{digits}f}" for v in (values.p50, values.p95))


def _spread(figure: Figure, digits: int) -> str:
    # One value has no spread, and "± 0" would claim one.
    return f"{figure.median:.{digits}f}" + (f" ± {figure.mad:.{digits}f}" if len(figure.values) > 1 else "")


def _aligned(rows: Sequence[dict[str, str]]) -> list[str]:
    names = list(rows[0])
    lines = [dict(zip(names, names, strict=True)), *rows]
    widths = {name: max(len(line[name]) for line in lines) for name in names}
    return ["  ".join(_cells(line, widths)).rstrip() for line in lines]


def _cells(line: dict[str, str], widths: dict[str, int]) -> Iterable[str]:
    for name, width in widths.items():
        yield line[name].ljust(width) if name in _TEXT else line[name].rjust(width)


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
