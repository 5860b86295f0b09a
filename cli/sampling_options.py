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
MinPOption = Annotated[
    float,
    typer.Option(
        "--min-p",
        metavar="P",
        min=0.0,
        max=1.0,
        help="Draw from tokens that have this share of the likeliest one's probability at least; 0 = from all.",
        rich_help_panel=_PANEL,
    ),
]
RepetitionPenaltyOption = Annotated[
    float,
    typer.Option(
        "--repetition-penalty",
        metavar="X",
        help="Divide positive logits of tokens in the prompt or the answer by X, multiply others; 1 = off.",
        rich_help_panel=_PANEL,
    ),
]
FrequencyPenaltyOption = Annotated[
    float,
    typer.Option(
        "--frequency-penalty",
        metavar="X",
        help="Subtract X from a token's logit for each time that it is in the answer; 0 = off.",
        rich_help_panel=_PANEL,
    ),
]
PresencePenaltyOption = Annotated[
    float,
    typer.Option(
        "--presence-penalty",
        metavar="X",
        help="Subtract X from a token's logit if it is in the answer; 0 = off.",
        rich_help_panel=_PANEL,
    ),
]
LogitBiasOption = Annotated[
    list[str] | None,
    typer.Option(
        "--logit-bias",
        metavar="ID=X",
        help="Add X to the logit of a token; may be repeated.",
        rich_help_panel=_PANEL,
    ),
]
LogprobsOption = Annotated[
    int | None,
    typer.Option(
        "--logprobs",
        metavar="N",
        min=0,
        help="Put the log-probability of each token, and of the N likeliest, into JSON results.",
        show_default=False,
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
