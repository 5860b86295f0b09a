"""The command line as a whole. Everything heavy is imported inside commands, so that help is instant."""

from __future__ import annotations

from typing import Annotated

import typer

from specdecode.cli import bench, inspect_inputs, serve_local, shard_weights
from specdecode.cli.generate import EXAMPLES, HELP, generate
from specdecode.cli.program import Program


def make_app(*, panels: bool = True) -> typer.Typer:
    """Build the application.

    Args:
        panels: group options into panels in help pages (imports Rich).
    """
    app = typer.Typer(
        name="specdecode",
        cls=Program,
        help="DeepSeek-V4.1 with its DSpark drafter: the same tokens as without speculation, only sooner.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if panels else None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback()(_root)
    app.command(help=HELP, epilog=EXAMPLES)(generate)
    app.command("bench", help=bench.HELP, epilog=bench.EXAMPLES)(bench.bench)
    command = app.command("inspect-inputs", help=inspect_inputs.HELP, epilog=inspect_inputs.EXAMPLES)
    command(inspect_inputs.inspect_inputs)
    command = app.command("serve-local", help=serve_local.HELP, epilog=serve_local.EXAMPLES)
    command(serve_local.serve_local)
    command = app.command("shard-weights", help=shard_weights.HELP, epilog=shard_weights.EXAMPLES)
    command(shard_weights.shard_weights)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"specdecode {version('specdecode')} (MAX {version('max')})")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the versions of specdecode and MAX and exit.",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    """Options of the program itself; they act in their callbacks."""
