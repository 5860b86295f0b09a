"""What `specdecode shard-weights` does once its options are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from specdecode.cli.interrupts import raised_interrupts
from specdecode.cli.output import Output
from specdecode.cli.shard_bar import Bar
from specdecode.cli.shard_plan import plan_document, plan_lines
from specdecode.core.checkpoint.locate import locate_model
from specdecode.core.checkpoint.sharding.inputs import PlanInput, plan_input
from specdecode.core.checkpoint.sharding.layout import Layout, Strategy
from specdecode.core.checkpoint.sharding.manifest import MANIFEST
from specdecode.core.checkpoint.sharding.memory import plan_caches
from specdecode.core.checkpoint.sharding.merge import merge
from specdecode.core.checkpoint.sharding.plan import Plan, make_plan
from specdecode.core.checkpoint.sharding.preset import ShardingPreset, sharding_preset
from specdecode.core.checkpoint.sharding.rejoin import open_sharded
from specdecode.core.checkpoint.sharding.source import Source
from specdecode.core.checkpoint.sharding.verify import verify
from specdecode.core.checkpoint.sharding.writer import Written, shard
from specdecode.core.errors import CheckpointError, UsageError

Document = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options as they were given."""

    model: str
    out: Path | None
    tp: int | None
    ep: int | None
    context: int | None
    batch_size: int | None
    dry_run: bool
    verify: bool
    merge: bool


def run(request: Request, *, as_json: bool, quiet: bool) -> None:
    """Plan, write, check or merge.

    Raises:
        UsageError: the options contradict each other, or the folder is not for this run.
        ModelError: the checkpoint cannot be used. StorageError: the folder cannot be written.
        MismatchError: a check found other bytes.
    """
    planning = _planning_options(request)
    with Output(as_json=as_json, quiet=quiet) as output, raised_interrupts(), Bar(output) as bar:
        if request.merge:
            document = _merge(request, planning, output, bar)
        elif request.verify and not (request.tp or request.ep):
            document = _verify(request, planning, output, bar)
        else:
            document = _shard(request, output, bar)
        bar.close()
        if as_json:
            output.document(document)


def _planning_options(request: Request) -> list[str]:
    given = {
        "--tp": request.tp,
        "--ep": request.ep,
        "--context": request.context,
        "--batch-size": request.batch_size,
        "--dry-run": request.dry_run or None,
    }
    return [name for name, value in given.items() if value is not None]


def _shard(request: Request, output: Output, bar: Bar) -> Document:
    preset = sharding_preset(request.model)
    layouts = _layouts(request, preset)
    if not request.dry_run:
        _check_writing(request, layouts)
    found = plan_input(request.model)
    if found.source is None and not request.dry_run:
        raise CheckpointError(f"{found.path} has no weights to cut, only a configuration. See the plan with --dry-run.")
    load = _load(request, preset, found)
    document: Document = {"model": request.model, "plans": (planned := [])}
    for number, layout in enumerate(layouts):
        plan = make_plan(found.config, found.tensors, layout)
        caches = plan_caches(found.config.text_config, layout, **load)
        planned.append(plan_document(plan, caches))
        if not output.as_json:
            output.text("\n" * bool(number) + "\n".join(plan_lines(request.model, plan, caches)) + "\n")
    if found.source and request.out and not request.dry_run:
        document |= _write(request, found.source, request.out, plan, output, bar)
    return document


def _write(request: Request, source: Source, out: Path, plan: Plan, output: Output, bar: Bar) -> Document:
    if source.stray:
        output.note(f"left out: {', '.join(source.stray)}, which the index of {source.path} does not name")
    written = shard(source, plan.placements, plan.layout, out, bar)
    _say(output, f"{out}: {_count(written)}; SHA-256 of each in {MANIFEST}", bar)
    if not request.verify:
        return {"written": asdict(written)}
    verify(open_sharded(out), source.path, bar)
    _say(output, _verified(source.path), bar)
    return {"written": asdict(written), "verified": True}


def _verify(request: Request, planning: list[str], output: Output, bar: Bar) -> Document:
    if planning:
        raise UsageError(
            f"--verify without --tp or --ep checks a finished folder, and {planning[0]} has no meaning there. "
            "Leave it out."
        )
    if request.out is None:
        sharded, original = open_sharded(locate_model(request.model)), None
    else:
        sharded, original = open_sharded(request.out), locate_model(request.model)
    verify(sharded, original, bar)
    _say(output, f"{sharded.path}: {_verified(original)}", bar)
    return {"model": request.model, "verified": True}


def _merge(request: Request, planning: list[str], output: Output, bar: Bar) -> Document:
    if planning:
        raise UsageError(f"--merge restores what was cut, and {planning[0]} has no meaning there. Leave it out.")
    if request.verify:
        raise UsageError("--merge checks the SHA-256 of all that it reads. Leave --verify out.")
    if request.out is None:
        raise UsageError("--merge needs OUT, the folder for the original files.")
    written = merge(open_sharded(locate_model(request.model)), request.out, bar)
    _say(output, f"{request.out}: {_count(written)}, the original ones", bar)
    return {"model": request.model, "written": asdict(written)}


def _layouts(request: Request, preset: ShardingPreset | None) -> list[Layout]:
    if request.tp and request.ep:
        raise UsageError("--tp and --ep are two ways of spreading a model. Choose one.")
    if request.tp:
        return [Layout(strategy=Strategy.TENSOR, ranks=request.tp)]
    if request.ep:
        return [Layout(strategy=Strategy.EXPERT, ranks=request.ep)]
    if preset is None:
        raise UsageError(
            "How many devices? Give --tp N or --ep N, or --merge or --verify for a folder that is sharded."
        )
    return list(preset.layouts)


def _load(request: Request, preset: ShardingPreset | None, found: PlanInput) -> Mapping[str, int]:
    longest = found.config.text_config.max_position_embeddings
    context = request.context or (preset.context if preset else longest)
    if context > longest:
        raise UsageError(f"--context {context} is longer than the {longest} positions of this model.")
    return {"context": context, "batch": request.batch_size or (preset.batch_size if preset else 1)}


def _check_writing(request: Request, layouts: list[Layout]) -> None:
    """Refuse to write without a folder or with several layouts."""
    if len(layouts) > 1:
        names = " or ".join(map(str, layouts))
        raise UsageError(f"{request.model} plans several layouts. Choose one: {names}; or see all with --dry-run.")
    if request.out is None:
        raise UsageError("Name OUT, the folder to write, or see the plan alone with --dry-run.")


def _say(output: Output, line: str, bar: Bar) -> None:
    bar.close()
    if not output.as_json:
        output.text(f"{line}\n")


def _count(written: Written) -> str:
    before = f", {written.resumed} original shards by an earlier run" if written.resumed else ""
    return f"{written.files} weight files, {written.nbytes:,} bytes{before}"


def _verified(original: Path | None) -> str:
    against = f" and gives the bytes of {original}" if original else ""
    return f"verified: every file has its SHA-256{against}"
