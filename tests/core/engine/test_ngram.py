"""Prompt lookup: what it proposes, and that it changes no token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode.core.engine.engine import Engine
from specdecode.core.engine.ngram import PromptLookup
from specdecode.core.engine.request import FailedEvent, FinishedEvent, Request, TokensEvent
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


class Scripted:
    """Proposes what a function of the tokens says."""

    def __init__(self, says):
        self.says, self.calls = says, 0

    def propose(self, tokens, width):
        self.calls += 1
        return self.says(tokens, width)


def run(says, *, max_tokens=12, **options):
    tables = Tables.random(4, seed=3)
    scripted = Scripted(says)
    request = Request(prompt=(1, 2), max_tokens=max_tokens, temperature=0.0)
    (done,) = finish(ToyModel(tables), [request], proposer=lambda: scripted, **options)
    assert list(done.tokens) == tables.plain((1, 2), max_tokens, temperature=0.0, seed=request.seed)
    assert all(type(token) is int for token in done.tokens)
    return scripted


def right(tokens, width):
    """What plain decoding says."""
    whole = Tables.random(4, seed=3).plain((1, 2), 40, temperature=0.0, seed=0)
    return whole[len(tokens) - 2 : len(tokens) - 2 + width]


@pytest.mark.parametrize(
    "says",
    [
        right,
        lambda tokens, width: np.array(right(tokens, width), np.int64),
        lambda tokens, width: np.array(right(tokens, width), np.uint8),
        lambda tokens, width: (token for token in right(tokens, width)),
        lambda tokens, width: right(tokens, 9),
        lambda tokens, width: [],
        lambda tokens, width: [True, False],
    ],
)
def test_whatever_whole_numbers_are_proposed_the_tokens_are_plain_integers(says):
    run(says)


@pytest.mark.parametrize(
    ("drafts", "error", "message"),
    [
        ([1, 4], ValueError, r"drafted the token 4, and ids run from 0 to 3"),
        ([-1], ValueError, "drafted the token -1"),
        ([0.5], TypeError, r"a proposer drafted \[0.5\]; it gives a sequence of whole numbers"),
        (["1"], TypeError, "sequence of whole numbers"),
        (None, TypeError, "a proposer drafted None"),
    ],
)
def test_what_is_no_token_is_refused(drafts, error, message):
    with pytest.raises(error, match=message):
        run(lambda tokens, width: drafts)


def test_a_proposer_cannot_change_the_text():
    def appending(tokens, width):
        assert isinstance(tokens, tuple)
        return right(tokens, width)

    run(appending)


def test_nobody_is_asked_once_a_request_has_ended():
    scripted = run(lambda tokens, width: right(tokens, 1), max_tokens=7)
    assert scripted.calls == 3  # after the prompt one token, then rounds of two


@pytest.mark.parametrize("broken_call", [1, 2, 3])
def test_a_proposer_that_raises_costs_no_token(broken_call):
    tables = Tables.random(4, seed=3)
    calls = iter(range(1, 100))

    def says(tokens, width):
        if next(calls) == broken_call:
            raise KeyError("a defect")
        return right(tokens, 1)

    engine = Engine(ToyModel(tables), proposer=lambda: Scripted(says))
    engine.submit(Request(prompt=(1, 2), max_tokens=7, temperature=0.0))
    seen, raised = [], 0
    while engine.busy:
        try:
            seen += [token for event in engine.step() if isinstance(event, TokensEvent) for token in event.tokens]
        except KeyError:
            raised += 1
    assert raised == 1
    assert seen == tables.plain((1, 2), 7, temperature=0.0, seed=0)


def test_one_that_is_broken_fails_its_request_alone():
    proposers = iter([Scripted(lambda tokens, width: 1 / 0), Scripted(lambda tokens, width: [])])
    reported = []
    engine = Engine(ToyModel(Tables.random(4, seed=3)), proposer=lambda: next(proposers), failures=reported.append)
    bad, good = (engine.submit(Request(prompt=(1, 2), max_tokens=5)) for _ in range(2))
    ends = {e.request_id: e for e in engine.run() if isinstance(e, FailedEvent | FinishedEvent)}
    assert isinstance(ends[bad], FailedEvent)
    assert isinstance(ends[good], FinishedEvent)
    assert isinstance(reported[0], ZeroDivisionError)
