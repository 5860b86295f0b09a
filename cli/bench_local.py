"""Benchmarks of models in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specdecode.cli import loading
from specdecode.cli.bench_play import play
from specdecode.cli.bench_progress import bar
from specdecode.cli.bench_settings import BenchSettings
from specdecode.cli.jobs import Job, Work, prepare
from specdecode.cli.output import Output
from specdecode.cli.proposers import Proposer, proposer
from specdecode.cli.settings import Settings
from specdecode.core.bench.bandwidth import copy_bandwidth
from specdecode.core.bench.document import Category, Row
from specdecode.core.bench.local import LocalArm
from specdecode.core.bench.measure import count_runs, measure
from specdecode.core.bench.parts import Floor, StepTimes
from specdecode.core.bench.plan import Drafter, Mode, by_category, modes
from specdecode.core.bench.prompt_sets import RANDOM, Asked
from specdecode.core.bench.rows import Place, rows
from specdecode.core.bench.timed import TimedModel
from specdecode.core.engine.devices import open_places
from specdecode.core.errors import UsageError
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig

if TYPE_CHECKING:
    from specdecode.core.engine.step import StepModel

Models = Mapping[Path | None, TimedModel]
"""A checkpoint on a device, by the folder of the drafter that it was loaded with."""


class LocalBench:
    """Everything that the settings ask for, on each device.

    Attributes:
        rows: those of combinations that are done. modes: the same for every combination.
        categories, notes, bandwidths: for the document.
    """

    def __init__(self, settings: BenchSettings, asked: Sequence[Asked], output: Output) -> None:
        self._settings, self._asked, self._output = settings, asked, output
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.bandwidths: dict[str, float] = {}
        degree = settings.data_parallel_degree
        self._places = [(name, open_places(name, degree)) for name in settings.devices]
        # The byte floor is that of one device's memory.
        self._alone = {name: places.single for name, places in self._places}
        self._works = {t: self._work(t) for t in settings.temperatures}
        work = next(iter(self._works.values()))
        self._path, self._config = work.path, work.config
        self._proposers = {
            name: proposer(Settings(method=name, draft_model=settings.draft_model if name == "eagle" else None),
                           work.path, work.config)
            for name in settings.methods if name != "none"
        }  # fmt: skip
        drafters = [Drafter(method=n, most=p.most, confident=n != "ngram") for n, p in self._proposers.items()]
        if "eagle" in self._proposers and not all(self._alone.values()):
            raise UsageError("An EAGLE drafter runs on one device. Leave --method eagle out, or the several devices.")
        self.modes, left_out = modes(drafters, settings.widths)
        self.notes += left_out
        self.model = settings.model
        self.categories = self._categories(work)
        self._say_what_rows_set()

    def run(self) -> None:
        """Measure; `rows` grows by one combination at a time."""
        for name, places in self._places:
            self.bandwidths[name] = copy_bandwidth(places.first.device)
            models = self._load(name)
            for batch in self._settings.batches:
                for temperature, work in self._works.items():
                    self.rows += self._measure(models, work, name, batch, temperature)

    def _work(self, temperature: float) -> Work:
        settings = self._settings
        given = {
            "temperature": temperature,
            "max_tokens": settings.max_tokens,
            "ignore_eos": settings.ignore_eos,
            "seed": settings.seed,
        }
        prompts = [asked.prompt for asked in self._asked]
        return prepare(Settings(model=settings.model, given=given), prompts, lambda prompt: None)

    def _load(self, device: str) -> Models:
        jobs = [job for work in self._works.values() for job in work.jobs]
        context = self._config.text_config.max_position_embeddings
        folders = dict.fromkeys(self._folder(mode) for mode in self.modes)
        return {
            folder: TimedModel(
                loading.load_step_model(
                    self._path,
                    devices=device,
                    data_parallel_degree=self._settings.data_parallel_degree,
                    max_length=min(max(job.length for job in jobs), context),
                    max_batch=max(self._settings.batches),
                    progress=self._output,
                    drafter=folder,
                )
            )
            for folder in folders
        }

    def _folder(self, mode: Mode) -> Path | None:
        """The drafter that a mode's model is loaded with; plain decoding shares a model that is there anyway."""
        if mode.plain:
            known: list[Proposer] = list(self._proposers.values())
            return known[0].folder if len(known) == 1 else None
        return self._proposers[mode.method].folder

    def _measure(self, models: Models, work: Work, name: str, batch: int, temperature: float) -> list[Row]:
        categories = by_category(work.jobs, self._category_of(work))
        batch_here = min(batch, max(len(jobs) for jobs in categories.values()))
        times = {folder: self._times(folder, model.model, batch_here) for folder, model in models.items()}
        arms = [
            LocalArm(
                mode,
                models[self._folder(mode)],
                batch=batch,
                tokenizer=work.tokenizer,
                costs=times[self._folder(mode)].costs,
                play=play,
            )
            for mode in self.modes
        ]
        plan = {"batch": batch, "repeats": self._settings.repeats, "warm_up": self._settings.warm_up}
        total = count_runs(categories, arms=len(arms), **plan)
        title = f"{name}, batch {batch}, temperature {temperature:g}"
        with bar(title, total, self._output, quiet=self._settings.quiet) as shown:
            measured = measure(arms, categories, advance=shown.advance, **plan)
        self._say_small_batches(batch, categories)
        return rows(
            measured,
            self.modes,
            Place(
                devices=name,
                batch=batch,
                temperature=temperature,
                names={category: [job.name for job in jobs] for category, jobs in categories.items()},
                floors={mode: self._floor(mode, name) for mode in self.modes} if self._alone[name] else {},
                shares={m: s for m in self.modes if (s := times[self._folder(m)].shares) is not None},
            ),
        )

    def _times(self, folder: Path | None, model: StepModel, batch: int) -> StepTimes:
        """Step times of a model, as far as its modes need them."""
        mine = [mode for mode in self.modes if self._folder(mode) == folder]
        return StepTimes.of(
            model,
            batch,
            auto=any(mode.width == "auto" for mode in mine),
            drafts=any(not mode.plain and mode.method != "ngram" for mode in mine),
        )

    def _floor(self, mode: Mode, name: str) -> Floor:
        folder = self._folder(mode)
        drafter = None if folder is None else EagleConfig.from_folder(folder, self._config.text_config)
        return Floor(config=self._config, bandwidth=self.bandwidths[name], drafter=drafter)

    def _category_of(self, work: Work) -> Callable[[Job], str]:
        known = {id(asked.prompt): asked.category for asked in self._asked}
        return lambda job: known[id(job.prompt)]

    def _categories(self, work: Work) -> list[Category]:
        kept = {id(job.prompt) for job in work.jobs}
        found = []
        for name, members in by_category(self._asked, lambda asked: asked.category).items():
            count = sum(id(asked.prompt) in kept for asked in members)
            source = ", ".join(dict.fromkeys(asked.source for asked in members))
            is_random = any(asked.source == RANDOM for asked in members)
            out = len(members) - count
            if out:
                self.notes.append(f"{name}: {out} of {len(members)} prompts are left out, too long for the context")
            found.append(Category(name=name, source=source, prompts=count, left_out=out, random=is_random))
        return found

    def _say_what_rows_set(self) -> None:
        names = ("temperature", "max_tokens", "seed", "ignore_eos")
        own = [name for name in names if any(name in asked.prompt.options for asked in self._asked)]
        if own:
            self.notes.append(f"some prompts set {', '.join(own)} for themselves, which goes before the options")

    def _say_small_batches(self, batch: int, categories: Mapping[str, Sequence[Job]]) -> None:
        small = [f"{name} ({len(jobs)})" for name, jobs in categories.items() if len(jobs) < batch]
        if small:
            self.notes.append(f"batch {batch} is larger than these categories: {', '.join(small)}")
