"""`specdecode generate`: continue prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from specdecode.cli import options

if TYPE_CHECKING:
    pass

HELP = (
    "Continue prompts. The text goes to standard output, progress and statistics to standard error.\n\n"
    "The drafter proposes a block of tokens and the model verifies it in one step. The text is the same "
    "for every "
    "--draft-tokens and --batch-size, and with --no-speculation; only the time changes."
)
EXAMPLES = """Examples:

specdecode generate examples/prompts.txt

echo 'To be, or not to be' | specdecode generate - --temperature 0

specdecode generate -p 'def main(' --draft-tokens 2 --json
"""


def generate(
    prompts: Annotated[
        str | None,
        typer.Argument(metavar="PROMPTS", help="A text file with one prompt a line, or - for standard input."),
    ] = None,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", metavar="TEXT", help="A prompt; may be repeated.")
    ] = None,
    max_tokens: options.MaxTokensOption = 64,
    temperature: options.TemperatureOption = 0.7,
    seed: options.SeedOption = 0,
    draft_tokens: options.DraftTokensOption = None,
    no_speculation: options.NoSpeculationOption = False,
    model: options.ModelOption = "demo",
    devices: options.DevicesOption = "cpu",
    batch_size: options.BatchSizeOption = 8,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Read the options and run; `HELP` is the page that users see."""
    from specdecode.cli.errors import reported_errors

    with reported_errors(debug=debug):
        # Imported here, because these import NumPy, and a help page must not wait for it.
        from specdecode.cli.generation import Settings, run

        settings = Settings(
            source=prompts,
            texts=tuple(prompt or ()),
            model=model,
            devices=devices,
            batch_size=batch_size,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            draft_tokens=_width(draft_tokens, no_speculation),
            as_json=as_json,
            quiet=quiet,
        )
        raise typer.Exit(run(settings))


def _width(draft_tokens: int | None, no_speculation: bool) -> int | None:
    from specdecode.core.errors import UsageError

    if no_speculation and draft_tokens:
        raise UsageError(f"--no-speculation and --draft-tokens {draft_tokens} contradict each other. Leave one out.")
    return 0 if no_speculation else draft_tokens
