"""`specdecode bench`: speed and acceptance, against plain decoding in the same run."""

from __future__ import annotations

from typing import Annotated

import typer

from specdecode.cli import options

HELP = (
    "Measure speed and acceptance. Every mode answers the same prompts in turn with plain decoding, on one model in "
    "one process, and every token is compared; a table goes to standard output, progress to standard error.\n\n"
    "PROMPTS are sets by name (own, the default; humaneval and mt-bench from their packages; random, which is refused "
    "unless forced) or files as generate takes them. --batch, --draft-tokens, --method, --temperature and --devices "
    "take lists: everything is measured at every combination.\n\n"
    "With --base-url a running server is measured instead, its counters of speculation read before and after."
)
EXAMPLES = """Examples:

specdecode bench

specdecode bench --batch 1,8 --draft-tokens 3,5,auto --method dspark,ngram

specdecode bench examples/prompts.jsonl humaneval --per-category 8

specdecode bench --category code,chat --json --save before.json

specdecode bench --category code,chat --baseline before.json --limit 0.1

specdecode bench --plot speed.svg

specdecode bench --base-url http://127.0.0.1:8000 --batch 1,4
"""
_PROMPTS, _SWEEP, _MEASURING, _RESULT = "Prompts", "Sweeps", "Measuring", "Result"


def bench(
    context: typer.Context,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPTS", help="Sets and files of prompts; - is standard input.", show_default="own"),
    ] = None,
    category: Annotated[
        str | None,
        typer.Option(
            "--category",
            metavar="NAME,…",
            help="Only these categories: a row's category, or else its file's name.",
            show_default=False,
            rich_help_panel=_PROMPTS,
        ),
    ] = None,
    per_category: Annotated[
        int | None,
        typer.Option(
            "--per-category",
            metavar="N",
            min=1,
            help="The first N prompts of each category.",
            show_default=False,
            rich_help_panel=_PROMPTS,
        ),
    ] = None,
    force_random: Annotated[
        bool,
        typer.Option(
            "--force-random",
            help="Measure random characters all the same; rows are labelled.",
            rich_help_panel=_PROMPTS,
        ),
    ] = False,
    batch: Annotated[
        str,
        typer.Option("--batch", metavar="N,…", help="How many prompts start together.", rich_help_panel=_SWEEP),
    ] = "1",
    draft_tokens: Annotated[
        str | None,
        typer.Option(
            "--draft-tokens",
            metavar="N|auto,…",
            help="Drafts per round; auto = as many as pay. By default as many as each drafter makes. Plain decoding is "
            "always measured too.",
            show_default=False,
            rich_help_panel=_SWEEP,
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method", metavar="NAME,…", help="Who drafts: dspark, eagle, ngram, none.", rich_help_panel=_SWEEP
        ),
    ] = "dspark",
    temperature: Annotated[
        str,
        typer.Option("--temperature", metavar="T,…", help="0 takes the likeliest token.", rich_help_panel=_SWEEP),
    ] = "0",
    devices: Annotated[
        str,
        typer.Option(
            "--devices",
            metavar="cpu|gpu:N|N|cpuxN,…",
            help="Where to run; a number is that many GPUs, cpux2 two logical shards on the CPU.",
            rich_help_panel=_SWEEP,
        ),
    ] = "cpu",
    data_parallel_degree: options.DataParallelOption = 1,
    max_tokens: options.MaxTokensOption = 64,
    ignore_eos: options.IgnoreEosOption = False,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, help="Key of the draws.", rich_help_panel=_MEASURING)
    ] = 0,
    repeats: Annotated[
        int,
        typer.Option(
            "--repeats", metavar="N", min=1, help="Times that everything is measured.", rich_help_panel=_MEASURING
        ),
    ] = 3,
    warm_up: Annotated[
        int,
        typer.Option(
            "--warm-up", metavar="N", min=0, help="Runs of each mode that do not count.", rich_help_panel=_MEASURING
        ),
    ] = 1,
    base_url: Annotated[
        str | None,
        typer.Option(
            "--base-url",
            metavar="URL",
            help="Measure the OpenAI-compatible server there; --batch is then requests at once.",
            show_default=False,
            rich_help_panel=_MEASURING,
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            envvar="SPECDECODE_API_KEY",
            help="The server's bearer token; better set in the environment, where no list of processes shows it.",
            show_default=False,
            show_envvar=True,
            rich_help_panel=_MEASURING,
        ),
    ] = None,
    model: options.ModelOption = "demo",
    draft_model: options.DraftModelOption = None,
    save: Annotated[
        str | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="Write the JSON document to FILE, too.",
            show_default=False,
            rich_help_panel=_RESULT,
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Let --save and --plot replace a file.", rich_help_panel=_RESULT),
    ] = False,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="FILE",
            help="Compare with a saved document; exit code 5 on a regression.",
            show_default=False,
            rich_help_panel=_RESULT,
        ),
    ] = None,
    limit: Annotated[
        float,
        typer.Option(
            "--limit",
            metavar="SHARE",
            min=0,
            max=1,
            help="The share that a figure may lose against the baseline.",
            rich_help_panel=_RESULT,
        ),
    ] = 0.1,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw tokens per second into a .png or .svg file (needs matplotlib).",
            show_default=False,
            rich_help_panel=_RESULT,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="End standard output with one line of JSON; with --quiet it is the only one.",
            rich_help_panel=_RESULT,
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no definitions.", rich_help_panel=_RESULT)
    ] = False,
    debug: options.DebugOption = False,
) -> None:
    """Read the options and run; `HELP` is the page that users see."""
    from specdecode.cli.errors import reported_errors

    with reported_errors(debug=debug):
        # Imported here, because these import NumPy, and a help page must not wait for it.
        from specdecode.cli.bench_settings import BenchSettings
        from specdecode.cli.benchmark import run

        # In the order of the help page; the context has them in the order of the command line.
        asked = [parameter for parameter in context.command.params if parameter.name not in ("debug", "help")]
        settings = BenchSettings.read(
            {parameter.name or "": context.params[parameter.name or ""] for parameter in asked},
            named=options.named(context),
        )
        raise typer.Exit(run(settings))
