"""`generate --show-config`: every resolved option and who set it."""

from __future__ import annotations

from collections.abc import Sequence

from specdecode.cli.jobs import Job, Work
from specdecode.cli.settings import Settings, Value
from specdecode.core.text.grammar import Grammar


def of_run(settings: Settings, work: Work) -> dict[str, Value]:
    """What holds for all prompts together."""
    text = work.config.text_config

    def flag(name: str) -> str:
        return f"--{name.replace('_', '-')}" if name in settings.named else "default"

    return {
        "model": Value(value=str(work.path), source=f"{flag('model')} ({settings.model})"),
        "devices": Value(value=settings.devices, source=flag("devices")),
        "data_parallel_degree": Value(value=settings.data_parallel_degree, source=flag("data_parallel_degree")),
        "batch_size": Value(value=settings.batch_size, source=flag("batch_size")),
        "prompts": Value(value=len(work.prompts), source=settings.source or "-p"),
        "confidence_threshold": Value(value=settings.confidence_threshold, source=flag("confidence_threshold")),
        "method": Value(value=settings.method, source=flag("method")),
        "acceptance": Value(value=settings.acceptance, source=flag("acceptance")),
        "context": Value(value=text.max_position_embeddings, source="checkpoint (max_position_embeddings)"),
        "eos_token": Value(value=work.config.eos_token_id, source="checkpoint (eos_token_id)"),
    }


def lines(run: dict[str, Value], jobs: Sequence[Job]) -> list[str]:
    """For people: options of the run, then those of prompts; those that all prompts share are said once."""
    shared = {n: v for n, v in jobs[0].values.items() if all(job.values.get(n) == v for job in jobs)}
    rows = [*run.items(), *shared.items()]
    for job in jobs:
        own = {n: v for n, v in job.values.items() if n not in shared}
        rows += [(f"{job.prompt.origin}: {name}", value) for name, value in own.items()]
    width = max(len(name) for name, _ in rows)
    shown = [_shown(value.value) for _, value in rows]
    column = max(map(len, shown))
    return [f"{name:{width}}  {text:{column}}  {value.source}" for (name, value), text in zip(rows, shown, strict=True)]


def document(run: dict[str, Value], jobs: Sequence[Job]) -> dict[str, object]:
    """For programs."""
    return {
        "run": {name: vars(value) for name, value in run.items()},
        "prompts": [
            {"origin": job.prompt.origin, **{name: _plain(value) for name, value in job.values.items()}} for job in jobs
        ],
    }


def _plain(value: Value) -> dict[str, object]:
    """A value as JSON has it."""
    inner = vars(value.value) if isinstance(value.value, Grammar) else value.value
    return {**vars(value), "value": inner}


def _shown(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return " ".join(f"{token}={bias:g}" for token, bias in value.items()) or "none"
    if isinstance(value, tuple):
        return " ".join(map(repr, value)) or "none"
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
