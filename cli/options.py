"""Options that commands share, each spelt out once."""

from __future__ import annotations

from typing import Annotated

import typer

_SAMPLING, _SPECULATION, _RUNNING, _OUTPUT = "Sampling", "Speculation", "Running", "Output"

ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="DIR|PRESET",
        help="A checkpoint folder in the released layout, or the name of an embedded preset.",
        rich_help_panel=_RUNNING,
    ),
]
DevicesOption = Annotated[
    str,
    typer.Option(
        "--devices",
        metavar="cpu|gpu:N",
        help="Where to run: the CPU, or one NVIDIA GPU by its number.",
        rich_help_panel=_RUNNING,
    ),
]
BatchSizeOption = Annotated[
    int,
    typer.Option("--batch-size", metavar="N", min=1, help="The most prompts in one step.", rich_help_panel=_RUNNING),
]
MaxTokensOption = Annotated[
    int,
    typer.Option(
        "--max-tokens",
        metavar="N",
        min=0,
        help="The most tokens to generate for each prompt.",
        rich_help_panel=_SAMPLING,
    ),
]
TemperatureOption = Annotated[
    float,
    typer.Option(
        "--temperature",
        metavar="T",
        min=0.0,
        help="0 takes the likeliest token; 1 draws from the model's own distribution.",
        rich_help_panel=_SAMPLING,
    ),
]
SeedOption = Annotated[
    int,
    typer.Option(
        "--seed",
        metavar="N",
        min=0,
        help="Key of the draws, 0 to 2^64 - 1: the same prompt and seed give the same text.",
        rich_help_panel=_SAMPLING,
    ),
]
DraftTokensOption = Annotated[
    int | None,
    typer.Option(
        "--draft-tokens",
        metavar="N",
        help="Drafts per round, from 0 for plain decoding to what the checkpoint's drafter makes "
        "(dspark_block_size), which is the default. It changes the speed, never the text.",
        show_default=False,
        rich_help_panel=_SPECULATION,
    ),
]
NoSpeculationOption = Annotated[
    bool,
    typer.Option("--no-speculation", help="Plain decoding, like --draft-tokens 0.", rich_help_panel=_SPECULATION),
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document instead of text.", rich_help_panel=_OUTPUT),
]
QuietOption = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No progress and no statistics, errors only.", rich_help_panel=_OUTPUT),
]
DebugOption = Annotated[
    bool,
    typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=_OUTPUT),
]
