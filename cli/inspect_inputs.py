"""`specdecode inspect-inputs`: what the step graph takes and gives."""

from __future__ import annotations

from typing import Annotated

import typer

from specdecode.cli import options

HELP = (
    "Show the step graph's inputs and outputs. One line for each, in graph order, without weights or a compiler.\n\n"
    "MODEL is a checkpoint folder or a preset. With --prompt the shapes and the first values are those of a real step: "
    "of the whole prompt (prefill), of its last token (decode), or of a round that verifies its last tokens as drafts "
    "(verify)."
)
EXAMPLES = """Examples:

specdecode inspect-inputs demo

specdecode inspect-inputs demo --prompt 'In the beginning God created' --phase verify

specdecode inspect-inputs demo --devices gpu:0 --no-structured-output --json

specdecode inspect-inputs demo --devices gpu:0,1 --data-parallel-degree 2

specdecode inspect-inputs demo --method eagle

specdecode inspect-inputs --diff demo demo
"""


def inspect_inputs(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A checkpoint folder, or a preset.")] = "demo",
    devices: options.DevicesOption = "cpu",
    data_parallel_degree: options.DataParallelOption = 1,
    structured_output: Annotated[
        bool,
        typer.Option("--structured-output/--no-structured-output", help="Whether the graph takes grammar masks."),
    ] = True,
    method: options.MethodOption = "dspark",
    draft_model: options.DraftModelOption = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="Fill in shapes and values for this text.")
    ] = None,
    phase: Annotated[
        str, typer.Option("--phase", metavar="prefill|decode|verify", help="Which step of the prompt.")
    ] = "prefill",
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--diff",
            metavar="A B",
            help="Compare two checkpoints instead; exit code 3 if B's drafter cannot serve A.",
            show_default=False,
        ),
    ] = None,
    as_json: options.JsonOption = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
    debug: options.DebugOption = False,
) -> None:
    """Read the options and run; `HELP` is the page that users see."""
    from specdecode.cli.errors import reported_errors

    with reported_errors(debug=debug):
        from specdecode.cli.inspection import compare, show

        if diff is not None:
            raise typer.Exit(compare(*diff, as_json=as_json))
        show(
            model,
            devices=devices,
            data_parallel_degree=data_parallel_degree,
            structured_output=structured_output,
            method=method,
            draft_model=draft_model,
            prompt=prompt,
            phase=phase,
            as_json=as_json,
            markdown=markdown,
        )
