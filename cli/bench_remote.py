"""Benchmarks of a running server."""

from __future__ import annotations

from collections.abc import Sequence

from specdecode.cli.bench_progress import bar
from specdecode.cli.bench_settings import BenchSettings
from specdecode.cli.interrupts import raised_interrupts
from specdecode.cli.output import Output
from specdecode.core.bench.client import Client
from specdecode.core.bench.document import Category, Row
from specdecode.core.bench.measure import count_runs, measure
from specdecode.core.bench.plan import PLAIN, Mode, Width, by_category
from specdecode.core.bench.prompt_sets import RANDOM, Asked
from specdecode.core.bench.remote import RemoteArm, plain_is_possible
from specdecode.core.bench.rows import Place, rows


class RemoteBench:
    """Everything that the settings ask for, on one server; attributes as `LocalBench` has them.

    Raises:
        SpecdecodeError: the server cannot be reached.
    """

    def __init__(self, settings: BenchSettings, asked: Sequence[Asked], output: Output) -> None:
        assert settings.base_url is not None
        self._settings, self._asked, self._output = settings, asked, output
        self._client = Client(settings.base_url, api_key=settings.api_key)
        self.model = self._client.model()
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.bandwidths: dict[str, float] = {}
        why_not = plain_is_possible(self._client, self.model)
        widths: Sequence[Width] = [width for width in settings.widths if width != 0] or ["default"]
        self.modes = [Mode(method="server", width=width) for width in widths]
        if why_not is None:
            self.modes.insert(0, PLAIN)
        else:
            self.notes.append(f"no plain decoding and so no speed-up: {why_not}")
        self.categories = [
            Category(
                name=name,
                source=", ".join(dict.fromkeys(one.source for one in members)),
                prompts=len(members),
                left_out=0,
                random=any(one.source == RANDOM for one in members),
            )
            for name, members in by_category(asked, lambda one: one.category).items()
        ]

    def run(self) -> None:
        """Measure; `rows` grows by one combination at a time."""
        for batch in self._settings.batches:
            for temperature in self._settings.temperatures:
                self.rows += self._measure(batch, temperature)

    def _measure(self, batch: int, temperature: float) -> list[Row]:
        settings = self._settings
        categories = {
            name: [one.prompt for one in members]
            for name, members in by_category(self._asked, lambda one: one.category).items()
        }
        options: dict[str, object] = {
            "max_tokens": settings.max_tokens,
            "temperature": temperature,
            "seed": settings.seed,
            **({"ignore_eos": True} if settings.ignore_eos else {}),
        }
        arms = [RemoteArm(mode, self._client, model=self.model, options=options) for mode in self.modes]
        plan = {"batch": batch, "repeats": settings.repeats, "warm_up": settings.warm_up}
        title = f"{self._client.base}, {batch} at once, temperature {temperature:g}"
        total = count_runs(categories, arms=len(arms), **plan)
        with raised_interrupts(), bar(title, total, self._output, quiet=settings.quiet) as shown:
            measured = measure(arms, categories, advance=shown.advance, **plan)
        place = Place(
            devices="server",
            batch=batch,
            temperature=temperature,
            names={name: [prompt.origin for prompt in prompts] for name, prompts in categories.items()},
            floors={},
            shares={},
        )
        return rows(measured, self.modes, place)
