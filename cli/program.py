"""The parser's refusals, in the words and the style of the program's own errors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from specdecode.cli.streams import printable


class Program(TyperGroup):
    """A group of commands that reports what the parser refuses in one line."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Parse and run; unless told otherwise, end the process."""
        arguments = sys.argv[1:] if args is None else list(args)
        try:
            result = super().main(arguments, prog_name, complete_var, False, windows_expand_args, **extra)
        except typer.TyperException as error:
            if not standalone_mode:
                raise
            # Without any argument the message is the help page.
            message = f"error: {_described(error)}" if arguments else error.format_message()
            typer.echo(printable(message, sys.stderr), err=True)
            sys.exit(error.exit_code)
        if standalone_mode:
            sys.exit(result)
        return result


def _described(error: typer.TyperException) -> str:
    message = error.format_message().rstrip(".")
    if isinstance(error, typer.BadParameter) and error.param is not None and error.__cause__ is not None:
        # What a value was refused for is a validation error, which knows the value.
        details: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
        if details:
            reason = error.message.split(",")[0].replace("Input should be", "it must be").rstrip(".")
            message = f"{error.param.opts[0]} {details[0]['input']} is not possible: {reason}"
    context = getattr(error, "ctx", None)
    return f"{message}. See {context.command_path} --help." if context else f"{message}."
