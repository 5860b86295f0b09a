"""Grammars as rows of prompt files ask for them, under the names that engines use."""

from __future__ import annotations

import json
from collections.abc import Callable

from specdecode.core.text.grammar import Grammar, json_schema


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("it must be a text, and not empty")
    return value


def _lark(value: object) -> Grammar:
    return Grammar(kind="lark", text=_text(value))


def _regex(value: object) -> Grammar:
    return Grammar(kind="regex", text=_text(value))


def _choice(value: object) -> Grammar:
    """One of some texts."""
    if not isinstance(value, list) or not value:
        raise ValueError("it must be a list of texts, none of them empty")
    if not all(isinstance(one, str) and one for one in value):
        raise ValueError("it must be a list of texts, none of them empty")
    return Grammar(kind="lark", text="start: " + " | ".join(json.dumps(one, ensure_ascii=False) for one in value))


def _flag(value: object) -> Grammar | None:
    if not isinstance(value, bool):
        raise ValueError("it must be true or false")
    return Grammar(kind="json_object") if value else None


def _response_format(value: object) -> Grammar | None:
    """OpenAI's, in its three types."""
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or kind not in ("text", "json_object", "json_schema"):
        raise ValueError('its type must be "text", "json_object" or "json_schema"')
    if kind != "json_schema":
        return None if kind == "text" else Grammar(kind="json_object")
    inner = value.get("json_schema")
    if not isinstance(inner, dict) or not isinstance(inner.get("schema"), dict):
        raise ValueError("json_schema must be an object that holds the schema as an object")
    return json_schema(inner["schema"])


def _structured_outputs(value: object) -> Grammar | None:
    """vLLM's, since it has one key for all kinds."""
    asked = {key: one for key, one in value.items() if one is not None} if isinstance(value, dict) else {}
    if len(asked) != 1 or not asked.keys() <= _STRUCTURED.keys():
        raise ValueError(f"it must hold one of {', '.join(_STRUCTURED)}")
    [(key, one)] = asked.items()
    return _STRUCTURED[key](one)


_STRUCTURED: dict[str, Callable[[object], Grammar | None]] = {
    "json": json_schema,
    "json_object": _flag,
    "regex": _regex,
    "grammar": _lark,
    "choice": _choice,
}
GRAMMAR_KINDS: dict[str, Callable[[object], object]] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "guided_json": json_schema,
    "guided_json_object": _flag,
    "guided_regex": _regex,
    "guided_grammar": _lark,
    "guided_choice": _choice,
}
"""Keys of a row, each with how its value is read; None says that the text is free."""


def gather_grammar(options: dict[str, object]) -> None:
    """Replace the options of `GRAMMAR_KINDS` by one, `grammar`, where any asks for something.

    Raises:
        ValueError: two of them ask for different grammars.
    """
    found = {key: options.pop(key) for key in GRAMMAR_KINDS if key in options}
    asked = {key: grammar for key, grammar in found.items() if grammar is not None}
    if len(set(asked.values())) > 1:
        first, second, *_ = asked
        raise ValueError(f"{second} contradicts {first}: an answer has one grammar")
    if asked:
        options["grammar"] = next(iter(asked.values()))
