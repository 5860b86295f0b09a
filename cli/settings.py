"""The options of one run, and what each prompt makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from specdecode.cli.structured_output import FLAGS
from specdecode.core.device_names import DeviceNames
from specdecode.core.engine.request import Request
from specdecode.core.engine.step import Acceptance
from specdecode.core.errors import UsageError
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.text.chat_encoding import DEFAULT_EFFORT
from specdecode.core.text.grammar import Grammar
from specdecode.core.text.prompt import Prompt

FALLBACKS: dict[str, object] = {
    "max_tokens": 64,
    "min_tokens": 0,
    "temperature": 0.7,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "logit_bias": {},
    "logprobs": None,
    "seed": 0,
    "n": 1,
    "stop": (),
    "stop_token_ids": (),
    "ignore_eos": False,
    "include_stop": False,
    "thinking": True,
    "effort": DEFAULT_EFFORT,
    "grammar": None,
    "thinking_budget": None,
}
"""Options of a prompt and what they are where nobody sets them; a row may set each of them for itself."""
MOST_SAMPLES = 10_000
RULES = tuple(rule.name.lower() for rule in Acceptance)
METHODS = ("dspark", "eagle", "ngram", "none")
CHAT_OPTIONS = ("system", "thinking", "effort")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the command line says.

    Attributes:
        given: options of a prompt that were on the command line, by their names in `FALLBACKS`, and any field of
            `Request`.
        named: options of the whole run that were on the command line.
        draft_tokens: None = what the checkpoint says, 0 = plain decoding.
        auto_width: as many drafts as pay.
        confidence_threshold: drafts from the first one below it on are not verified.
        acceptance: the rule that drafts are accepted by: match, rejection or block.
        method: who proposes drafts: dspark, eagle, ngram or none. draft_model: folder of an EAGLE drafter.
        chat: encode every prompt as a conversation, or none; None = those that are written as one.
        system: the system message of conversations that have none.
        output, output_format, resume, as_completed: where results go beside the text; see `results_file.py`.
    """

    source: str | None = None
    texts: tuple[str, ...] = ()
    model: str = "demo"
    devices: str = "cpu"
    data_parallel_degree: int = 1
    batch_size: int = 8
    given: Mapping[str, object] = field(default_factory=dict)
    named: frozenset[str] = frozenset()
    draft_tokens: int | None = None
    auto_width: bool = False
    confidence_threshold: float | None = None
    acceptance: str = "match"
    method: str = "dspark"
    draft_model: str | None = None
    chat: bool | None = None
    system: str | None = None
    output: str | None = None
    output_format: str = "auto"
    resume: bool = False
    as_completed: bool = False
    compare: bool = False
    trace_tokens: bool = False
    show_config: bool = False
    as_json: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        asked = [name for name in CHAT_OPTIONS if name in self.given or (name == "system" and self.system is not None)]
        if self.chat is False and asked:
            raise UsageError(f"--raw and --{asked[0]} contradict each other: a raw prompt has no place for it.")
        for name in ("effort", "thinking_budget"):
            if self.given.get("thinking") is False and name in self.given:
                raise UsageError(f"--no-thinking and {_flag(name, None)} contradict each other. Leave one out.")
        DeviceNames.parse(self.devices, self.data_parallel_degree)
        if self.resume and self.output is None:
            raise UsageError("--resume needs the results of an earlier run: name them with --output FILE.")
        if self.confidence_threshold is not None and (self.auto_width or self.draft_tokens == 0):
            other = "--draft-tokens auto" if self.auto_width else "plain decoding"
            raise UsageError(f"--confidence-threshold and {other} contradict each other. Leave one out.")
        if self.confidence_threshold is not None and not 0 <= self.confidence_threshold <= 1:
            raise UsageError(f"--confidence-threshold {self.confidence_threshold} is outside 0 to 1.")
        if self.method not in METHODS:
            raise UsageError(f"--method {self.method} is not possible. Use {', '.join(METHODS)}.")
        if self.method == "ngram" and (self.auto_width or self.confidence_threshold is not None):
            other = "--draft-tokens auto" if self.auto_width else "--confidence-threshold"
            raise UsageError(f"{other} needs the drafter's confidence, and --method ngram has none. Leave one out.")
        if self.acceptance not in RULES:
            raise UsageError(f"--acceptance {self.acceptance} is not possible. Use {', '.join(RULES)}.")
        if self.auto_width and self.acceptance != "match":
            raise UsageError(
                f"--draft-tokens auto and --acceptance {self.acceptance} contradict each other: a ratio test keeps the "
                "target's law only if no draft decides whether it is verified itself, and auto may do that."
            )
        if self.compare and self.acceptance != "match":
            raise UsageError(
                f"--compare and --acceptance {self.acceptance} contradict each other: a ratio test gives the target's "
                "law, not the tokens of plain decoding."
            )
        if self.compare and self.draft_tokens == 0:
            raise UsageError("--compare runs with and without speculation, so plain decoding alone contradicts it.")
        if self.compare and self.output is not None:
            raise UsageError("--compare and --output contradict each other: a comparison has two results a prompt.")


