"""Prompt lookup: what it proposes, and that it changes no token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode.core.engine.engine import Engine
from specdecode.core.engine.ngram import PromptLookup
from specdecode.core.engine.request import FinishedEvent, Request
from tests.support.toy import Tables, ToyModel


@pytest.mark.parametrize(
    ("tokens", "count", "proposed"),
    [
        ([1, 2, 3, 9, 1, 2, 3], 2, [9, 1]),
        ([1, 2, 3, 9, 1, 2, 3], 9, [9, 1, 2, 3]),
        ([1, 2, 7, 1, 2, 8, 1, 2], 1, [8]),  # the last place counts
        ([5, 1, 2, 7, 4, 1, 2, 8, 5, 1, 2], 1, [7]),  # a longer match goes first
        ([1, 2, 3], 3, []),
        ([1, 1, 1], 2, [1]),
        ([1], 2, []),
        ([1, 2, 1, 2], 0, []),
    ],
)
def test_proposals(tokens, count, proposed):
    assert PromptLookup().propose(tokens, count) == proposed
    lookup = PromptLookup()
    for end in range(1, len(tokens)):  # and as the text grows
        lookup.propose(tokens[:end], count)
    assert lookup.propose(tokens, count) == proposed


@given(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=40), longest=st.integers(1, 4))
def test_proposals_are_by_the_definition(tokens, longest):
    expected = []
    for size in range(longest, 0, -1):
        places = [end for end in range(size, len(tokens)) if tokens[end - size : end] == tokens[-size:]]
        if places:
            expected = tokens[places[-1] : places[-1] + 3]
            break
    assert PromptLookup(longest=longest, shortest=1).propose(tokens, 3) == expected


def finish(model: ToyModel, requests: list[Request], **options):
    engine = Engine(model, **options)
    ids = [engine.submit(r) for r in requests]
    done = {e.request_id: e.completion for e in engine.run() if isinstance(e, FinishedEvent)}
    return [done[i] for i in ids]


@settings(max_examples=60, deadline=None)
@given(
    temperature=st.sampled_from([0.0, 0.3, 1.0]),
    width=st.integers(0, 5),
    seed=st.integers(0, 20),
    max_batch=st.integers(1, 3),
)
def test_speculative_equals_plain(temperature, width, seed, max_batch):
    tables = Tables.random(4, seed=3)
    asked = [
        Request(prompt=(1, 2, 1, n), max_tokens=25, temperature=temperature, seed=seed + n, draft_tokens=width)
        for n in range(3)
    ]
    model = ToyModel(tables)
    for request, done in zip(asked, finish(model, asked, proposer=PromptLookup, max_batch=max_batch), strict=True):
        assert list(done.tokens) == tables.plain(request.prompt, 25, temperature=temperature, seed=request.seed)
    assert not any(draft for _, _, draft in model.steps)


def test_a_text_that_repeats_itself_is_accepted_whole():
    logits = np.full((4, 4, 4), -9.0)
    for before in range(4):
        for last in range(4):
            logits[before, last, (last + 1) % 4] = 9.0
    model = ToyModel(Tables(target=logits, drafter=logits))
    (done,) = finish(model, [Request(prompt=(0, 1, 2, 3, 0, 1), max_tokens=31)], proposer=PromptLookup)
    assert done.tokens == tuple((n + 2) % 4 for n in range(31))
    assert len(model.steps) <= 1 + 6  # the prompt, then rounds of five drafts and a bonus
    assert all(r.accepted == r.proposed for r in done.rounds)


class Wild:
    """Proposes what no vocabulary has."""

    def propose(self, tokens, width):
        return [1, 4]


def test_a_proposer_cannot_name_a_token_beyond_the_vocabulary():
    asked = [Request(prompt=(1, 2), max_tokens=8)]
    with pytest.raises(ValueError, match=r"drafted the token 4, and ids run from 0 to 3"):
        finish(ToyModel(Tables.random(4, seed=3)), asked, proposer=Wild)
