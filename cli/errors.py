"""From exceptions to one message on standard error and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from specdecode.cli.streams import discard_stdout
from specdecode.core.errors import ExitCode, SpecdecodeError


@contextmanager
def reported_errors(*, debug: bool) -> Iterator[None]:
    """Turn what escapes the body into a message and an exit; with `debug`, let it pass with its traceback."""
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError:
        # Whoever read the output has seen enough. Python must not complain when it flushes at exit.
        discard_stdout()
        raise typer.Exit(ExitCode.FAILURE) from None
    except SpecdecodeError as error:
        if debug:
            raise
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        if debug:
            raise
        typer.echo(
            f"internal error: {type(error).__name__}: {error}\nThis is a defect of specdecode. Run the "
            "command again "
            "with --debug for a traceback to report.",
            err=True,
        )
        raise typer.Exit(ExitCode.FAILURE) from None
