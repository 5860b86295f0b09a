"""What `specdecode serve-local` does once its options are read."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path

from specdecode.cli import loading
from specdecode.cli.engines import make_engine, make_widths
from specdecode.cli.output import Output
from specdecode.cli.proposers import RULES, Proposer, proposer
from specdecode.cli.settings import Settings
from specdecode.core.checkpoint.locate import locate_model
from specdecode.core.engine.costs import measure
from specdecode.core.engine.request import Request
from specdecode.core.errors import ExitCode, UsageError
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.server.answering import Server
from specdecode.core.server.app import make_app
from specdecode.core.server.memory import bound_free_memory, run_largest_step
from specdecode.core.server.metrics import Metrics
from specdecode.core.server.runner import Runner
from specdecode.core.server.serve import Life, bind, url
from specdecode.core.server.state import Loaded
from specdecode.core.server.translate import Translator
from specdecode.core.server.usage import UsageReport
from specdecode.core.text.tokenizer import TextTokenizer

_DEFAULT_LENGTH = 8192


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Options of serving: see `serve_options.py`."""

    host: str
    port: int
    api_key: str | None
    name: str | None
    max_length: int | None
    max_body: int
    max_queue: int
    drain: float
    debug: bool = False

    def __post_init__(self) -> None:
        if self.api_key is not None and not (self.api_key and self.api_key.isascii() and self.api_key.isprintable()):
            raise UsageError("--api-key (SPECDECODE_API_KEY) must be printable ASCII text, and not empty.")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is known before the model is loaded."""

    path: Path
    name: str
    max_length: int
    tokenizer: TextTokenizer
    proposer: Proposer
    width: int


def serve(settings: Settings, serving: Serving) -> ExitCode:
    """Open the port, load, serve; the exit code says how it ended."""
    bound_free_memory()
    with Output(quiet=settings.quiet) as output:
        plan = _plan(settings, serving)
        with bind(serving.host, serving.port) as listening:
            life, address = _life(settings, serving, plan, output), url(listening)

            def ready() -> None:
                output.note("ready")
                output.text(f"{address}\n")

            life.ready = ready
            return life.run(listening)


def _plan(settings: Settings, serving: Serving) -> Plan:
    """Read configuration and tokenizer.

    Raises:
        UsageError: an option is not possible. ModelError: the checkpoint cannot be used.
    """
    if not settings.model:
        raise UsageError("MODEL is empty. Name a checkpoint folder or a preset.")
    path = locate_model(settings.model)
    config = DeepseekV41Config.from_json(path)
    source = proposer(settings, path, config)
    context = config.text_config.max_position_embeddings
    asked = serving.max_length
    if asked is not None and asked > context:
        raise UsageError(f"--max-length {asked} is more than the model's context, {context} (max_position_embeddings).")
    return Plan(
        path=path,
        name=serving.name or path.resolve().name,
        max_length=asked or min(context, _DEFAULT_LENGTH),
        tokenizer=TextTokenizer.of(path, config),
        proposer=source,
        width=source.width(settings.draft_tokens),
    )


def _life(settings: Settings, serving: Serving, plan: Plan, output: Output) -> Life:
    def log(message: str, error: Exception) -> None:
        output.error(f"{message}: {type(error).__name__}: {error}")
        if serving.debug:
            output.error("".join(traceback.format_exception(error)))

    runner = Runner(
        batch=settings.batch_size, waiting=serving.max_queue, metrics=Metrics(plan.name, plan.width), log=log
    )
    method = settings.method if plan.width else "none"
    server = Server(
        runner=runner,
        translator=Translator(
            model=plan.name,
            tokenizer=plan.tokenizer,
            max_length=plan.max_length,
            drafts=plan.width,
            most=runner.capacity,
        ),
        report=UsageReport(tokenizer=plan.tokenizer, method=method, drafts=plan.width),
        max_body=serving.max_body,
        api_key=serving.api_key,
    )
    return Life(
        app=make_app(server),
        runner=runner,
        load=lambda: _load(settings, plan, runner, output),
        prepare=_import_max,
        drain=serving.drain,
        note=output.note,
    )


def _import_max() -> None:
    """MAX enters a context where it is imported, and leaves it in the main thread at exit."""
    import max.engine
    import max.graph  # noqa: F401


def _load(settings: Settings, plan: Plan, runner: Runner, output: Output) -> Loaded:
    model = loading.load_step_model(
        plan.path,
        devices=settings.devices,
        data_parallel_degree=settings.data_parallel_degree,
        max_length=plan.max_length,
        max_batch=settings.batch_size,
        progress=output,
        drafter=plan.proposer.folder if plan.width else None,
        resident=True,
    )
    output.note(plan.proposer.describe(plan.width, RULES[settings.acceptance]))
    costs = measure(model, max_batch=settings.batch_size)
    run_largest_step(model, max_batch=settings.batch_size)
    engine = make_engine(
        settings,
        model,
        plan.tokenizer,
        make_widths(settings, model.block_size, lambda: costs),
        observer=runner.observe,
        failures=runner.failed,
    )
    plan.tokenizer.token_bytes(0)  # its table of bytes is made now and not while somebody waits
    warm_up = Request(prompt=(plan.tokenizer.bos,), max_tokens=1, draft_tokens=plan.width)
    return Loaded(engine=engine, costs=costs, warm_up=warm_up)
