"""The options of one benchmark, read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdecode.cli.settings import METHODS
from specdecode.core.bench.document import Setting
from specdecode.core.bench.plan import Width, parse_devices, parse_list, parse_sizes, parse_temperatures, parse_widths
from specdecode.core.errors import UsageError

_SERVER_LACKS = ("method", "devices", "data_parallel_degree", "model", "draft_model")
_NOT_SHOWN = ("save", "overwrite", "baseline", "limit", "plot", "as_json", "quiet", "force_random", "api_key")


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """What the command line says.

    Attributes:
        sources: sets and files of prompts; empty = the packaged set.
        widths: empty = the most that each drafter makes.
        shown: every option that figures depend on, and whether it was on the command line.
    """

    sources: tuple[str, ...]
    categories: tuple[str, ...]
    per_category: int | None
    force_random: bool
    batches: tuple[int, ...]
    widths: tuple[Width, ...]
    methods: tuple[str, ...]
    temperatures: tuple[float, ...]
    devices: tuple[str, ...]
    data_parallel_degree: int
    max_tokens: int
    ignore_eos: bool
    seed: int
    repeats: int
    warm_up: int
    base_url: str | None
    api_key: str | None
    model: str
    draft_model: str | None
    save: Path | None
    overwrite: bool
    baseline: Path | None
    limit: float
    plot: Path | None
    as_json: bool
    quiet: bool
    shown: Mapping[str, Setting]

    @classmethod
    def read(cls, given: Mapping[str, Any], *, named: frozenset[str]) -> BenchSettings:
        """Options by their parameters' names; `named` were on the command line.

        Raises:
            UsageError: a list or a combination that is not possible.
        """
        if given["base_url"] is not None:
            for name in _SERVER_LACKS:
                if name in named:
                    flag = f"--{name.replace('_', '-')}"
                    raise UsageError(f"--base-url and {flag} contradict each other: the server decides. Leave one out.")
        if given["max_tokens"] < 2:
            raise UsageError("--max-tokens must be 2 or more: a time per token is that between two of them.")
        methods = parse_list("--method", given["method"], _method, "dspark,ngram")
        widths = () if given["draft_tokens"] is None else parse_widths(given["draft_tokens"])
        if methods == ("none",) and any(widths):
            raise UsageError("--method none drafts nothing, so --draft-tokens contradicts it. Leave one out.")
        if given["draft_model"] is not None and "eagle" not in methods:
            raise UsageError("--draft-model names a drafter for --method eagle. Add that, or leave it out.")
        categories = given["category"]
        return cls(
            sources=tuple(given["prompts"] or ()),
            categories=() if categories is None else parse_list("--category", categories, str, "code,chat"),
            batches=parse_sizes("--batch", given["batch"]),
            widths=widths,
            methods=methods,
            temperatures=parse_temperatures(given["temperature"]),
            devices=parse_devices(given["devices"]),
            save=_path(given["save"]),
            baseline=_path(given["baseline"]),
            plot=_path(given["plot"]),
            shown={
                name: Setting(value=list(value) if isinstance(value, tuple) else value, forced=name in named)
                for name, value in given.items()
                if name not in _NOT_SHOWN
                and (name, value) != ("data_parallel_degree", 1)
                and (given["base_url"] is None or name not in _SERVER_LACKS)
            },
            **{name: given[name] for name in _AS_THEY_ARE},
        )


_AS_THEY_ARE = ("data_parallel_degree", "per_category", "force_random", "max_tokens", "ignore_eos", "seed", "repeats",
                "warm_up", "base_url", "api_key", "model", "draft_model", "overwrite", "limit", "as_json",
                "quiet")  # fmt: skip


def _method(text: str) -> str:
    if text not in METHODS:
        raise ValueError(text)
    return text


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
