"""top_k, top_p and several samples on a real model: speculation changes no token at any width or in any batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specdecode.core.engine.request import Request, sample_seed
from tests.support.promise import Ledger, Watched, complete
from tests.support.wrong_steps import LimitsFirstRowOnly

TOKENS = 16


@pytest.fixture(scope="module")
def requests(small) -> list[Request]:
    """Random combinations, two samples of each."""
    rng = np.random.default_rng(11)
    vocab_size = small.vocab_size
    found = []
    for place in range(20):
        prompt = tuple(rng.integers(3, vocab_size - 8, int(rng.integers(1, 24))).tolist())
        base = Request(
            prompt=prompt,
            max_tokens=TOKENS,
            temperature=float(rng.choice([0.0, 1e-6, 0.3, 1.0])) if place % 4 else 1.0,
            top_k=int(rng.choice([0, 1, 2, 5, 40, vocab_size, 2**40])),
            top_p=float(rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])),
        )
        seed = int(rng.integers(2**63))
        found += [replace(base, seed=sample_seed(seed, sample)) for sample in range(2)]
    return found


@pytest.fixture(scope="module")
def plain(small, requests) -> list[tuple[int, ...]]:
    """Their tokens one at a time, alone."""
    return complete(Watched(small, Ledger()), [replace(r, draft_tokens=0) for r in requests], max_batch=1)


def run(kind, small, requests, plain, width, **options) -> list[tuple[int, ...]]:
    """With drafts that are right up to a random place, because this checkpoint's own drafter never is."""
    texts = {r.seed: (*r.prompt, *tokens) for r, tokens in zip(requests, plain, strict=True)}
    model = kind(small, Ledger(), texts)
    tokens = complete(model, [replace(r, draft_tokens=width) for r in requests], **options)
    assert sum(model.accepted[n] for n in range(1, 6)) > 0 or width == 0
    return tokens


@pytest.mark.parametrize(("width", "max_batch", "join_every"), [(0, 8, 0), (1, 3, 1), (2, 8, 2), (3, 1, 0), (5, 8, 1)])
def test_speculative_equals_plain(small, requests, plain, width, max_batch, join_every):
    assert run(Watched, small, requests, plain, width, max_batch=max_batch, join_every=join_every) == plain


def test_limits_behind_the_first_row_count(small, requests, plain):
    assert run(LimitsFirstRowOnly, small, requests, plain, 5) != plain


def test_limits_matter(small, requests, plain):
    """Otherwise equal tokens would prove little."""
    for change in ({"top_k": 0, "top_p": 1.0}, {"top_k": 1}, {"top_p": 0.0}):
        other = complete(Watched(small, Ledger()), [replace(r, draft_tokens=0, **change) for r in requests])
        assert sum(a != b for a, b in zip(other, plain, strict=True)) > 5


def test_limits_that_come_and_go_in_one_batch_leave_nothing_behind(small, requests, plain):
    """A limited request ends long before its neighbours without limits, and another joins in its place."""
    free = [replace(r, top_k=0, top_p=1.0, temperature=1.0, seed=r.seed + 1) for r in requests[:3]]
    alone = complete(Watched(small, Ledger()), [replace(r, draft_tokens=0) for r in free], max_batch=1)
    short = replace(requests[0], max_tokens=3, top_k=1)
    mixed = [free[0], short, free[1], replace(short, seed=5), free[2]]
    tokens = complete(Watched(small, Ledger()), mixed, max_batch=2)
    assert [tokens[n] for n in (0, 2, 4)] == alone
