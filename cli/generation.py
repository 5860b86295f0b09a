"""What `specdecode generate` does once its options are read."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from specdecode.cli import loading, report
from specdecode.cli.interrupts import raised_interrupts
from specdecode.cli.ordered import OrderedTexts
from specdecode.cli.output import Output
from specdecode.core.checkpoint.locate import locate_model
from specdecode.core.engine.engine import Engine
from specdecode.core.engine.request import Completion, FailedEvent, FinishedEvent, Request, TokensEvent
from specdecode.core.errors import ExitCode, UsageError
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.text.detokenizer import IncrementalDetokenizer
from specdecode.core.text.prompt import Prompt
from specdecode.core.text.prompts import encode_prompt, read_prompts
from specdecode.core.text.tokenizer import TextTokenizer


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of one run; `draft_tokens` None = what the checkpoint says, 0 = plain decoding."""

    source: str | None
    texts: tuple[str, ...]
    model: str
    devices: str
    batch_size: int
    max_tokens: int
    temperature: float
    seed: int
    draft_tokens: int | None
    as_json: bool
    quiet: bool


def run(settings: Settings) -> ExitCode:
    """Generate and report; the exit code says whether every prompt was completed."""
    with Output(as_json=settings.as_json, quiet=settings.quiet) as output:
        return _run(settings, output)


def _run(settings: Settings, output: Output) -> ExitCode:
    prompts = _prompts(settings)
    _check_devices(settings.devices)
    if not settings.model:
        raise UsageError("--model is empty. Name a checkpoint folder or a preset.")
    path = locate_model(settings.model)
    config = DeepseekV41Config.from_json(path)
    tokenizer = TextTokenizer.of(path, config)
    width = _width(settings, config)
    requests = [_request(prompt, tokenizer, settings, width, config) for prompt in prompts]
    longest = max(len(r.prompt) for r in requests) + settings.max_tokens
    model = loading.load_step_model(
        path,
        devices=settings.devices,
        max_length=min(longest, config.text_config.max_position_embeddings),
        max_batch=min(settings.batch_size, len(requests)),
        progress=output,
    )
    output.note(_method(width, config))
    return _Run(output, prompts, tokenizer, Engine(model, max_batch=settings.batch_size), width).complete(requests)


class _Run:
    """One pass of all prompts through an engine."""

    def __init__(
        self, output: Output, prompts: list[Prompt], tokenizer: TextTokenizer, engine: Engine, width: int
    ) -> None:
        self._output = output
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._engine = engine
        self._width = width
        self._text = [IncrementalDetokenizer(tokenizer) for _ in prompts]
        self._done: dict[int, Completion] = {}
        self._shown = False
        self._failed: dict[int, str] = {}
        self._ordered = OrderedTexts(len(prompts), begin=self._begin, show=self._show, stream=output.streams)

    def complete(self, requests: list[Request]) -> ExitCode:
        """Run to the end, or until interrupted; what has finished by then is kept."""
        ids = [self._engine.submit(request) for request in requests]
        number = {request_id: place for place, request_id in enumerate(ids)}
        interrupted = False
        try:
            with raised_interrupts():
                for event in self._engine.run():
                    self._take(event, number[event.request_id])
        except KeyboardInterrupt:
            interrupted = True
        self._report(interrupted)
        if interrupted:
            return ExitCode.INTERRUPTED
        return ExitCode.FAILURE if self._failed else ExitCode.OK

    def _take(self, event: TokensEvent | FinishedEvent | FailedEvent, number: int) -> None:
        if isinstance(event, TokensEvent):
            self._ordered.add(number, self._text[number].feed(event.tokens))
        elif isinstance(event, FinishedEvent):
            self._ordered.add(number, self._text[number].finish())
            self._done[number] = event.completion
            self._ordered.end(number)
        else:
            self._failed[number] = event.message
            self._output.error(f"error: {self._prompts[number].origin}: {event.message}")
            self._ordered.drop(number)

    def _show(self, piece: str) -> None:
        if not self._output.as_json:
            self._output.text(piece)

    def _begin(self, number: int) -> None:
        """Say whose text follows, beside the text, so that standard output holds nothing but text."""
        if self._output.as_json or len(self._prompts) == 1:
            return
        if self._shown:
            self._output.text("\n")
        self._shown = True
        self._output.note(f"[{number + 1}/{len(self._prompts)}] {self._prompts[number].text}")

    def _report(self, interrupted: bool) -> None:
        self._ordered.flush()
        done = list(self._done.values())
        if self._output.as_json:
            results = [self._result(number) for number in range(len(self._prompts))]
            self._output.document(
                {"results": results, "interrupted": interrupted, "statistics": report.statistics(done)}
            )
        if interrupted:
            self._output.error(f"interrupted: {len(done)} of {len(self._prompts)} prompts were finished")
        if done:
            for line in [*report.summary(done, width=self._width), *report.definitions()]:
                self._output.note(line)

    def _result(self, number: int) -> dict[str, object]:
        prompt, completion = self._prompts[number], self._done.get(number)
        head: dict[str, object] = {"prompt": prompt.text, "origin": prompt.origin}
        if completion is None:
            return {**head, "error": self._failed.get(number, "interrupted")}
        return {
            **head,
            "text": self._tokenizer.decode(completion.tokens),
            "tokens": list(completion.tokens),
            "finish_reason": completion.reason.value,
            "rounds": [[r.proposed, r.accepted, r.emitted] for r in completion.rounds],
            "time_to_first_token": completion.timing.first_token,
            "time_per_output_token": completion.timing.per_token,
        }


