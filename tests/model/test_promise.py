"""The promise through the engine: tokens and logits of a request depend on the request alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specdecode.core.engine.ngram import PromptLookup
from specdecode.core.engine.request import Request
from tests.support import wrong_steps
from tests.support.promise import Ledger, Watched, complete

LENGTHS = (1, 2, 5, 17, 31, 8, 64, 40)
TOKENS = 24


def requests_of(vocab_size: int, family: int) -> list[Request]:
    """Eight requests of different lengths and temperatures, each with a seed of its own."""
    rng = np.random.default_rng(family)
    return [
        Request(
            prompt=tuple(rng.integers(3, vocab_size - 8, length).tolist()),
            max_tokens=TOKENS,
            temperature=(0.0, 0.7, 1.0)[(place + family) % 3],
            seed=100 * family + place,
        )
        for place, length in enumerate(LENGTHS)
    ]


class Plain:
    """What the requests give one token at a time, alone, without a drafter: the definition.

    The prompts are run token by token too, so that the ledger knows the logits of every position.
    """

    def __init__(self, model, families=(0, 1)) -> None:
        self.model, self.ledger = model, Ledger()
        self.requests = {family: requests_of(model.vocab_size, family) for family in families}
        self.outputs, self.texts = {}, {}
        for family, requests in self.requests.items():
            alone = [replace(request, draft_tokens=0) for request in requests]
            outputs = complete(Watched(model, self.ledger), alone, max_batch=1, token_budget=1)
            self.outputs[family] = outputs
            for request, output in zip(requests, outputs, strict=True):
                self.texts[request.seed] = (*request.prompt, *output)

    def holds(self, kind, family, width, *, known_drafts=True, **options) -> bool:
        """Whether a model gives the same tokens from the same logits, bit for bit."""
        before = self.ledger.compared
        model = kind(self.model, self.ledger, self.texts if known_drafts else None)
        requests = [replace(request, draft_tokens=width) for request in self.requests[family]]
        outputs = complete(model, requests, **options)
        assert self.ledger.compared - before >= len(requests) * (TOKENS - 1)
        agrees = outputs == self.outputs[family] and not self.ledger.differences
        self.ledger.differences.clear()
        self.accepted = model.accepted
        return agrees


@pytest.fixture(scope="module")
def plain(small) -> Plain:
    return Plain(small)


@pytest.fixture(scope="module")
def plain_demo(demo) -> Plain:
    return Plain(demo, families=(2,))


@pytest.mark.parametrize("max_batch", [1, 3, 8])
@pytest.mark.parametrize("width", range(6))
def test_speculative_equals_plain(plain, width, max_batch):
    for family, join_every, token_budget in ((0, 0, 512), (1, 2, 11)):
        options = {"max_batch": max_batch, "join_every": join_every, "token_budget": token_budget}
        assert plain.holds(Watched, family, width, **options), (family, options)


@pytest.mark.parametrize("token_budget", [1, 2, 3, 7, 16, 33, 64])
def test_the_prompt_may_be_cut_anywhere(plain, token_budget):
    assert plain.holds(Watched, 0, 3, max_batch=4, token_budget=token_budget, join_every=1)


@pytest.mark.parametrize(("width", "max_batch"), [(0, 8), (1, 3), (2, 1), (3, 8), (4, 3), (5, 1), (5, 8)])
def test_the_embedded_checkpoint_keeps_it_with_its_own_drafter(plain_demo, width, max_batch):
    options = {"max_batch": max_batch, "join_every": 2, "token_budget": 24}
    assert plain_demo.holds(Watched, 2, width, known_drafts=False, **options)
    assert (max(plain_demo.accepted) > 0) == (width > 0)


@pytest.fixture(scope="module")
def plain_eagle(eagle) -> Plain:
    return Plain(eagle, families=(2,))


@pytest.mark.parametrize(("width", "max_batch"), [(0, 8), (1, 3), (2, 1), (2, 8), (3, 1), (3, 3), (3, 8)])
def test_it_keeps_it_with_an_autoregressive_drafter(plain_eagle, plain_demo, width, max_batch):
    options = {"max_batch": max_batch, "join_every": 2, "token_budget": 24}
    assert plain_eagle.outputs == plain_demo.outputs  # the target is the same, whoever drafts
    assert plain_eagle.holds(Watched, 2, width, known_drafts=False, **options)
    assert all(plain_eagle.accepted[n] for n in range(width + 1))


@pytest.mark.parametrize(("width", "max_batch"), [(1, 3), (5, 8)])
def test_it_keeps_it_with_a_lookup(plain_demo, width, max_batch):
    options = {"max_batch": max_batch, "join_every": 2, "token_budget": 24, "proposer": PromptLookup}
    assert plain_demo.holds(Watched, 2, width, known_drafts=False, **options)
    assert max(plain_demo.accepted) > 0


@pytest.mark.parametrize(
    "kind",
    [
        wrong_steps.RedrawsMismatch,
        wrong_steps.DependsOnBatch,
        wrong_steps.AcceptsOneTooMany,
        wrong_steps.ForgetsLookback,
        wrong_steps.ReadsAnotherPage,
        wrong_steps.DraftsFromTheFuture,
    ],
)
def test_a_wrong_step_is_caught(plain, kind):
    assert not plain.holds(kind, 0, 5, max_batch=3, join_every=1)


def test_every_number_of_drafts_is_accepted_now_and_then(plain):
    assert plain.holds(Watched, 0, 5)
    assert min(plain.accepted[n] for n in range(6)) > 0


def test_temperature_and_seed_matter(plain):
    """Otherwise equal outputs would prove little."""
    hot = [request for request in plain.requests[0] if request.temperature]
    first = complete(Watched(plain.model, Ledger()), hot)
    reseeded = complete(Watched(plain.model, Ledger()), [replace(r, seed=r.seed + 50) for r in hot])
    cold = complete(Watched(plain.model, Ledger()), [replace(r, temperature=0.0) for r in hot])
    assert all(a != b != c != a for a, b, c in zip(first, reseeded, cold, strict=True))
