"""From settings to what is to run: every prompt with its options, checked before a model is loaded."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from specdecode.cli.proposers import Proposer, proposer
from specdecode.cli.settings import Settings, Value, request, resolve, samples
from specdecode.cli.structured_output import check
from specdecode.core.checkpoint.locate import locate_model
from specdecode.core.engine.request import Request, sample_seed
from specdecode.core.errors import UsageError
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.text.chat_encoding import ChatOptions, parse_effort
from specdecode.core.text.dialogue import Dialogue
from specdecode.core.text.prompt import Prompt
from specdecode.core.text.prompts import read_prompts
from specdecode.core.text.tokenizer import TextTokenizer


class TooLongError(UsageError):
    """A prompt leaves no room in the context."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One prompt, or one sample of it, ready to run.

    Attributes:
        sample: which of its prompt's samples it is, from 0. samples: how many there are.
        first: the request of its first turn; those of later turns differ in the prompt alone.
        key: 32 hexadecimal digits over all that its answer depends on: the checkpoint, the prompt and the options,
            but not its neighbours, nor, under sample-and-match, how many drafts it has.
        length: tokens that it takes at most, all turns together.
    """

    prompt: Prompt
    values: Mapping[str, Value]
    first: Request
    key: str
    length: int
    tokenizer: TextTokenizer
    system: str | None
    sample: int = 0
    samples: int = 1

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.prompt.origin if self.samples == 1 else f"{self.prompt.origin}, sample {self.sample}"

    def dialogue(self) -> Dialogue:
        """Its conversation, from the beginning."""
        return _dialogue(self.prompt, self.values, self.tokenizer, self.system)


@dataclass(frozen=True, kw_only=True)
class Work:
    """All of a run."""

    path: Path
    config: DeepseekV41Config
    tokenizer: TextTokenizer
    jobs: tuple[Job, ...]
    proposer: Proposer
    width: int

    @property
    def prompts(self) -> list[Job]:
        """One job a prompt."""
        return [job for job in self.jobs if job.sample == 0]


def prepare(
    settings: Settings,
    prompts: Sequence[Prompt] | None = None,
    leave_out: Callable[[Prompt], None] | None = None,
) -> Work:
    """Read prompts, configuration and tokenizer.

    Args:
        prompts: to run in place of those that the settings name.
        leave_out: told of each prompt that is too long for the context, which then is no error.

    Raises:
        UsageError: an option or a prompt is not possible.
        ModelError: the checkpoint cannot be used.
    """
    prompts = _prompts(settings) if prompts is None else prompts
    if not settings.model:
        raise UsageError("--model is empty. Name a checkpoint folder or a preset.")
    path = locate_model(settings.model)
    config = DeepseekV41Config.from_json(path)
    tokenizer = TextTokenizer.of(path, config)
    source = proposer(settings, path, config)
    width = source.width(settings.draft_tokens)
    model = _digest(path)
    rule = _rule(settings, source, width)
    jobs = []
    for prompt in prompts:
        values = resolve(prompt, settings, config, (source.most, source.source))
        try:
            jobs += _jobs(prompt, values, settings, config, tokenizer, (model, rule))
        except TooLongError:
            if leave_out is None:
                raise
            leave_out(prompt)
    return Work(path=path, config=config, tokenizer=tokenizer, jobs=tuple(jobs), proposer=source, width=width)


def noun(jobs: Sequence[Job]) -> str:
    """What jobs are called when they are counted."""
    return "samples" if any(job.samples > 1 for job in jobs) else "prompts"


def _rule(settings: Settings, source: Proposer, width: int) -> list[object]:
    """What a ratio test's tokens depend on: the drafts that it sees; those of sample-and-match on nothing of it."""
    if settings.acceptance == "match" or not width:
        return []
    drafter = [] if source.folder is None else [_digest(source.folder)]
    return [settings.acceptance, settings.method, width, settings.confidence_threshold, *drafter]


def _jobs(
    prompt: Prompt,
    values: Mapping[str, Value],
    settings: Settings,
    config: DeepseekV41Config,
    tokenizer: TextTokenizer,
    key: tuple[str, list[object]],
) -> list[Job]:
    """A prompt's samples; key: digest of the checkpoint, and what acceptance adds."""
    count = samples(prompt, values)
    dialogue = _dialogue(prompt, values, tokenizer, settings.system)
    ids = dialogue.ids()
    context = config.text_config.max_position_embeddings
    if len(ids) >= context:
        raise TooLongError(
            f"{prompt.origin}: the prompt has {len(ids)} tokens, and the model's context of {context} "
            "(max_position_embeddings in config.json) has no room for any output. Shorten it."
        )
    first = replace(request(prompt, ids, values, config), starts_thinking=dialogue.thinking)
    check(first, tokenizer, source=values["grammar"].source)
    asked = {f.name: getattr(first, f.name) for f in fields(Request) if f.name != "draft_tokens"}
    chat = [values[name].value for name in ("chat", "thinking", "effort")] if prompt.later else []
    model, rule = key
    whole: list[object] = [model, {**asked, "stop_ids": sorted(first.stop_ids)}, prompt.later, chat, *rule]
    digest = hashlib.sha256(json.dumps(whole, sort_keys=True, default=str).encode())
    job = Job(
        prompt=prompt,
        values=values,
        first=first,
        key="",
        length=dialogue.length(first.max_tokens),
        tokenizer=tokenizer,
        system=settings.system,
        samples=count,
    )
    return [_sample(job, digest.digest(), sample) for sample in range(count)]


def _sample(job: Job, digest: bytes, sample: int) -> Job:
    first = replace(job.first, seed=sample_seed(job.first.seed, sample))
    key = hashlib.sha256(digest + sample.to_bytes(8, "big")).hexdigest()[:32]
    return replace(job, first=first, key=key, sample=sample)


def next_turn(job: Job, dialogue: Dialogue) -> Request:
    """The request of the dialogue's current turn."""
    return replace(job.first, prompt=tuple(dialogue.ids()), starts_thinking=dialogue.thinking)


def _dialogue(prompt: Prompt, values: Mapping[str, Value], tokenizer: TextTokenizer, system: str | None) -> Dialogue:
    options = ChatOptions(thinking=bool(values["thinking"].value), effort=parse_effort(values["effort"].value))
    return Dialogue(prompt, tokenizer, chat=bool(values["chat"].value), system=system, options=options)


def _digest(path: Path) -> str:
    """What tells checkpoints apart without reading their weights."""
    digest = hashlib.sha256()
    for name in ("config.json", "tokenizer.json", "model.safetensors.index.json"):
        file = path / name
        digest.update(file.read_bytes() if file.exists() else b"")
    return digest.hexdigest()


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
