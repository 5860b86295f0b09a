"""Random steps of several requests, and everything that a model answers to one, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from max.driver import Buffer

from specdecode.core.engine.step import StepRow
from specdecode.core.models.deepseek_v41.unified.model import UnifiedDSparkDeepseekV41Model

REQUESTS = 8


class Steps:
    """Random steps of eight requests: prompt chunks and verify rounds, any number and order of them at a time.

    Args:
        model: whose vocabulary, context and pages they fit; each request has an eighth of the pages.
        count: of steps.
        seed: of everything.
    """

    def __init__(self, model: UnifiedDSparkDeepseekV41Model, *, count: int, seed: int) -> None:
        self.model, self.count = model, count
        self.rng = np.random.default_rng(seed)
        self.own = model.num_pages // REQUESTS
        self.length = min(model.max_length, self.own * model.page_size - model.block_size)
        self.texts = [self.rng.integers(3, model.vocab_size - 8, self.length).tolist() for _ in range(REQUESTS)]
        self.cached = [0] * REQUESTS

    def __iter__(self) -> Iterator[tuple[list[StepRow], int, bool]]:
        for _ in range(self.count):
            width = int(self.rng.integers(self.model.block_size + 1))
            chosen = sorted(self.rng.permutation(REQUESTS)[: int(self.rng.integers(1, REQUESTS + 1))].tolist())
            yield [self.row(slot, width) for slot in chosen], width, bool(self.rng.integers(4))

    def row(self, slot: int, width: int) -> StepRow:
        """The next chunk of a request, and drafts that are its own text, right by chance only."""
        at = self.cached[slot]
        count = int(self.rng.integers(1, 8))
        if at + count + self.model.block_size > self.length:
            at = 0
        drafts = self.texts[slot][at + count : at + count + int(self.rng.integers(width + 1))]
        self.cached[slot] = at + count
        return StepRow(
            tokens=self.texts[slot][at : at + count],
            cache_length=at,
            pages=tuple(range(slot * self.own, (slot + 1) * self.own)),
            draft_tokens=tuple(drafts),
            lookback=self.texts[slot][max(0, at - self.model.lookback_length) : at],
            seed=slot,
            temperature=(0.0, 1.0)[slot % 2],
        )


def forget(*models: UnifiedDSparkDeepseekV41Model) -> None:
    """Zero the caches: a draft reads context rows that a step without drafts has left as they were."""
    for model in models:
        runtime = model.batch_processor.runtime
        for leaves in (runtime.leaves, *runtime.peers):
            for leaf in leaves.values():
                zeros = np.zeros(tuple(leaf.shape), np.float32)
                if leaf.device.is_host:
                    leaf.to_numpy()[...] = zeros
                else:
                    leaf.inplace_copy_from(Buffer.from_numpy(zeros))
                    leaf.device.synchronize()


def answers(model: UnifiedDSparkDeepseekV41Model, rows: Sequence[StepRow], width: int, draft: bool) -> dict[str, bytes]:
    """Bits of everything that a step gives."""
    result = model.step(rows, width=width, draft=draft)
    assert result.finite.all()
    assert result.logits is not None
    assert result.draft_logits is not None
    return {
        "logits": result.logits().tobytes(),
        "accepted": result.num_accepted.tobytes(),
        "tokens": result.next_tokens.tobytes(),
        "drafts": result.next_draft_tokens.tobytes(),
        "confidence": result.confidence.tobytes(),
        "draft logits": result.draft_logits().tobytes(),
    }
