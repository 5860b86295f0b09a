"""Options of how tokens are drawn."""

from __future__ import annotations

from typing import Annotated

import typer

_PANEL = "Sampling"

TemperatureOption = Annotated[
    float,
    typer.Option(
        "--temperature",
        metavar="T",
        min=0.0,
        help="0 takes the likeliest token; 1 draws from the model's own distribution.",
        rich_help_panel=_PANEL,
    ),
]
TopKOption = Annotated[
    int,
    typer.Option(
        "--top-k",
        metavar="K",
        min=0,
        help="Draw from the K likeliest tokens only; 0 = from all.",
        rich_help_panel=_PANEL,
    ),
]
TopPOption = Annotated[
    float,
    typer.Option(
        "--top-p",
        metavar="P",
        min=0.0,
        max=1.0,
        help="Draw from the fewest likeliest tokens that share this much of the probability; 1 = from all.",
        rich_help_panel=_PANEL,
    ),
]
SeedOption = Annotated[
    int,
    typer.Option(
        "--seed",
        metavar="N",
        min=0,
        help="Key of the draws, 0 to 2^64 - 1: the same prompt and seed give the same text.",
        rich_help_panel=_PANEL,
    ),
]
SamplesOption = Annotated[
    int,
    typer.Option(
        "--n",
        metavar="N",
        min=1,
        help="Answers to each prompt; the first has the seed itself, the others have seeds derived from it.",
        rich_help_panel=_PANEL,
    ),
]
