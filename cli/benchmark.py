"""What `specdecode bench` does once its options are read."""

from __future__ import annotations

import io
import sys
import time
from importlib.metadata import version
from pathlib import Path

from specdecode.cli import bench_table
from specdecode.cli.bench_local import LocalBench
from specdecode.cli.bench_remote import RemoteBench
from specdecode.cli.bench_settings import BenchSettings
from specdecode.cli.output import Output
from specdecode.core.bench import baseline
from specdecode.core.bench.definitions import BENCH_DEFINITIONS, SERVER_DEFINITIONS
from specdecode.core.bench.document import FORMAT, Document, Verdict
from specdecode.core.bench.machine import Company, machine
from specdecode.core.bench.plot import check_plot, draw
from specdecode.core.bench.prompt_sets import read_sets
from specdecode.core.bench.saving import check_target, save
from specdecode.core.device_names import DeviceNames
from specdecode.core.errors import ExitCode, UsageError

BUSY = 0.1
"""Cores that others kept busy, from which on figures are not to be relied on."""


def run(settings: BenchSettings) -> ExitCode:
    """Measure, show and save; the code says whether outputs were the same and nothing became worse."""
    old = _check_files(settings)
    stdin = io.BytesIO() if sys.stdin is None else sys.stdin.buffer
    asked = read_sets(
        settings.sources,
        stdin,
        force_random=settings.force_random,
        categories=settings.categories,
        per_category=settings.per_category,
    )
    with Output(as_json=settings.as_json, quiet=settings.quiet) as output:
        bench = (LocalBench if settings.base_url is None else RemoteBench)(settings, asked, output)
        if not any(category.prompts for category in bench.categories):
            raise UsageError(f"No prompt is left to measure: {'; '.join(bench.notes)}.")
        for note in bench.notes:
            output.note(f"note: {note}")
        known, start, company, interrupted = len(bench.notes), time.perf_counter(), Company(), False
        try:
            bench.run()
        except KeyboardInterrupt:
            interrupted = True
        for note in bench.notes[known:]:
            output.note(f"note: {note}")
        verdict = None if old is None or interrupted else _verdict(settings, bench, old, output)
        document = _document(settings, bench, verdict, time.perf_counter() - start, company.cores(), interrupted)
        _show(settings, document, output)
        if interrupted:
            output.error(f"interrupted: {len(document.rows)} rows were done")
            return ExitCode.INTERRUPTED
        _write(settings, document, output)
        return _code(document, output)


def _check_files(settings: BenchSettings) -> Document | None:
    """Everything about files that can be wrong, before anything is measured; the baseline."""
    if settings.save is not None:
        check_target("--save", settings.save, overwrite=settings.overwrite)
    if settings.plot is not None:
        if settings.save is not None and settings.plot.resolve() == settings.save.resolve():
            raise UsageError(f"--save and --plot both name {settings.plot}. Give each a file of its own.")
        check_plot(settings.plot)
        check_target("--plot", settings.plot, overwrite=settings.overwrite)
    return None if settings.baseline is None else baseline.read(settings.baseline)


def _verdict(settings: BenchSettings, bench: LocalBench | RemoteBench, old: Document, output: Output) -> Verdict:
    different = baseline.different_settings({name: s.value for name, s in settings.shown.items()}, old)
    if different:
        output.error(f"warning: the baseline was run otherwise: {', '.join(different)}")
    return baseline.compare(bench.rows, _machine(settings), old, file=str(settings.baseline), limit=settings.limit)


def _machine(settings: BenchSettings) -> dict[str, str | int]:
    found = machine()
    gpus = sorted({number for name in settings.devices for number in DeviceNames.parse(name).gpus})
    if settings.base_url is None and gpus:
        from max.driver import Accelerator

        found["gpu"] = ", ".join(dict.fromkeys(str(Accelerator(number).model_name) for number in gpus))
    return found


def _document(
    settings: BenchSettings,
    bench: LocalBench | RemoteBench,
    verdict: Verdict | None,
    seconds: float,
    cores: float,
    interrupted: bool,
) -> Document:
    return Document(
        format=FORMAT,
        specdecode=version("specdecode"),
        machine=_machine(settings),
        model=bench.model,
        server=settings.base_url,
        settings=dict(settings.shown),
        categories=bench.categories,
        rows=bench.rows,
        copy_bytes_per_second=bench.bandwidths,
        cores_busy_with_others=cores,
        seconds=seconds,
        interrupted=interrupted,
        notes=bench.notes,
        definitions=BENCH_DEFINITIONS if settings.base_url is None else SERVER_DEFINITIONS,
        baseline=verdict,
    )


def _show(settings: BenchSettings, document: Document, output: Output) -> None:
    if not (settings.as_json and settings.quiet):
        lines = [*bench_table.header(document), *bench_table.tables(document.rows)]
        lines += [] if settings.quiet else bench_table.definitions(document)
        lines += [] if document.baseline is None else ["", *bench_table.verdict_lines(document.baseline)]
        output.text("".join(f"{line}\n" for line in lines))
    if settings.as_json:
        output.document(document.model_dump())
    busy = document.cores_busy_with_others
    advice = f" ({BUSY} or less: figures to rely on)" if busy > BUSY else ""
    if document.server is not None:
        advice = ", the server among them if it is on this machine"
    output.note(f"{document.seconds:.0f} s; other processes kept {busy:.2f} cores busy{advice}")


def _write(settings: BenchSettings, document: Document, output: Output) -> None:
    def text(path: Path) -> None:
        path.write_text(document.model_dump_json(indent=1) + "\n", encoding="utf-8")

    if settings.save is not None:
        save(settings.save, text)
        output.note(f"saved {settings.save}")
    if settings.plot is not None:
        save(settings.plot, lambda path: draw(path, document.rows, f"specdecode bench, {document.model}"))
        output.note(f"drew {settings.plot}")


def _code(document: Document, output: Output) -> ExitCode:
    """What the rows say, the worst first."""
    different = [row for row in document.rows if row.identical is not None and row.identical.first_difference]
    for row in different:
        assert row.identical is not None
        output.error(f"error: {row.category}, {row.mode} differs from plain decoding: {row.identical.first_difference}")
    if different or (document.baseline is not None and document.baseline.regressions):
        return ExitCode.MISMATCH
    failed = sum(row.failed for row in document.rows)
    if failed:
        output.error(f"error: {failed} prompts failed; they are left out of the figures")
    return ExitCode.FAILURE if failed else ExitCode.OK
