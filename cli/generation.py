"""What `specdecode generate` does once its options are read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from specdecode.cli import configuration, loading, report, results, trace
from specdecode.cli.comparison import compare, plain_pass, with_margin
from specdecode.cli.engines import make_engine, make_widths
from specdecode.cli.jobs import Job, Work, noun, prepare
from specdecode.cli.ordered import OrderedTexts
from specdecode.cli.output import Output
from specdecode.cli.passes import Outcome, Pass
from specdecode.cli.proposers import RULES
from specdecode.cli.settings import Settings
from specdecode.cli.writer import Writer
from specdecode.core.engine.costs import measure
from specdecode.core.engine.engine import Engine
from specdecode.core.engine.request import TokensEvent
from specdecode.core.engine.step import StepModel
from specdecode.core.engine.widths import WidthPolicy
from specdecode.core.errors import ExitCode

_PROMPT_WIDTH = 100


def run(settings: Settings) -> ExitCode:
    """Generate and report; the exit code says whether every prompt was completed."""
    with Output(as_json=settings.as_json, quiet=settings.quiet) as output:
        work = prepare(settings)
        form = results.choose_format(settings.output_format, work.jobs)
        if settings.show_config:
            return _show_config(settings, work, output)
        if settings.output is None:
            return _run(settings, work, work.jobs, output, None)
        path = Path("/dev/stdout" if settings.output == "-" else settings.output)
        writer = Writer(path, work.jobs, form=form, model=settings.model, resume=settings.resume)
        try:
            return _run(settings, work, writer.jobs, output, writer)
        finally:
            writer.close(sort=not settings.as_completed)


def _run(settings: Settings, work: Work, jobs: Sequence[Job], output: Output, writer: Writer | None) -> ExitCode:
    if writer is not None and writer.known:
        output.note(f"{writer.path} has {writer.known} of {writer.total} results already")
    if not jobs:
        return ExitCode.OK
    model = loading.load_step_model(
        work.path,
        devices=settings.devices,
        data_parallel_degree=settings.data_parallel_degree,
        max_length=min(max(job.length for job in jobs), work.config.text_config.max_position_embeddings),
        max_batch=min(settings.batch_size, len(jobs)),
        progress=output,
        drafter=work.proposer.folder if work.width else None,
    )
    output.note(work.proposer.describe(work.width, RULES[settings.acceptance]))
    return _Generation(settings, work, jobs, output, writer, model).run()


class _Generation:
    """One run of the command on a model."""

    def __init__(
        self,
        settings: Settings,
        work: Work,
        jobs: Sequence[Job],
        output: Output,
        writer: Writer | None,
        model: StepModel,
    ) -> None:
        self._settings, self._work, self._jobs = settings, work, jobs
        self._output, self._writer, self._model = output, writer, model
        self._shown = False
        self._over = 0
        self._start = time.perf_counter()
        self._texts = OrderedTexts(
            len(jobs),
            begin=self._begin,
            show=self._show,
            stream=output.streams,
            as_completed=settings.as_completed,
        )

    def run(self) -> ExitCode:
        """Run to the end, or until interrupted, and report."""
        if self._settings.trace_tokens and not self._output.as_json:
            for line in trace.legend(colour=self._output.colour):
                self._output.note(line)
        self._work.tokenizer.token_bytes(0)  # its table of bytes is made now and not while tokens are timed
        plain = plain_pass(self._jobs, self._engine) if self._settings.compare else None
        speculative = Pass(self._jobs, self._engine(self._widths()), self)
        start = time.perf_counter()
        if plain is None or not plain[0].interrupted:
            speculative.run()
        seconds = time.perf_counter() - start
        interrupted = speculative.interrupted or (plain is not None and plain[0].interrupted)
        self._texts.flush()
        verdict = None if plain is None else compare(self._jobs, plain[0], speculative, (plain[1], seconds))
        if verdict is not None and not interrupted:
            verdict = with_margin(verdict, self._jobs, self._engine())
        if self._output.as_json:
            content = self._document(speculative, interrupted)
            self._output.document(content if verdict is None else {**content, "comparison": verdict.document()})
        self._summarise(speculative, interrupted)
        for line in [] if verdict is None else verdict.lines(lambda token: self._work.tokenizer.decode([token])):
            self._output.error(line)
        if interrupted:
            return ExitCode.INTERRUPTED
        if verdict is not None and verdict.identical < verdict.compared:
            return ExitCode.MISMATCH
        return ExitCode.OK if all(outcome.done for outcome in speculative.outcomes) else ExitCode.FAILURE

    def tokens(self, number: int, event: TokensEvent) -> None:
        """A listener's duty: show what a prompt has gained."""
        traced = self._settings.trace_tokens
        self._texts.add(number, trace.traced(event, colour=self._output.colour) if traced else event.text)

    def turn(self, number: int) -> None:
        """A listener's duty: each answer ends with a line break."""
        self._texts.add(number, "\n")

    def ended(self, number: int, outcome: Outcome) -> None:
        """A listener's duty: keep a result, say a failure."""
        if self._writer is not None:
            self._writer.write(number, outcome)
            self._over += 1
            seconds = time.perf_counter() - self._start
            self._output.tick(f"{self._over} of {len(self._jobs)} {noun(self._jobs)}", seconds)
        if outcome.done:
            self._texts.end(number)
            return
        self._output.error(f"error: {self._jobs[number].name}: {outcome.error}")
        self._texts.drop(number)

    def _engine(self, widths: WidthPolicy | None = None) -> Engine:
        return make_engine(self._settings, self._model, self._work.tokenizer, widths)

    def _widths(self) -> WidthPolicy | None:
        batch = min(self._settings.batch_size, len(self._jobs))
        return make_widths(self._settings, self._model.block_size, lambda: measure(self._model, max_batch=batch))

    @property
    def _prints_text(self) -> bool:
        return not self._output.as_json and self._writer is None

    def _show(self, piece: str) -> None:
        if self._prints_text:
            self._output.text(piece)

    def _begin(self, number: int) -> None:
        """Say whose text follows, beside the text, so that standard output holds nothing but text."""
        if not self._prints_text or len(self._jobs) == 1:
            return
        if self._shown:
            self._output.text("\n")
        self._shown = True
        job = self._jobs[number]
        sample = f" (sample {job.sample})" if job.samples > 1 else ""
        self._output.note(f"[{number + 1}/{len(self._jobs)}] {_one_line(job.prompt.text)}{sample}")

    def _document(self, done: Pass, interrupted: bool) -> dict[str, object]:
        tail = {"interrupted": interrupted, "statistics": report.statistics(done.completions)}
        if self._writer is not None:
            return {"output": str(self._writer.path), **tail}
        made = [results.result(job, outcome) for job, outcome in zip(self._jobs, done.outcomes, strict=True)]
        return {"results": made, **tail}

    def _summarise(self, done: Pass, interrupted: bool) -> None:
        prompts = {id(job.prompt) for job in self._jobs}
        pairs = zip(self._jobs, done.outcomes, strict=True)
        finished = len(prompts - {id(job.prompt) for job, outcome in pairs if not outcome.done})
        if interrupted:
            self._output.error(f"interrupted: {finished} of {len(prompts)} prompts were finished")
        if done.completions:
            summary = report.summary(done.completions, prompts=finished, width=self._work.width)
            for line in [*summary, *report.definitions()]:
                self._output.note(line)


def _show_config(settings: Settings, work: Work, output: Output) -> ExitCode:
    run_values = configuration.of_run(settings, work)
    if output.as_json:
        output.document(configuration.document(run_values, work.prompts))
    else:
        output.text("".join(f"{line}\n" for line in configuration.lines(run_values, work.prompts)))
    return ExitCode.OK


def _one_line(prompt: str) -> str:
    """The beginning of a prompt, for people."""
    line = " ".join(prompt.split()) if "\n" in prompt else prompt
    return line if len(line) <= _PROMPT_WIDTH else f"{line[: _PROMPT_WIDTH - 1]}…"
