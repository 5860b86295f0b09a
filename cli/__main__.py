"""Entry point of the `specdecode` command and of `python -m specdecode.cli`."""

from __future__ import annotations

import errno
import os
import sys

from specdecode.cli.interrupts import exit_when_interrupted


def main() -> None:
    """Run the command line."""
    exit_when_interrupted()
    # Imported here, so that a Ctrl-C during the import is a message, too.
    from specdecode.cli.streams import StandardOutputError, discard_stdout, replace_closed

    replace_closed()
    if sys.stdout is None:
        sys.exit(f"error: {StandardOutputError(OSError(errno.EBADF, os.strerror(errno.EBADF)))}")
    from specdecode.cli.app import make_app

    # Rich draws the panels of options and takes 0.1 s to import: only a command's help page is worth that.
    arguments = sys.argv[1:]
    try:
        make_app(panels=len(arguments) > 1 and not {"-h", "--help"}.isdisjoint(arguments))()
    except OSError as error:
        # Commands report their own errors, so this one comes from printing a help page.
        if "--debug" in arguments:
            raise
        discard_stdout()
        sys.exit(f"error: {StandardOutputError(error)}")


if __name__ == "__main__":
    main()
