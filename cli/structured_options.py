"""Options of what an answer must look like."""

from __future__ import annotations

from typing import Annotated

import typer

_PANEL = "Structured output"

JsonSchemaOption = Annotated[
    str | None,
    typer.Option(
        "--json-schema",
        metavar="FILE|JSON",
        help="Answer with JSON of this schema, which is given as it is or in a file.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
JsonObjectOption = Annotated[
    bool,
    typer.Option("--json-object", help="Answer with a JSON object.", rich_help_panel=_PANEL),
]
RegexOption = Annotated[
    str | None,
    typer.Option(
        "--regex",
        metavar="REGEX",
        help="Answer with a text that this regular expression matches as a whole.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
GrammarOption = Annotated[
    str | None,
    typer.Option(
        "--grammar",
        metavar="FILE",
        help="Answer with a text of this grammar, in llguidance's dialect of Lark; its first rule is start.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
ThinkingBudgetOption = Annotated[
    int | None,
    typer.Option(
        "--thinking-budget",
        metavar="N",
        min=0,
        help="The most tokens of reasoning before an answer; then </think> is forced.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