@dataclass(frozen=True, kw_only=True)
class Value:
    """An option's value and who set it: a flag, a row, the checkpoint, or nobody (`default`)."""

    value: object
    source: str


def resolve(prompt: Prompt, settings: Settings, config: DeepseekV41Config, most: tuple[int, str]) -> dict[str, Value]:
    """Every option of one prompt; a row goes before the command line. most: drafts that there are, and who says so."""
    values = {}
    for name in {**FALLBACKS, **settings.given, **prompt.options}:
        if name in prompt.options:
            values[name] = Value(value=prompt.options[name], source=f"row {prompt.origin}")
        elif name in settings.given:
            values[name] = Value(value=settings.given[name], source=_flag(name, settings.given[name]))
        else:
            values[name] = Value(value=FALLBACKS[name], source="default")
    if settings.auto_width:
        values["draft_tokens"] = Value(value="auto", source="--draft-tokens")
    elif settings.draft_tokens is None:
        values["draft_tokens"] = Value(value=most[0], source=f"checkpoint ({most[1]})")
    else:
        values["draft_tokens"] = Value(value=settings.draft_tokens, source="--draft-tokens")
    values["chat"] = _chat(prompt, settings, values)
    return values


def samples(prompt: Prompt, values: Mapping[str, Value]) -> int:
    """How many answers a prompt gets.

    Raises:
        UsageError: a number that is not possible.
    """
    n = values["n"].value
    if isinstance(n, int) and 1 <= n <= MOST_SAMPLES:
        return n
    place = f"{prompt.origin}: " if prompt.options else ""
    raise UsageError(f"{place}n is {n}; it must be a whole number from 1 to {MOST_SAMPLES}.")


def request(prompt: Prompt, ids: list[int], values: Mapping[str, Value], config: DeepseekV41Config) -> Request:
    """The engine's request for one turn.

    Raises:
        UsageError: a value that is not possible, named with its row if that set any.
    """
    plain = {name: value.value for name, value in values.items()}
    names = {f.name for f in fields(Request)}
    arguments = {name: value for name, value in plain.items() if name in names and value != "auto"}
    try:
        stops = frozenset(_tokens(plain, config))
        _check_bias(plain["logit_bias"], config)
        return Request(**{**arguments, "prompt": tuple(ids), "stop_ids": stops})  # type: ignore[arg-type]
    except UsageError as error:
        raise UsageError(f"{prompt.origin}: {error}" if prompt.options else str(error)) from None


def _check_bias(bias: object, config: DeepseekV41Config) -> None:
    size = config.text_config.vocab_size
    beyond = [token for token in bias if token >= size] if isinstance(bias, Mapping) else []
    if beyond:
        raise UsageError(f"logit_bias names the token {beyond[0]}, and ids run from 0 to {size - 1} (vocab_size).")


def _tokens(plain: Mapping[str, object], config: DeepseekV41Config) -> set[int]:
    given = plain["stop_token_ids"]
    stops = set(given) if isinstance(given, tuple) else set()
    size = config.text_config.vocab_size
    for token in stops:
        if not 0 <= token < size:
            raise UsageError(f"The stop token {token} is not possible: ids run from 0 to {size - 1} (vocab_size).")
    return stops if plain["ignore_eos"] else stops | {config.eos_token_id}


def _chat(prompt: Prompt, settings: Settings, values: Mapping[str, Value]) -> Value:
    if settings.chat is not None:
        return Value(value=settings.chat, source="--chat" if settings.chat else "--raw")
    if prompt.messages:
        return Value(value=True, source="default (a conversation)")
    for name in ("thinking", "effort", "thinking_budget"):
        if values[name].source != "default":
            return Value(value=True, source=values[name].source)
    if settings.system is not None:
        return Value(value=True, source="--system")
    return Value(value=False, source="default (a text)")


def _flag(name: str, value: object) -> str:
    if isinstance(value, Grammar):
        return FLAGS[value.kind]
    flag = {"stop_token_ids": "stop-token-id"}.get(name, name).replace("_", "-")
    return f"--no-{flag}" if name == "thinking" and value is False else f"--{flag}"
