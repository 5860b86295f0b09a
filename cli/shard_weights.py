"""`specdecode shard-weights`: a checkpoint cut for several devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specdecode.cli import options

_WORK, _PLAN = "Work", "Plan"
HELP = (
    "Cut a checkpoint for several devices. The plan comes first: bytes of every family on every device.\n\n"
    "MODEL is a checkpoint folder or a preset; with --dry-run a config.json is enough. OUT is a folder that is empty, "
    "not there yet, or left by an interrupted run of the same command, which then goes on. It opens like any other. "
    "--merge restores the original files, byte for byte."
)
EXAMPLES = """Examples:

specdecode shard-weights deepseek-v4.1-flash --dry-run

specdecode shard-weights demo demo-tp2 --tp 2 --verify

specdecode shard-weights demo-tp2 --verify

specdecode shard-weights demo-tp2 demo-again --merge
"""


def shard_weights(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A checkpoint folder, a preset or, for a plan, a config.json.")
    ],
    out: Annotated[Path | None, typer.Argument(metavar="OUT", help="The folder to write.", show_default=False)] = None,
    tp: Annotated[
        int | None,
        typer.Option(
            "--tp",
            metavar="N",
            min=1,
            help="Tensor parallel on N devices: every large matrix is cut, all devices work on every token.",
            show_default=False,
            rich_help_panel=_PLAN,
        ),
    ] = None,
    ep: Annotated[
        int | None,
        typer.Option(
            "--ep",
            metavar="N",
            min=1,
            help="Expert parallel on N devices: routed experts are dealt out whole, the rest is replicated, and each "
            "device has its own requests.",
            show_default=False,
            rich_help_panel=_PLAN,
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            "--context",
            metavar="TOKENS",
            min=1,
            help="Length of a sequence for the caches of the plan; by default the preset's, or all that the model "
            "allows.",
            show_default=False,
            rich_help_panel=_PLAN,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            metavar="N",
            min=1,
            help="Sequences at a time over all devices, for the caches of the plan; by default the preset's, or 1.",
            show_default=False,
            rich_help_panel=_PLAN,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and write nothing.", rich_help_panel=_WORK)
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Read what was written again: SHA-256 of every file, and the original's bytes from the slices. "
            "Without --tp or --ep: check the finished folder OUT against MODEL, or MODEL by itself. "
            "Exit code 5 on a difference.",
            rich_help_panel=_WORK,
        ),
    ] = False,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Restore the original of the sharded folder MODEL in OUT.", rich_help_panel=_WORK),
    ] = False,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Read the options and run; `HELP` is the page that users see."""
    from specdecode.cli.errors import reported_errors

    with reported_errors(debug=debug):
        from specdecode.cli.sharding import Request, run

        run(
            Request(
                model=model,
                out=out,
                tp=tp,
                ep=ep,
                context=context,
                batch_size=batch_size,
                dry_run=dry_run,
                verify=verify,
                merge=merge,
            ),
            as_json=as_json,
            quiet=quiet,
        )
