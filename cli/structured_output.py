"""From the options of structured output to a grammar, checked before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path

from specdecode.core.engine.request import Request
from specdecode.core.errors import UsageError
from specdecode.core.text.constraints import constraint
from specdecode.core.text.grammar import Grammar, Kind, json_schema
from specdecode.core.text.tokenizer import TextTokenizer

FLAGS: dict[Kind, str] = {
    "json_schema": "--json-schema",
    "json_object": "--json-object",
    "regex": "--regex",
    "lark": "--grammar",
}


def chosen(*, schema: str | None, json_object: bool, regex: str | None, grammar: str | None) -> Grammar | None:
    """The grammar that the command line asks for.

    Raises:
        UsageError: it asks for two, or a file cannot be read.
    """
    given = {"--json-schema": schema, "--json-object": json_object or None, "--regex": regex, "--grammar": grammar}
    asked = [flag for flag, value in given.items() if value is not None]
    if len(asked) > 1:
        raise UsageError(f"{asked[0]} and {asked[1]} contradict each other: an answer has one grammar. Leave one out.")
    if schema is not None:
        return _schema(schema)
    if json_object:
        return Grammar(kind="json_object")
    if regex is not None:
        return Grammar(kind="regex", text=regex)
    return None if grammar is None else Grammar(kind="lark", text=_read(grammar, "--grammar"))


def check(request: Request, tokenizer: TextTokenizer, *, source: str) -> None:
    """Compile a request's grammar, which is kept.

    Raises:
        UsageError: it cannot be used; the message names `source`, who asked for it.
        TokenizerError: the tokenizer has no `</think>`.
    """
    try:
        constraint(
            tokenizer,
            grammar=request.grammar,
            thinking=request.starts_thinking,
            thinking_budget=request.thinking_budget,
            stop_ids=request.stop_ids,
        )
    except UsageError as error:
        raise UsageError(f"{source.removeprefix('row ')}: {error}") from None


def _schema(value: str) -> Grammar:
    try:
        inline = isinstance(json.loads(value), dict | bool | list | int | float)
    except ValueError:
        inline = value.lstrip().startswith("{")
    try:
        return json_schema(value if inline else _read(value, "--json-schema"))
    except ValueError as error:
        raise UsageError(f"--json-schema {value} cannot be used: {error}.") from None


def _read(name: str, flag: str) -> str:
    try:
        if not name:
            raise UsageError(f"{flag} is empty. Name a file.")
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        hint = "; the schema itself would begin with {" if flag == "--json-schema" else ""
        raise UsageError(f"{flag} {name} cannot be read: {error.strerror}{hint}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{flag} {name} is not UTF-8 text.") from None
