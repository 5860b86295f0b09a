"""`python -m specdecode.max_arch serve --model CHECKPOINT …`: MAX's own command line with this architecture known.

`max serve` reads a checkpoint's configuration before it imports custom architectures, and the `transformers` that does
so does not know `deepseek_v41`. Importing the architecture first is all that differs.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run MAX's command line."""
    from max._entrypoints.pipelines import main as max_main

    import specdecode.max_arch as architecture

    option = "--custom-architectures"
    if "serve" in sys.argv[1:] and option not in sys.argv:
        sys.argv += [option, architecture.__name__]
    max_main()


if __name__ == "__main__":
    main()
