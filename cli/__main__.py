"""Entry point of the `specdecode` command and of `python -m specdecode.cli`."""

from __future__ import annotations

import sys

from specdecode.cli.interrupts import exit_when_interrupted


def main() -> None:
    """Run the command line."""
    exit_when_interrupted()
    from specdecode.cli.app import make_app  # here, so that a Ctrl-C during the import is a message, too

    # Rich draws the panels of options and takes 0.1 s to import: only a command's help page is worth that.
    arguments = sys.argv[1:]
    make_app(panels=len(arguments) > 1 and not {"-h", "--help"}.isdisjoint(arguments))()


if __name__ == "__main__":
    main()
