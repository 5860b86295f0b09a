"""From settings to an engine: who drafts, how wide, by which rule."""

from __future__ import annotations

from collections.abc import Callable

from specdecode.cli.settings import Settings
from specdecode.core.engine.costs import StepCosts
from specdecode.core.engine.engine import Engine
from specdecode.core.engine.ngram import PromptLookup
from specdecode.core.engine.report import StepReport
from specdecode.core.engine.step import Acceptance, StepModel
from specdecode.core.engine.widths import AutoWidth, ConfidenceThreshold, WidthPolicy
from specdecode.core.text.tokenizer import TextTokenizer


def make_engine(
    settings: Settings,
    model: StepModel,
    tokenizer: TextTokenizer,
    widths: WidthPolicy | None,
    *,
    observer: Callable[[StepReport], None] | None = None,
    failures: Callable[[Exception], None] | None = None,
) -> Engine:
    """An engine as the options ask for."""
    return Engine(
        model,
        max_batch=settings.batch_size,
        tokenizer=tokenizer,
        widths=widths,
        acceptance=Acceptance[settings.acceptance.upper()],
        proposer=PromptLookup if settings.method == "ngram" else None,
        observer=observer,
        failures=failures,
    )


def make_widths(settings: Settings, block: int, costs: Callable[[], StepCosts | None]) -> WidthPolicy | None:
    """How many drafts are verified; None = all. `costs` is asked where widths depend on them."""
    if settings.confidence_threshold is not None:
        return ConfidenceThreshold(settings.confidence_threshold)
    found = costs() if settings.auto_width else None
    return None if found is None else AutoWidth(costs=found, block=block)
