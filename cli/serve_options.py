"""Options of `serve-local` alone."""

from __future__ import annotations

from typing import Annotated

import typer

_SERVING = "Serving"

HostOption = Annotated[
    str,
    typer.Option("--host", metavar="ADDRESS", help="Where to listen; 0.0.0.0 = everywhere.", rich_help_panel=_SERVING),
]
PortOption = Annotated[
    int,
    typer.Option(
        "--port",
        metavar="N",
        min=0,
        max=65535,
        help="The port, which is opened before the model is loaded; 0 = any that is free.",
        rich_help_panel=_SERVING,
    ),
]
ApiKeyOption = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        metavar="KEY",
        envvar="SPECDECODE_API_KEY",
        help="What requests to /v1 must bring as a bearer token; better set in the environment, where no list of "
        "processes shows it.",
        show_default=False,
        show_envvar=False,
        rich_help_panel=_SERVING,
    ),
]
ServedModelNameOption = Annotated[
    str | None,
    typer.Option(
        "--served-model-name",
        metavar="NAME",
        help="What the API calls the model; by default the last part of MODEL.",
        show_default=False,
        rich_help_panel=_SERVING,
    ),
]
MaxLengthOption = Annotated[
    int | None,
    typer.Option(
        "--max-length",
        metavar="N",
        min=2,
        help="The most tokens of a prompt and its answer together; caches are sized by it. By default the model's "
        "context, but not more than 8192.",
        show_default=False,
        rich_help_panel=_SERVING,
    ),
]
MaxBodyOption = Annotated[
    int,
    typer.Option(
        "--max-body",
        metavar="BYTES",
        min=1,
        help="Larger bodies are refused (413).",
        rich_help_panel=_SERVING,
    ),
]
MaxQueueOption = Annotated[
    int,
    typer.Option(
        "--max-queue",
        metavar="N",
        min=0,
        help="Answers that may wait beside those that run; further requests are refused (429).",
        rich_help_panel=_SERVING,
    ),
]
DrainTimeoutOption = Annotated[
    float,
    typer.Option(
        "--drain-timeout",
        metavar="SECONDS",
        min=0.0,
        help="How long running answers may go on after SIGTERM or Ctrl-C.",
        rich_help_panel=_SERVING,
    ),
]
