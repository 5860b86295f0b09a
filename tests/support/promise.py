"""What the promise is tested with: a small checkpoint, a model that is watched, drafts that are right or wrong.

The checkpoint is small enough for thousands of steps and has the block of the release. Its drafter is as random as
the rest and never right, so drafts come from the known continuation, with an error at a chosen place.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdecode.core.engine.engine import Engine
from specdecode.core.engine.request import FinishedEvent, Request
from specdecode.core.engine.step import StepResult, StepRow
from specdecode.core.models.deepseek_v41.unified.model import UnifiedDSparkDeepseekV41Model, result_of
from tests.support.tiny import CONFIG, write_checkpoint

GRAPHS = Path(__file__).parent / "graphs"
"""The checkpoint's step graph, ready-made by examples/build_graphs.py."""


def promise_config() -> dict[str, object]:
    """`CONFIG` with five drafts a round."""
    content = copy.deepcopy(CONFIG)
    content["text_config"]["dspark_block_size"] = 5  # type: ignore[index]
    return content


PARALLEL_GRAPHS = GRAPHS / "parallel"
"""Those of `parallel_config`: on one device, and on four logical ones in both layouts."""


def parallel_config() -> dict[str, object]:
    """A model whose sizes four devices divide into four, two or no parts.

    Heads, output groups and the hidden size into four, the experts' inner width, the vocabulary and the routed experts
    into two, the drafter's experts into four.
    """
    content = promise_config()
    content["text_config"] |= {  # type: ignore[operator]
        "hidden_size": 128,
        "moe_intermediate_size": 64,
        "num_attention_heads": 4,
        "o_groups": 4,
        "n_routed_experts": 6,
        "num_experts_per_tok": 3,
        "dspark_n_routed_experts": 4,
        "dspark_num_experts_per_tok": 2,
    }
    return content


def write_parallel_checkpoint(folder: Path) -> Path:
    """Write it with random weights into an empty folder."""
    return write_checkpoint(folder, content=parallel_config())


def write_promise_checkpoint(folder: Path) -> Path:
    """Write it with random weights into an empty folder."""
    return write_checkpoint(folder, content=promise_config())


class Ledger:
    """The logits behind every token, bit for bit: the first run writes them, later runs have to agree.

    A request is known by its seed, which therefore must be its own.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[int, int], bytes] = {}
        self.compared = 0
        self.differences: list[tuple[int, int]] = []

    def enter(self, seed: int, position: int, logits: NDArray[np.float32]) -> None:
        """Note the logits of the token at `position`."""
        bits = logits.tobytes()
        known = self.known.setdefault((seed, position), bits)
        self.compared += known is not bits
        if known != bits:
            self.differences.append((seed, position))


class Watched:
    """A `StepModel` that enters every verified row into a ledger. Subclasses break one rule each."""

    def __init__(
        self,
        model: UnifiedDSparkDeepseekV41Model,
        ledger: Ledger,
        texts: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        self.model, self.ledger, self.texts = model, ledger, texts
        self.accepted: Counter[int] = Counter()
        for name in ("page_size", "num_pages", "replicas", "block_size", "vocab_size", "max_length", "lookback_length"):
            setattr(self, name, getattr(model, name))

    def step(self, rows: Sequence[StepRow], *, width: int, draft: bool) -> StepResult:
        outputs = self.model.run(self.given(rows), width=width, draft=draft)
        logits = outputs.logits.to_numpy().reshape(len(rows), width + 1, self.model.vocab_size)
        logits, result = self.changed(rows, logits, result_of(outputs, draft=draft))
        self.accepted.update(result.num_accepted.tolist())
        for place, row in enumerate(rows):
            first = row.cache_length + len(row.tokens)
            for n in range(int(result.num_accepted[place]) + 1):
                self.ledger.enter(row.seed, first + n, logits[place, n])
        return self._with_known_drafts(rows, result) if draft and self.texts is not None else result

    def given(self, rows: Sequence[StepRow]) -> Sequence[StepRow]:
        """What the model gets to run."""
        return rows

    def changed(
        self, rows: Sequence[StepRow], logits: NDArray[np.float32], result: StepResult
    ) -> tuple[NDArray[np.float32], StepResult]:
        """What the engine gets to see."""
        return logits, result

    def _with_known_drafts(self, rows: Sequence[StepRow], result: StepResult) -> StepResult:
        assert self.texts is not None
        drafts = result.next_draft_tokens.copy()
        for place, row in enumerate(rows):
            end = row.cache_length + len(row.tokens) + int(result.num_accepted[place]) + 1
            known = self.texts[row.seed][end : end + self.block_size]
            drafts[place] = -1
            drafts[place, : len(known)] = spoilt(known, row.seed + end, self.model.vocab_size)
        return StepResult(**{**vars(result), "next_draft_tokens": drafts})

    page_size: int
    num_pages: int
    replicas: int
    block_size: int
    vocab_size: int
    max_length: int
    lookback_length: int


def spoilt(tokens: Sequence[int], key: int, vocab_size: int) -> list[int]:
    """The tokens, wrong from one place on or, about as often as each place, all right."""
    place = int(np.random.default_rng(key).integers(len(tokens) + 1))
    return [token if i < place else (token + 1) % vocab_size for i, token in enumerate(tokens)]


def complete(
    model: Watched, requests: Sequence[Request], *, join_every: int = 0, **options: Any
) -> list[tuple[int, ...]]:
    """The output tokens of requests that join an engine one after the other, `join_every` steps apart."""
    engine = Engine(model, **options)
    done: dict[int, tuple[int, ...]] = {}
    steps = joined = 0
    while joined < len(requests) or engine.busy:
        while joined < len(requests) and steps >= join_every * joined:
            engine.submit(requests[joined])
            joined += 1
        for event in engine.step():
            if isinstance(event, FinishedEvent):
                done[event.request_id] = event.completion.tokens
        steps += 1
    return [done[i] for i in range(len(requests))]
