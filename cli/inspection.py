"""What `specdecode inspect-inputs` does once its options are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from max.graph import DeviceRef

from specdecode.cli.output import Output
from specdecode.cli.proposers import proposer
from specdecode.cli.settings import Settings
from specdecode.core.checkpoint.locate import locate_model
from specdecode.core.checkpoint.reader import Checkpoint
from specdecode.core.device_layout import DeviceLayout
from specdecode.core.device_names import DeviceNames
from specdecode.core.errors import ExitCode, UsageError
from specdecode.core.inspection.example import example_row, filled
from specdecode.core.inspection.pairing import Fact, facts
from specdecode.core.inspection.signature import Entry, inputs, outputs, table
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig
from specdecode.core.text.tokenizer import TextTokenizer


def show(
    model: str,
    *,
    devices: str,
    data_parallel_degree: int,
    structured_output: bool,
    method: str,
    draft_model: str | None,
    prompt: str | None,
    phase: str,
    as_json: bool,
    markdown: bool,
) -> None:
    """Print the table.

    Raises:
        UsageError: an option is not possible. ModelError: the checkpoint cannot be used.
    """
    if as_json and markdown:
        raise UsageError("--json and --markdown contradict each other. Leave one out.")
    if prompt is None and phase != "prefill":
        raise UsageError(f"--phase {phase} needs a prompt: name one with --prompt TEXT.")
    path = locate_model(model)
    config = DeepseekV41Config.from_json(path)
    layout = _layout(DeviceNames.parse(devices, data_parallel_degree))
    settings = Settings(method=method, draft_model=draft_model)
    source = proposer(settings, path, config)
    drafter = None if source.folder is None else EagleConfig.from_folder(source.folder, config.text_config)
    if drafter is not None and layout.count > 1:
        raise UsageError("An EAGLE drafter runs on one device. Use --method dspark, or one device.")
    taken = inputs(config, layout, structured_output=structured_output, drafter=drafter)
    texts: list[str] = []
    if prompt is not None:
        tokenizer = TextTokenizer.of(path, config)
        text = config.text_config
        depth = text.engram_max_ngram_size - 1 if text.engram_layer_ids else 0
        row = example_row(tokenizer.encode(prompt), phase, source.most, depth)
        taken = filled(taken, Checkpoint.open(path), row, layout, structured_output=structured_output, drafter=drafter)
        texts = [f"{token} {tokenizer.decode([token])!r}" for token in (*row.tokens, *row.draft_tokens)]
    given = outputs(config, layout, drafter=drafter)
    with Output(as_json=as_json) as output:
        if as_json:
            output.document({"inputs": _documents(taken), "outputs": _documents(given), "tokens": texts})
            return
        title = "## " if markdown else ""
        lines = [f"{title}inputs", *_spaced(taken, markdown), "", f"{title}outputs", *_spaced(given, markdown)]
        if texts:
            lines += ["", f"{title}tokens", ", ".join(texts)]
        output.text("\n".join(lines) + "\n")


def _layout(names: DeviceNames) -> DeviceLayout:
    """The devices in a graph, whether they are there or not."""
    devices = [DeviceRef.GPU(number) for number in names.gpus] or [DeviceRef.CPU()]
    return DeviceLayout(devices=tuple(devices * names.shards), data_parallel_degree=names.data_parallel_degree)


def compare(first: str, second: str, *, as_json: bool) -> ExitCode:
    """Print where two checkpoints differ; the code says whether the second one's drafter fits the first."""
    found = facts(locate_model(first), locate_model(second))
    unfit = [fact for fact in found if fact.needed and not fact.equal]
    with Output(as_json=as_json) as output:
        if as_json:
            output.document({"pairs": not unfit, "facts": [asdict(fact) | {"equal": fact.equal} for fact in found]})
        else:
            output.text("".join(f"{line}\n" for line in [*map(_line, found), _verdict(unfit)]))
    return ExitCode.MODEL if unfit else ExitCode.OK


def _line(fact: Fact) -> str:
    same = "same     " if fact.equal else "different"
    values = f"{fact.first}" if fact.equal else f"{fact.first} | {fact.second}"
    return f"{same}  {fact.name}: {values}"


def _verdict(unfit: Sequence[Fact]) -> str:
    if not unfit:
        return "they pair: the second one's drafter can serve the first"
    return "they do not pair: " + ", ".join(fact.name for fact in unfit)


def _spaced(entries: Sequence[Entry], markdown: bool) -> list[str]:
    lines = table(entries, markdown=markdown)
    return ["", *lines] if markdown else lines


def _documents(entries: Sequence[Entry]) -> list[dict[str, object]]:
    return [asdict(entry) | {"bytes": entry.bytes} for entry in entries]
