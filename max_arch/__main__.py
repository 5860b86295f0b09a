"""`python -m specdecode.max_arch serve --model CHECKPOINT …`: MAX's own command line with this architecture known.

`max serve` reads a checkpoint's configuration before it imports custom architectures, and the `transformers` that does
so does not know `deepseek_v41`. Importing the architecture first is all that differs.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run MAX's command line."""
    try:
        from max._entrypoints.pipelines import main as max_main

        import specdecode.max_arch as architecture
    except ModuleNotFoundError as error:
        print(
            f"error: max serve is not installed here (there is no {error.name}). Get it in the project's folder with a "
            "current pip: pip install -U pip, then pip install '.[max]'.",
            file=sys.stderr,
        )
        raise SystemExit(1) from None

    option = "--custom-architectures"
    if "serve" in sys.argv[1:] and option not in sys.argv:
        sys.argv += [option, architecture.__name__]
    max_main()


if __name__ == "__main__":
    main()
