"""Options that commands share, each spelt out once."""

from __future__ import annotations

from typing import Annotated

import typer

_CHAT, _STOPPING = "Conversation", "Stopping"
_SPECULATION, _RUNNING, _OUTPUT = "Speculation", "Running", "Output"


def named(context: typer.Context) -> frozenset[str]:
    """Parameters that were on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, source in sources.items() if source is not None and source.name != "DEFAULT")


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
        metavar="cpu|gpu:N|gpu:N,M|N|cpuxN",
        help="Where to run: the CPU, one NVIDIA GPU, several, that many, or N logical shards on the CPU.",
        rich_help_panel=_RUNNING,
    ),
]
DataParallelOption = Annotated[
    int,
    typer.Option(
        "--data-parallel-degree",
        metavar="N",
        min=1,
        help="1: all devices work on every token. Their number: each has its own requests, the experts are shared.",
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
        help="The most tokens to generate for each answer.",
        rich_help_panel=_STOPPING,
    ),
]
MinTokensOption = Annotated[
    int,
    typer.Option(
        "--min-tokens",
        metavar="N",
        min=0,
        help="Forbid the end-of-sequence token and stop tokens, and ignore stop texts, among the first N tokens.",
        rich_help_panel=_STOPPING,
    ),
]
StopOption = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        metavar="TEXT",
        help="A text that ends the answer and is left out of it; may be repeated.",
        rich_help_panel=_STOPPING,
    ),
]
StopTokenOption = Annotated[
    list[int] | None,
    typer.Option(
        "--stop-token-id",
        metavar="ID",
        help="A token that ends the answer; may be repeated.",
        rich_help_panel=_STOPPING,
    ),
]
IncludeStopOption = Annotated[
    bool,
    typer.Option("--include-stop", help="Keep the stop in the text.", rich_help_panel=_STOPPING),
]
IgnoreEosOption = Annotated[
    bool,
    typer.Option("--ignore-eos", help="Go on after the end-of-sequence token.", rich_help_panel=_STOPPING),
]
ChatOption = Annotated[
    bool | None,
    typer.Option(
        "--chat/--raw",
        help="Encode each prompt as a conversation, or none. By default those that are written as one are encoded, "
        "and texts are continued as they are.",
        show_default=False,
        rich_help_panel=_CHAT,
    ),
]
ThinkingOption = Annotated[
    bool | None,
    typer.Option(
        "--thinking/--no-thinking",
        help="Whether conversations are answered after reasoning; by default they are.",
        show_default=False,
        rich_help_panel=_CHAT,
    ),
]
EffortOption = Annotated[
    str | None,
    typer.Option(
        "--effort",
        metavar="1-100|NAME",
        help="How thorough the reasoning is: a number, or minimal or low (50), medium, high or xhigh (75, the "
        "default), max (100).",
        show_default=False,
        rich_help_panel=_CHAT,
    ),
]
SystemOption = Annotated[
    str | None,
    typer.Option(
        "--system",
        metavar="TEXT",
        help="The system message of conversations that have none.",
        show_default=False,
        rich_help_panel=_CHAT,
    ),
]
OutputOption = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write one JSON object a prompt into FILE, each as soon as it is done, and no text.",
        show_default=False,
        rich_help_panel=_OUTPUT,
    ),
]
OutputFormatOption = Annotated[
    str,
    typer.Option(
        "--output-format",
        metavar="auto|results|openai-batch",
        help="The shape of these objects; auto answers an OpenAI batch as one.",
        rich_help_panel=_OUTPUT,
    ),
]
ResumeOption = Annotated[
    bool,
    typer.Option("--resume", help="Answer only what has no answer in FILE yet.", rich_help_panel=_OUTPUT),
]
AsCompletedOption = Annotated[
    bool,
    typer.Option(
        "--as-completed",
        help="Results in the order in which they are done, not in that of the prompts.",
        rich_help_panel=_OUTPUT,
    ),
]
CompareOption = Annotated[
    bool,
    typer.Option(
        "--compare",
        help="Run without speculation first, and say whether the tokens are the same and how much sooner they came; "
        "exit code 5 if they differ.",
        rich_help_panel=_SPECULATION,
    ),
]
TraceTokensOption = Annotated[
    bool,
    typer.Option(
        "--trace-tokens",
        help="Mark in the text which tokens were accepted drafts, corrections and bonus tokens.",
        rich_help_panel=_SPECULATION,
    ),
]
ShowConfigOption = Annotated[
    bool,
    typer.Option(
        "--show-config",
        help="Print every option with its value and who set it, and do nothing else.",
        rich_help_panel=_OUTPUT,
    ),
]
DraftTokensOption = Annotated[
    str | None,
    typer.Option(
        "--draft-tokens",
        metavar="N|auto",
        help="Drafts per round, from 0 for plain decoding to what the checkpoint's drafter makes "
        "(dspark_block_size), which is the default; auto = as many as pay, by measured step times and the drafter's "
        "confidence, none where plain decoding is faster. It changes the speed, never the text.",
        show_default=False,
        rich_help_panel=_SPECULATION,
    ),
]
ConfidenceThresholdOption = Annotated[
    float | None,
    typer.Option(
        "--confidence-threshold",
        metavar="P",
        help="Verify only the drafts before the first one that the drafter gives less than this chance (0 to 1).",
        show_default=False,
        rich_help_panel=_SPECULATION,
    ),
]
MethodOption = Annotated[
    str,
    typer.Option(
        "--method",
        metavar="dspark|eagle|ngram|none",
        help="Who proposes drafts: the checkpoint's own block drafter, an EAGLE layer that drafts token after "
        "token, a lookup of what followed earlier in the text, or nobody (plain decoding).",
        rich_help_panel=_SPECULATION,
    ),
]
DraftModelOption = Annotated[
    str | None,
    typer.Option(
        "--draft-model",
        metavar="FOLDER",
        help="The drafter of --method eagle, where it is not the checkpoint's eagle/.",
        show_default=False,
        rich_help_panel=_SPECULATION,
    ),
]
AcceptanceOption = Annotated[
    str,
    typer.Option(
        "--acceptance",
        metavar="match|rejection|block",
        help="How drafts are accepted: while they equal the target's own draws, or by the textbook's ratio test or "
        "block verification. All follow the target's law; only match gives the very tokens of plain decoding.",
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
