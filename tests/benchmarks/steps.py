"""How long one step takes, by draft width, with and without drafting the next block."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from specdecode.core.bench.spread import Spread
from specdecode.core.engine.step import StepRow
from specdecode.core.models.deepseek_v41.unified.model import UnifiedDSparkDeepseekV41Model

WARM_UP = 8  # the first steps of a kind try out thread counts


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Milliseconds of a step of `batch` requests with `width` drafts each; `draft`: it also drafts the next block."""

    batch: int
    width: int
    draft: bool
    ms: Spread


def step_times(
    model: UnifiedDSparkDeepseekV41Model,
    texts: Sequence[Sequence[int]],
    prompt_length: int,
    *,
    repeats: int,
    calls: int,
) -> list[StepTime]:
    """Time every width with and without drafting, all kinds in turn, for a batch of all texts.

    Each text is cached up to `prompt_length`; the step runs its next token and verifies those after it. It is the
    same step again and again, so it writes the same rows to the same places.

    Args:
        texts: prompt and output of requests; each longer than `prompt_length` by the block at least.
        repeats: medians to take.
        calls: steps behind each median.
    """
    need = -(-(prompt_length + 1 + model.block_size) // model.page_size)
    if need * len(texts) > model.num_pages:
        raise ValueError(f"{len(texts)} texts need {need * len(texts)} pages, and the model has {model.num_pages}")
    pages = [tuple(range(place * need, (place + 1) * need)) for place in range(len(texts))]
    model.step([_row(model, t, p, 0, prompt_length, 0) for t, p in zip(texts, pages, strict=True)], width=0, draft=True)
    kinds = [(width, draft) for width in range(model.block_size + 1) for draft in (False, True)]
    taken: dict[tuple[int, bool], list[float]] = {kind: [] for kind in kinds}
    for repeat in range(repeats):
        warm_up = 1 if repeat else WARM_UP
        for width, draft in kinds:
            rows = [_row(model, t, p, prompt_length, 1, width) for t, p in zip(texts, pages, strict=True)]
            for _ in range(warm_up):
                model.step(rows, width=width, draft=draft)
            times = []
            for _ in range(calls):
                before = time.perf_counter()
                model.step(rows, width=width, draft=draft)
                times.append(1e3 * (time.perf_counter() - before))
            taken[width, draft].append(median(times))
    return [StepTime(batch=len(texts), width=w, draft=d, ms=Spread.of(ms)) for (w, d), ms in taken.items()]


def _row(
    model: UnifiedDSparkDeepseekV41Model, text: Sequence[int], pages: tuple[int, ...], at: int, count: int, width: int
) -> StepRow:
    return StepRow(
        tokens=text[at : at + count],
        cache_length=at,
        pages=pages,
        draft_tokens=text[at + count : at + count + width],
        lookback=text[max(0, at - model.lookback_length) : at],
        seed=0,
        temperature=0.0,
    )
