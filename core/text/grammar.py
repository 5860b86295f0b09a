"""What a request's text must look like: a description, to be compiled against a tokenizer elsewhere."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from specdecode.core.errors import UsageError

Kind = Literal["json_schema", "json_object", "regex", "lark"]
NAMES: dict[Kind, str] = {
    "json_schema": "JSON schema",
    "json_object": "JSON object",
    "regex": "regular expression",
    "lark": "grammar",
}


@dataclass(frozen=True, kw_only=True)
class Grammar:
    """A language that an output must belong to, as a whole.

    Attributes:
        kind: `json_schema` (text: the schema as JSON; properties come in the schema's order), `json_object` (any
            object, no text), `regex` (in Rust's syntax; the whole text must match) or `lark` (Lark in llguidance's
            dialect, with a rule `start`).
        text: the schema, the expression or the grammar.
    """

    kind: Kind
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind not in NAMES:
            raise UsageError(f"{self.kind!r} is no kind of grammar. There are {', '.join(NAMES)}.")
        if any("\ud800" <= character <= "\udfff" for character in self.text):
            raise UsageError(f"The {NAMES[self.kind]} is not UTF-8 text.")

    def __str__(self) -> str:
        return f"{NAMES[self.kind]} {self.text}".rstrip()


def json_schema(schema: object) -> Grammar:
    """A schema, parsed or as JSON text, as a grammar.

    Raises:
        ValueError: it is no JSON object.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is no JSON: {error}") from None
    if not isinstance(schema, dict):
        raise ValueError("it must be a JSON object")
    try:
        return Grammar(kind="json_schema", text=json.dumps(schema, ensure_ascii=False))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