def _prompts(settings: Settings) -> list[Prompt]:
    prompts = [] if settings.source is None else _read(settings.source)
    prompts += [Prompt(text=text, origin="-p") for text in settings.texts]
    if not prompts:
        raise UsageError(
            "There is no prompt. Name a file with one prompt a line, - for standard input, or use -p TEXT."
        )
    return prompts


def _read(source: str) -> list[Prompt]:
    if source == "-" and sys.stdin is None:
        raise UsageError("Standard input is closed, so - has no prompts to read. Name a file or use -p TEXT.")
    stdin = io.BytesIO() if sys.stdin is None else sys.stdin.buffer
    try:
        return read_prompts(source, stdin)
    except UsageError:
        file = Path(source)
        if file.is_file() and not file.read_bytes():
            raise UsageError(f"{source} is empty. Write one prompt a line.") from None
        raise


def _check_devices(devices: str) -> None:
    if not re.fullmatch(r"cpu|gpu:\d+", devices):
        raise UsageError(f"--devices {devices} is not supported. Use cpu, or one GPU as gpu:0.")


def _width(settings: Settings, config: DeepseekV41Config) -> int:
    block = config.text_config.dspark_block_size
    asked = settings.draft_tokens
    if asked is not None and not 0 <= asked <= block:
        raise UsageError(
            f"--draft-tokens {asked} is not possible: the checkpoint's drafter makes up to {block} "
            f"(dspark_block_size in config.json). Use 0 to {block}."
        )
    return block if asked is None else asked


def _request(
    prompt: Prompt, tokenizer: TextTokenizer, settings: Settings, width: int, config: DeepseekV41Config
) -> Request:
    ids = encode_prompt(prompt, tokenizer)
    context = config.text_config.max_position_embeddings
    if len(ids) >= context:
        raise UsageError(
            f"{prompt.origin}: the prompt has {len(ids)} tokens, and the model's context of {context} "
            "(max_position_embeddings in config.json) has no room for any output. Shorten it."
        )
    return Request(
        prompt=tuple(ids),
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        seed=settings.seed,
        stop_ids=frozenset({config.eos_token_id}),
        draft_tokens=width,
    )


def _method(width: int, config: DeepseekV41Config) -> str:
    if width == 0:
        return "plain decoding, one token per step; draws are keyed by seed and position"
    block = config.text_config.dspark_block_size
    return (
        f"DSpark speculation, up to {width} drafts per round (dspark_block_size {block}); a draft is "
        "accepted if it "
        "is the token that the target draws itself, keyed by seed and position"
    )
