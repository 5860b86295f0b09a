"""Options that a row of a prompt file sets for itself, under the names that engines and data sets use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches

from specdecode.core.engine.request import Request
from specdecode.core.errors import UsageError
from specdecode.core.text.chat_encoding import parse_effort
from specdecode.core.text.grammar_options import GRAMMAR_KINDS, gather_grammar


class RowError(ValueError):
    """A row cannot be used; the message says why, without its place."""


_HUGE = 1e300


def _whole(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RowError("it must be a whole number")
    return value


def _number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RowError("it must be a number")
    if not -_HUGE < value < _HUGE:
        raise RowError("it must be a number that is not so large")
    return value


def _top_k(value: object) -> object:
    return 0 if value == -1 else _whole(value)  # two ways to say: all


def _flag(value: object) -> object:
    if not isinstance(value, bool):
        raise RowError("it must be true or false")
    return value


def _texts(value: object) -> object:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise RowError("it must be a text or a list of texts, none of them empty")
    return tuple(texts)


def _tokens(value: object) -> object:
    if not isinstance(value, list):
        raise RowError("it must be a list of token ids")
    return tuple(map(_whole, value))


def _thinking(value: object) -> object:
    if isinstance(value, dict) and value.get("type") in ("enabled", "disabled"):
        return value["type"] == "enabled"
    return _flag(value)


def _effort(value: object) -> object:
    try:
        return parse_effort(value)
    except UsageError as error:
        raise RowError(str(error).partition(": ")[2].rstrip(".")) from None


def _bias(value: object) -> object:
    if not isinstance(value, dict):
        raise RowError("it must be an object of token ids and numbers")
    try:
        biases = {int(token): float(_number(bias)) for token, bias in value.items()}  # type: ignore[arg-type]
    except ValueError:
        raise RowError("it must be an object of token ids and numbers") from None
    if len(biases) < len(value):
        raise RowError("it names a token twice")
    return biases


_KINDS: dict[str, Callable[[object], object]] = {
    "max_tokens": _whole,
    "min_tokens": _whole,
    "temperature": _number,
    "top_k": _top_k,
    "top_p": _number,
    "min_p": _number,
    "repetition_penalty": _number,
    "frequency_penalty": _number,
    "presence_penalty": _number,
    "logit_bias": _bias,
    "logprobs": _whole,
    "seed": _whole,
    "n": _whole,
    "stop": _texts,
    "stop_token_ids": _tokens,
    "ignore_eos": _flag,
    "include_stop": _flag,
    "thinking": _thinking,
    "effort": _effort,
    "thinking_budget": _whole,
    **GRAMMAR_KINDS,
}
_ALIASES = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "output_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "min_new_tokens": "min_tokens",
    "temp": "temperature",
    "include_stop_str_in_output": "include_stop",
    "enable_thinking": "thinking",
    "reasoning_effort": "effort",
    "thinking_token_budget": "thinking_budget",
    "repeat_penalty": "repetition_penalty",
    "json_schema": "guided_json",
    "regex": "guided_regex",
    "grammar": "guided_grammar",
}
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "best_of": (1,),
    "echo": (False,),
}
"""Options of peers with the values at which they do nothing; other values are refused where we lack the option."""
_SAMPLING = frozenset(_NEUTRAL) - {"echo"}
_OF_THE_RUN = ("draft_tokens", "confidence_threshold", "acceptance")
"""Options that are the command line's alone: a row that names one means something else than it gets."""
IGNORED = frozenset(
    (
        "model",
        "user",
        "metadata",
        "store",
        "stream",
        "stream_options",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "parallel_tool_calls",
    )
)
"""What an API request may say without meaning anything here."""


def _meant(key: str) -> str | None:
    """The option that this key looks like, written as on a command line or in another language included."""
    names = [*_KINDS, *_ALIASES, *_NEUTRAL]
    if key in names:
        return None
    for name in names:
        if name.replace("_", "") == key.replace("-", "").replace("_", "").lower():
            return name
    return next(iter(get_close_matches(key, names, n=1, cutoff=0.85)), None)


def take_options(row: Mapping[str, object], *, closed: bool) -> tuple[dict[str, object], dict[str, object]]:
    """Options of a row and its other keys; a null is an option that is not set.

    Args:
        row: what is left of a row once its prompt is taken out.
        closed: whether the row is a request to an API, which has no room for other keys.

    Raises:
        RowError: a value that is not possible, an option that is not supported, or a name that is no option.
    """
    options: dict[str, object] = {}
    rest: dict[str, object] = {}
    for key, value in _flat(row).items():
        name = _ALIASES.get(key, key)
        if name == "effort" and value == "none":
            name, value = "thinking", False
        if name in _KINDS or (name in _SAMPLING if not closed else name in _NEUTRAL):
            if value is not None:
                _set(options, name, key, value)
        elif not (closed and key in IGNORED):
            rest[key] = value
    try:
        gather_grammar(options)
    except ValueError as error:
        raise RowError(str(error)) from None
    if options.get("thinking") is False and options.get("thinking_budget") is not None:
        raise RowError("thinking_budget contradicts thinking, which is off")
    for key in rest:
        if key in _OF_THE_RUN:
            raise RowError(f"{key} is an option of the command line, not of a row")
        close = _meant(key)
        if closed or close:
            raise RowError(f"{key} is no option" + (f"; did you mean {close}?" if close else ""))
    return options, rest


def _flat(row: Mapping[str, object]) -> dict[str, object]:
    """The row with `chat_template_kwargs` on its own level."""
    row = _with_logprobs(row)
    inner = row.get("chat_template_kwargs")
    rest = {key: value for key, value in row.items() if key != "chat_template_kwargs"}
    if inner is None:
        return rest
    if not isinstance(inner, dict) or not inner.keys() <= {"thinking", "enable_thinking", "reasoning_effort"}:
        raise RowError("chat_template_kwargs may hold thinking, enable_thinking and reasoning_effort only")
    return rest | inner


def _with_logprobs(row: Mapping[str, object]) -> Mapping[str, object]:
    """The row with one number of likeliest tokens, as completions have it; chats have a flag and a number."""
    count, flag = row.get("top_logprobs"), row.get("logprobs")
    if count is None and not isinstance(flag, bool):
        return row
    rest = {key: value for key, value in row.items() if key not in ("logprobs", "top_logprobs")}
    if count and flag is not True:
        raise RowError(f"top_logprobs is {count!r}; it needs logprobs, which must be true")
    return {**rest, "logprobs": count or 0} if flag else rest


def _set(options: dict[str, object], name: str, key: str, value: object) -> None:
    if name in _KINDS:
        try:
            value = _KINDS[name](value)
        except (ValueError, UsageError) as error:
            raise RowError(f"{key} is {value!r}; {error}") from None
    elif name not in _REQUEST:
        if any((type(value) is type(one) and value == one) or _equal(value, one) for one in _NEUTRAL[name]):
            return
        raise RowError(f"{key} {value!r} is not supported")
    if name in options and options[name] != value:
        raise RowError(f"{key} {value!r} contradicts {name} {options[name]!r}")
    options[name] = value


def _equal(value: object, other: object) -> bool:
    """Whether two numbers are equal, as 1.0 and 1 are and true and 1 are not."""
    numbers = not isinstance(value, bool) and not isinstance(other, bool)
    return numbers and isinstance(value, int | float) and value == other


_REQUEST = frozenset(f.name for f in fields(Request))
