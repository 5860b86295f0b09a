"""Faults that other engines had in public, each with its smallest input; some have their tests elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from specdecode.core.engine.engine import Engine
from specdecode.core.engine.request import Completion, FinishedEvent, Request
from specdecode.core.engine.widths import ConfidenceThreshold, Draft
from specdecode.core.errors import UsageError
from tests.support.toy import Tables, ToyModel

VOCAB = 7


def finish(model: ToyModel, requests: list[Request], **options) -> list[Completion]:
    engine = Engine(model, **options)
    ids = [engine.submit(r) for r in requests]
    done = {e.request_id: e.completion for e in engine.run() if isinstance(e, FinishedEvent)}
    return [done[i] for i in ids]


def test_a_mismatching_sample_must_be_the_one_that_is_committed():
    """One position, a drafter that always proposes the target's likeliest token, temperature 1: by enumeration."""
    p = np.array([0.5, 0.3, 0.2])
    draft = 0
    committed, redrawn = np.zeros(3), np.zeros(3)
    for sample, chance in enumerate(p):
        committed[sample] += chance
        redrawn += chance * np.eye(3)[draft] if sample == draft else chance * p
    np.testing.assert_allclose(committed, p)
    assert abs(redrawn - p).max() > 0.1


@pytest.mark.parametrize("second", [3.0, -3.0])
def test_whether_a_draft_is_verified_does_not_depend_on_drafts_behind_it(second):
    """The second draft's confidence is known only once the first is drawn, and must not decide about the first."""
    (width,) = ConfidenceThreshold(0.5).choose([Draft(logits=[3.0, second], limit=2)])
    assert width >= 1


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_a_seed_gives_the_same_tokens_whoever_else_is_there(draft_tokens):
    """One request sent three times, alone and in company, at temperature 2."""
    tables = Tables.random(VOCAB, seed=4)
    asked = Request(prompt=(1, 2), max_tokens=10, temperature=2.0, seed=42, draft_tokens=draft_tokens)
    other = Request(prompt=(3,), max_tokens=7, temperature=2.0, seed=5)
    model = ToyModel(tables)
    runs = [finish(model, batch)[0].tokens for batch in ([asked], [asked, other], [asked, other, other])]
    assert len(set(runs)) == 1


def test_seeded_and_unseeded_rows_side_by_side():
    """A row without a seed has seed 0; its neighbour is as alone."""
    tables = Tables.random(VOCAB, seed=4)
    seeded = Request(prompt=(1, 2), max_tokens=12, temperature=0.8, seed=42)
    unseeded = Request(prompt=(1, 2), max_tokens=12, temperature=0.8)
    alone = finish(ToyModel(tables), [seeded])[0].tokens
    for _ in range(4):
        assert finish(ToyModel(tables), [seeded, unseeded])[0].tokens == alone


def test_greedy_rows_in_a_sampled_batch():
    """Temperatures 0, 1e-6 and 0.7, top_k 1, 0 and 50, top_p 1, 1 and 0.9 in one batch."""
    tables = Tables.random(VOCAB, seed=4)
    laws = ((0.0, 1, 1.0), (1e-6, 0, 1.0), (0.7, 50, 0.9))
    requests = [
        Request(prompt=(1, 2), max_tokens=12, temperature=t, top_k=k, top_p=p, seed=seed)
        for seed, (t, k, p) in enumerate(laws)
    ]
    together = [done.tokens for done in finish(ToyModel(tables), requests)]
    assert together == [finish(ToyModel(tables), [r])[0].tokens for r in requests]
    assert together[0] == together[1] == tuple(tables.plain((1, 2), 12))


class Forced(ToyModel):
    """Accepts 0, 1, 2 … drafts in turn: its drafts are right up to that place."""

    def step(self, rows, *, width, draft):
        result = super().step(rows, width=width, draft=draft)
        right = len(self.steps) % (self.block_size + 1)
        self.lengths = [row.cache_length + len(row.tokens) for row in rows]
        drafts = result.next_draft_tokens.copy()
        drafts[:, right:] = (drafts[:, right:] + 1) % self.vocab_size
        return type(result)(**{**vars(result), "next_draft_tokens": drafts})


def test_caches_stay_right_whatever_is_accepted():
    """k = 4, 0 to 4 drafts accepted in turn for 50 rounds: the caches hold all but the anchor, and nothing is lost."""
    tables = Tables.random(VOCAB, seed=4, agreement=1.0)
    model = Forced(tables, block_size=4, num_pages=128, max_length=300)
    request = Request(prompt=(1, 2), max_tokens=150)
    engine = Engine(model)
    engine.submit(request)
    rounds = 0
    while engine.busy:
        for event in engine.step():
            if isinstance(event, FinishedEvent):
                done = event.completion
        rounds += 1
    assert rounds >= 50
    assert done.tokens == tuple(tables.plain((1, 2), 150))
    accepted = [r.accepted for r in done.rounds]
    assert set(accepted[:-1]) == set(range(5))


@pytest.mark.parametrize("width", [0, 1, 2, 3, 4])
def test_every_width_up_to_the_block_is_exact(width):
    tables = Tables.random(VOCAB, seed=4)
    model = ToyModel(tables, block_size=4)
    (done,) = finish(model, [Request(prompt=(1, 2), max_tokens=20, temperature=1.0, draft_tokens=width)])
    assert done.tokens == tuple(tables.plain((1, 2), 20, temperature=1.0))
    assert any(draft for _, _, draft in model.steps) is (width > 0)


@pytest.mark.parametrize("width", [5, -1, 1.5, True])
def test_other_widths_are_refused(width):
    with pytest.raises(UsageError, match=r"draft_tokens|at most 4"):
        Engine(ToyModel(Tables.random(VOCAB, seed=4), block_size=4)).submit(
            Request(prompt=(1,), max_tokens=3, draft_tokens=width)
        )


def test_logprobs_of_rows_that_accept_different_numbers():
    """Three rows of one batch that accept 0, 2 and all drafts: each token has the target's own at its position."""
    tables = Tables.random(VOCAB, seed=4, agreement=0.7)
    requests = [Request(prompt=(n, 2), max_tokens=15, logprobs=0, draft_tokens=d) for n, d in ((1, 0), (3, 2), (4, 5))]
    for request, done in zip(requests, finish(ToyModel(tables), requests), strict=True):
        tokens = [*request.prompt, *done.tokens]
        assert len(done.logprobs) == len(done.tokens)
        for place, one in enumerate(done.logprobs):
            at = len(request.prompt) + place
            row = tables.target[tokens[at - 2], tokens[at - 1]]
            assert one.logprob == pytest.approx(row[tokens[at]] - np.log(np.exp(row).sum()), abs=1e-5)
            assert one.logprob < 0
