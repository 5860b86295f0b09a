"""Biases, penalties, bans, min_p and logprobs on toy models: speculation changes nothing, the definition is kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode.core.engine.edits import BANNED, OUTPUT, SEEN, EditState, Penalties
from specdecode.core.engine.engine import Engine
from specdecode.core.engine.request import Completion, FinishedEvent, Request
from specdecode.core.errors import UsageError
from tests.support import wrong
from tests.support.toy import Tables, ToyModel, gumbel, limited

VOCAB, END = 7, 6


def finish(model: ToyModel, requests: list[Request], **options) -> list[Completion]:
    engine = Engine(model, **options)
    ids = [engine.submit(r) for r in requests]
    done = {e.request_id: e.completion for e in engine.run() if isinstance(e, FinishedEvent)}
    return [done[i] for i in ids]


def plain(tables: Tables, r: Request) -> tuple[tuple[int, ...], list[float]]:
    """Tokens and their log-probabilities by the definition: from all tokens so far, one at a time."""
    tokens, output, said = list(r.prompt), [], []
    while len(output) < r.max_tokens:
        raw = tables.target[tokens[-2] if len(tokens) > 1 else 0, tokens[-1]]
        z = raw.copy()
        for token in range(VOCAB):
            z[token] += r.logit_bias.get(token, 0.0)
            if token in tokens:
                z[token] *= 1 / r.repetition_penalty if z[token] > 0 else r.repetition_penalty
            count = output.count(token)
            z[token] -= r.frequency_penalty * count + r.presence_penalty * (count > 0)
            if token in r.stop_ids and len(output) < r.min_tokens:
                z[token] = -np.inf
        if r.temperature > 0:
            z = limited(z, r.temperature, r.top_k, r.top_p, r.min_p) / r.temperature
            z = z + gumbel(r.seed, len(tokens), VOCAB)
        token = int(np.argmax(z))
        raw = raw.astype(np.float32).astype(np.float64)
        said.append(float(raw[token] - np.log(np.exp(raw).sum())))
        tokens.append(token)
        output.append(token)
        if token in r.stop_ids:
            break
    return tuple(output), said


requests_strategy = st.lists(
    st.builds(
        Request,
        prompt=st.lists(st.integers(0, VOCAB - 2), min_size=1, max_size=6).map(tuple),
        max_tokens=st.just(14),
        min_tokens=st.integers(0, 14),
        stop_ids=st.sampled_from([frozenset(), frozenset({END}), frozenset({END, 2})]),
        temperature=st.sampled_from([0.0, 1e-6, 0.5, 1.0]),
        seed=st.integers(0, 99),
        top_k=st.sampled_from([0, 0, 2, 5]),
        top_p=st.sampled_from([1.0, 1.0, 0.8]),
        min_p=st.sampled_from([0.0, 0.0, 0.1, 1.0]),
        logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.0, 0.5, 3.0]), max_size=3),
        repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
        frequency_penalty=st.sampled_from([0.0, 0.5, 2.0, -1.0]),
        presence_penalty=st.sampled_from([0.0, 1.0, -0.5]),
        logprobs=st.sampled_from([None, 0, 2, VOCAB]),
        draft_tokens=st.integers(0, 5),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=300, deadline=None)
@given(requests=requests_strategy, agreement=st.sampled_from([0.0, 0.5, 1.0]), max_batch=st.integers(1, 4))
def test_speculative_equals_plain_in_every_combination(requests, agreement, max_batch):
    tables = Tables.random(VOCAB, seed=3, agreement=agreement)
    for request, done in zip(requests, finish(ToyModel(tables), requests, max_batch=max_batch), strict=True):
        tokens, said = plain(tables, request)
        assert done.tokens == tokens
        if request.logprobs is None:
            assert done.logprobs is None
            continue
        assert [one.token for one in done.logprobs] == list(tokens)
        np.testing.assert_allclose([one.logprob for one in done.logprobs], said, atol=1e-5)
        for one in done.logprobs:
            assert len(one.top) == request.logprobs
            values = [value for _, value in one.top]
            assert values == sorted(values, reverse=True)
            assert not one.top or one.top[0][1] >= one.logprob


def same_always(token: int) -> Tables:
    """A target that likes one token a little more than the rest, whatever came before, and a drafter that agrees."""
    logits = np.zeros((VOCAB, VOCAB, VOCAB))
    logits[..., token] = 2.5
    return Tables(target=logits, drafter=logits)


@pytest.mark.parametrize("draft_tokens", range(5))
def test_a_frequency_penalty_counts_the_tokens_of_a_block(draft_tokens):
    """Token 1 loses one each time and falls below the others, all at 0, after its third: 1 1 1, then the lowest ids."""
    request = Request(prompt=(0,), max_tokens=6, frequency_penalty=1.0, draft_tokens=draft_tokens)
    (done,) = finish(ToyModel(same_always(1)), [request])
    assert done.tokens == (1, 1, 1, 0, 2, 3)


@pytest.mark.parametrize("mistake", [wrong.PenalisesOncePerRound, wrong.CountsTheLastTokenTwice])
def test_wrong_counts_are_caught(mistake):
    request = Request(prompt=(0,), max_tokens=6, frequency_penalty=1.0, draft_tokens=4)
    (done,) = finish(mistake(same_always(1)), [request])
    assert done.tokens != (1, 1, 1, 0, 2, 3)


@pytest.mark.parametrize("draft_tokens", range(5))
def test_min_tokens_forbids_the_end_for_exactly_so_many_tokens(draft_tokens):
    request = Request(
        prompt=(0,), max_tokens=9, min_tokens=3, stop_ids=frozenset({END}), draft_tokens=draft_tokens, temperature=0.0
    )
    (done,) = finish(ToyModel(same_always(END)), [request])
    assert done.tokens == (0, 0, 0, END)


@pytest.mark.parametrize("draft_tokens", range(5))
def test_min_p_holds_for_drafted_corrected_and_bonus_tokens(draft_tokens):
    """p = (0.6, 0.39, 0.01), and a drafter that always proposes the third."""
    target = np.log(np.broadcast_to([0.6, 0.39, 0.01], (3, 3, 3)))
    drafter = np.log(np.broadcast_to([0.01, 0.01, 0.98], (3, 3, 3)))
    requests = [
        Request(prompt=(0,), max_tokens=20, temperature=1.0, min_p=0.1, seed=seed, draft_tokens=draft_tokens)
        for seed in range(40)
    ]
    seen = {t for done in finish(ToyModel(Tables(target=target, drafter=drafter)), requests) for t in done.tokens}
    assert seen == {0, 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"min_p": 1.5}, "min_p is 1.5; it must be a number from 0"),
        ({"min_p": float("nan")}, "min_p is nan; it must be a number from 0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; it must be a number from 0.001 to 1000"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty is inf; it must be a number from -1e"),
        ({"presence_penalty": float("nan")}, "presence_penalty is nan; it must be a number from -1e"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias -1: 1.0 must be a token id and a number from"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias 1: inf must be a token id and a number from"),
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias names the token 7, and ids run below 7"),
        ({"logprobs": -1}, "logprobs is -1; it must be a whole number"),
    ],
)
def test_what_is_not_possible_is_refused(change, message):
    with pytest.raises(UsageError, match=message):
        Engine(ToyModel(same_always(1))).submit(Request(**{"prompt": (0,), "max_tokens": 2, **change}))


@pytest.mark.parametrize("count", [15, 16, 17, 33, 65])
@pytest.mark.parametrize("source", ["bias", "banned", "prompt"])
def test_any_number_of_tokens_is_edited(count, source):
    """Their arrays grow; 17 tokens once did not fit."""
    given = {"bias": {}, "banned": [], "prompt": [], "penalties": Penalties(frequency=0.5), "free_from": 9}
    given[source] = {n: float(n) for n in range(count)} if source == "bias" else list(range(count))
    state = EditState(**given)
    start = list(given["prompt"])
    edits = state.edits([*start, *range(100, 100 + count)])
    assert edits.tokens.tolist() == [*range(count), *range(100, 100 + count)]
    first = {"bias": 0, "banned": BANNED, "prompt": SEEN}[source]
    assert edits.marks.tolist() == [first] * count + [SEEN + OUTPUT] * count
    assert edits.bias.tolist() == [float(n) if source == "bias" else 0.0 for n in range(count)] + [0.0] * count
