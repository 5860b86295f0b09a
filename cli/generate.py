"""`specdecode generate`: continue prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from specdecode.cli import options, sampling_options, structured_options

HELP = (
    "Continue prompts. The text goes to standard output, progress and statistics to standard error.\n\n"
    "PROMPTS holds texts, one a line, or JSON objects: {prompt}, {messages}, {turns}, {conversations} or the requests "
    "of an OpenAI batch, gzipped or not. A row may set options for itself, and they go before those given here.\n\n"
    "The drafter proposes a block of tokens and the model verifies it in one step. Unless --acceptance says otherwise, "
    "the text is the same for every --draft-tokens and --batch-size, and with --no-speculation; only the time changes."
)
EXAMPLES = """Examples:

specdecode generate examples/prompts.txt

echo 'To be, or not to be' | specdecode generate - --temperature 0

specdecode generate -p 'def main(' --stop 'def ' --json

specdecode generate examples/prompts.jsonl --output answers.jsonl --resume

specdecode generate -p 'And God said' --top-p 0.9 --n 3

specdecode generate -p 'Moses' --chat --json-schema '{"type": "object"}'

specdecode generate examples/prompts.txt --compare

specdecode generate examples/prompts.txt --draft-tokens auto

specdecode generate examples/prompts.txt --confidence-threshold 0.5
"""


def generate(
    context: typer.Context,
    prompts: Annotated[
        str | None,
        typer.Argument(metavar="PROMPTS", help="A file of prompts, or - for standard input."),
    ] = None,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", metavar="TEXT", help="A prompt; may be repeated.")
    ] = None,
    chat: options.ChatOption = None,
    system: options.SystemOption = None,
    thinking: options.ThinkingOption = None,
    effort: options.EffortOption = None,
    max_tokens: options.MaxTokensOption = 64,
    min_tokens: options.MinTokensOption = 0,
    stop: options.StopOption = None,
    stop_token_ids: options.StopTokenOption = None,
    include_stop: options.IncludeStopOption = False,
    ignore_eos: options.IgnoreEosOption = False,
    temperature: sampling_options.TemperatureOption = 0.7,
    top_k: sampling_options.TopKOption = 0,
    top_p: sampling_options.TopPOption = 1.0,
    min_p: sampling_options.MinPOption = 0.0,
    repetition_penalty: sampling_options.RepetitionPenaltyOption = 1.0,
    frequency_penalty: sampling_options.FrequencyPenaltyOption = 0.0,
    presence_penalty: sampling_options.PresencePenaltyOption = 0.0,
    logit_bias: sampling_options.LogitBiasOption = None,
    logprobs: sampling_options.LogprobsOption = None,
    seed: sampling_options.SeedOption = 0,
    n: sampling_options.SamplesOption = 1,
    json_schema: structured_options.JsonSchemaOption = None,
    json_object: structured_options.JsonObjectOption = False,
    regex: structured_options.RegexOption = None,
    grammar: structured_options.GrammarOption = None,
    thinking_budget: structured_options.ThinkingBudgetOption = None,
    method: options.MethodOption = "dspark",
    draft_model: options.DraftModelOption = None,
    draft_tokens: options.DraftTokensOption = None,
    confidence_threshold: options.ConfidenceThresholdOption = None,
    acceptance: options.AcceptanceOption = "match",
    no_speculation: options.NoSpeculationOption = False,
    compare: options.CompareOption = False,
    trace_tokens: options.TraceTokensOption = False,
    model: options.ModelOption = "demo",
    devices: options.DevicesOption = "cpu",
    data_parallel_degree: options.DataParallelOption = 1,
    batch_size: options.BatchSizeOption = 8,
    output: options.OutputOption = None,
    output_format: options.OutputFormatOption = "auto",
    resume: options.ResumeOption = False,
    as_completed: options.AsCompletedOption = False,
    show_config: options.ShowConfigOption = False,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Read the options and run; `HELP` is the page that users see."""
    from specdecode.cli.errors import reported_errors

    with reported_errors(debug=debug):
        # Imported here, because these import NumPy, and a help page must not wait for it.
        from specdecode.cli.generation import run
        from specdecode.cli.settings import Settings
        from specdecode.cli.structured_output import chosen

        form = chosen(schema=json_schema, json_object=json_object, regex=regex, grammar=grammar)
        settings = Settings(
            source=prompts,
            texts=tuple(prompt or ()),
            model=model,
            devices=devices,
            data_parallel_degree=data_parallel_degree,
            batch_size=batch_size,
            given={**_given(context), **({} if form is None else {"grammar": form})},
            named=options.named(context),
            chat=chat,
            system=system,
            output=output,
            output_format=output_format,
            resume=resume,
            as_completed=as_completed,
            compare=compare,
            trace_tokens=trace_tokens,
            show_config=show_config,
            method=method,
            draft_model=draft_model,
            draft_tokens=width(draft_tokens, no_speculation, method),
            auto_width=draft_tokens == "auto",
            confidence_threshold=confidence_threshold,
            acceptance=acceptance,
            as_json=as_json,
            quiet=quiet,
        )
        raise typer.Exit(run(settings))


def _given(context: typer.Context) -> Mapping[str, object]:
    """Options of a prompt that were on the command line."""
    from specdecode.cli.settings import FALLBACKS

    values = {name: context.params[name] for name in FALLBACKS if name in options.named(context)}
    if "logit_bias" in values:
        values["logit_bias"] = _biases(values["logit_bias"])
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _biases(texts: list[str]) -> Mapping[int, float]:
    from specdecode.core.errors import UsageError

    biases: dict[int, float] = {}
    for text in texts:
        token, _, value = text.partition("=")
        try:
            number, bias = int(token), float(value)
        except ValueError:
            raise UsageError(
                f"--logit-bias {text} is not possible. Write a token id and a number, as 17=-2.5."
            ) from None
        if biases.setdefault(number, bias) != bias:
            raise UsageError(f"--logit-bias names the token {number} twice. Leave one out.")
    return biases


def width(draft_tokens: str | None, no_speculation: bool, method: str) -> int | None:
    """What `--draft-tokens` and its like ask for; None = what the checkpoint says.

    Raises:
        UsageError: they contradict each other.
    """
    from specdecode.core.errors import UsageError

    if draft_tokens not in (None, "auto") and not draft_tokens.isdecimal():
        raise UsageError(f"--draft-tokens {draft_tokens} is neither a whole number nor auto.")
    plain = "--no-speculation" if no_speculation else "--method none" if method == "none" else None
    if plain and draft_tokens not in (None, "0"):
        raise UsageError(f"{plain} and --draft-tokens {draft_tokens} contradict each other. Leave one out.")
    if plain:
        return 0
    return None if draft_tokens in (None, "auto") else int(draft_tokens)
