"""`specdecode serve-local`: an OpenAI-compatible server on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from specdecode.cli import options, serve_options

HELP = (
    "Serve a model to OpenAI clients. /v1/completions and /v1/chat/completions, with streaming, on this machine.\n\n"
    "MODEL is a checkpoint folder or a preset. /ready says when requests are answered, /metrics counts for Prometheus, "
    "and / is a page that shows which tokens were drafted. The address is printed once the server is ready; SIGTERM or "
    "Ctrl-C ends it when the running answers are finished."
)
EXAMPLES = """Examples:

specdecode serve-local

specdecode serve-local demo --port 8080 --batch-size 16

SPECDECODE_API_KEY=secret specdecode serve-local --host 0.0.0.0

specdecode serve-local demo --draft-tokens auto --max-queue 64

curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' -d '{"prompt": "And God said"}'
"""


def serve_local(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A checkpoint folder, or a preset.")] = "demo",
    host: serve_options.HostOption = "127.0.0.1",
    port: serve_options.PortOption = 8000,
    api_key: serve_options.ApiKeyOption = None,
    served_model_name: serve_options.ServedModelNameOption = None,
    max_length: serve_options.MaxLengthOption = None,
    max_body: serve_options.MaxBodyOption = 1 << 20,
    max_queue: serve_options.MaxQueueOption = 256,
    drain_timeout: serve_options.DrainTimeoutOption = 30.0,
    method: options.MethodOption = "dspark",
    draft_model: options.DraftModelOption = None,
    draft_tokens: options.DraftTokensOption = None,
    confidence_threshold: options.ConfidenceThresholdOption = None,
    acceptance: options.AcceptanceOption = "match",
    no_speculation: options.NoSpeculationOption = False,
    devices: options.DevicesOption = "cpu",
    data_parallel_degree: options.DataParallelOption = 1,
    batch_size: options.BatchSizeOption = 8,
    quiet: options.QuietOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Read the options and run; `HELP` is the page that users see."""
    from specdecode.cli.errors import reported_errors

    with reported_errors(debug=debug):
        from specdecode.cli.generate import width
        from specdecode.cli.serving import Serving, serve
        from specdecode.cli.settings import Settings

        settings = Settings(
            model=model,
            devices=devices,
            data_parallel_degree=data_parallel_degree,
            batch_size=batch_size,
            method=method,
            draft_model=draft_model,
            draft_tokens=width(draft_tokens, no_speculation, method),
            auto_width=draft_tokens == "auto",
            confidence_threshold=confidence_threshold,
            acceptance=acceptance,
            quiet=quiet,
        )
        serving = Serving(
            host=host,
            port=port,
            api_key=api_key,
            name=served_model_name,
            max_length=max_length,
            max_body=max_body,
            max_queue=max_queue,
            drain=drain_timeout,
            debug=debug,
        )
        raise typer.Exit(serve(settings, serving))
