"""The promise on toy models: a request's tokens depend on the request alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode.core.engine.engine import Engine
from specdecode.core.engine.request import (
    Completion,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    Request,
    TokensEvent,
)
from specdecode.core.engine.step import StepResult
from specdecode.core.errors import DeviceError, UsageError
from tests.support import wrong
from tests.support.toy import Tables, ToyModel

VOCAB = 7
TABLES = Tables.random(VOCAB, seed=3)
PERFECT = Tables(target=TABLES.target, drafter=TABLES.target)
HOPELESS = Tables(target=TABLES.target, drafter=-TABLES.target)


def request(prompt=(1, 2, 3), max_tokens=12, **options) -> Request:
    return Request(prompt=tuple(prompt), max_tokens=max_tokens, **options)


def complete(model: ToyModel, requests: list[Request], *, join_every: int = 0, **options) -> list[Completion]:
    """Run requests, each joining `join_every` steps after the one before, and check the events on the way."""
    engine, completions, streamed = Engine(model, **options), {}, {}
    waiting = list(requests)
    steps = 0
    while waiting or engine.busy:
        while waiting and steps >= join_every * (len(requests) - len(waiting)):
            engine.submit(waiting.pop(0))
        for event in engine.step():
            if isinstance(event, TokensEvent):
                streamed.setdefault(event.request_id, []).extend(event.tokens)
                assert 0 <= event.drafted <= len(event.tokens)
            else:
                assert isinstance(event, FinishedEvent)
                completions[event.request_id] = event.completion
        steps += 1
    for request_id, completion in completions.items():
        assert tuple(streamed.get(request_id, ())) == completion.tokens
    return [completions[i] for i in range(len(requests))]


def expected(r: Request, tables: Tables = TABLES) -> tuple[int, ...]:
    return tuple(tables.plain(r.prompt, r.max_tokens, seed=r.seed, temperature=r.temperature))


requests_strategy = st.lists(
    st.builds(
        Request,
        prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=11).map(tuple),
        max_tokens=st.integers(1, 14),
        temperature=st.sampled_from([0.0, 0.7, 1.0]),
        seed=st.integers(0, 5),
        draft_tokens=st.sampled_from([None, 0, 1, 2, 3, 4, 5]),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=120, deadline=None)
@given(
    requests=requests_strategy,
    agreement=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    max_batch=st.integers(1, 4),
    token_budget=st.integers(1, 20),
    join_every=st.integers(0, 3),
    page_size=st.integers(1, 8),
)
def test_speculative_equals_plain(requests, agreement, max_batch, token_budget, join_every, page_size):
    tables = Tables.random(VOCAB, seed=3, agreement=agreement)
    model = ToyModel(tables, page_size=page_size, num_pages=-(-120 // page_size))
    results = complete(model, requests, max_batch=max_batch, token_budget=token_budget, join_every=join_every)
    for r, completion in zip(requests, results, strict=True):
        assert completion.tokens == expected(r, tables)
        assert completion.reason is FinishReason.LENGTH


def differs(model_type: type[ToyModel], **options) -> bool:
    """Whether a model is caught by comparing a varied set of requests with their definition."""
    requests = [
        request(prompt=range(1, 2 + n % 5), temperature=t, seed=n, max_tokens=14)
        for n, t in enumerate([0.0, 0.7, 1.0] * 3)
    ]
    results = complete(model_type(Tables.random(VOCAB, seed=3, agreement=0.5)), requests, **options)
    tables = Tables.random(VOCAB, seed=3, agreement=0.5)
    return any(c.tokens != expected(r, tables) for r, c in zip(requests, results, strict=True))


def test_the_right_model_is_not_caught():
    assert not differs(ToyModel)


@pytest.mark.parametrize(
    "model_type", [wrong.RedrawsMismatch, wrong.DependsOnBatch, wrong.DrawsByStep, wrong.AcceptsOneTooMany]
)
def test_a_wrong_model_is_caught(model_type):
    assert differs(model_type)


@pytest.mark.parametrize("width", range(6))
def test_stop_inside_a_block_ends_the_output_there(width):
    plain = expected(request(max_tokens=20))
    for place in range(12):
        stop = plain[place]
        first = plain.index(stop)
        [done] = complete(ToyModel(PERFECT), [request(max_tokens=20, stop_ids=frozenset({stop}), draft_tokens=width)])
        assert done.tokens == plain[: first + 1]
        assert done.reason is FinishReason.STOP


def test_a_rejected_stop_draft_does_not_finish():
    # The drafter proposes the stop token everywhere, the target never samples it.
    target = TABLES.target.copy()
    target[:, :, 6] = -100
    drafter = np.zeros_like(target)
    drafter[:, :, 6] = 100
    tables = Tables(target=target, drafter=drafter)
    r = request(max_tokens=9, stop_ids=frozenset({6}))
    [done] = complete(ToyModel(tables), [r])
    assert done.tokens == expected(r, tables)
    assert all(round_.accepted == 0 and round_.proposed > 0 for round_ in done.rounds[:-1])


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 6, 7, 13])
@pytest.mark.parametrize("tables", [PERFECT, HOPELESS])
def test_exactly_max_tokens(max_tokens, tables):
    [done] = complete(ToyModel(tables), [request(max_tokens=max_tokens)])
    assert len(done.tokens) == max_tokens
    assert done.reason is FinishReason.LENGTH


def test_no_tokens_asked_for_runs_no_model():
    model = ToyModel(TABLES)
    [done] = complete(model, [request(max_tokens=0)])
    assert done.tokens == ()
    assert done.timing.first_token is None
    assert model.steps == []


def test_the_context_ends_the_output():
    model = ToyModel(PERFECT, max_length=10)
    [done] = complete(model, [request(max_tokens=50)])
    assert done.tokens == expected(request(max_tokens=7))
    assert done.reason is FinishReason.CONTEXT


def test_plain_requests_run_no_drafter():
    model = ToyModel(PERFECT)
    [done] = complete(model, [request(draft_tokens=0)])
    assert {(width, draft) for _, width, draft in model.steps} == {(0, False)}
    assert len(model.steps) == 12
    assert all(round_.proposed == 0 and round_.emitted == 1 for round_ in done.rounds)


def test_a_perfect_drafter_is_accepted_for_ever():
    model = ToyModel(PERFECT, num_pages=200, max_length=700)
    [done] = complete(model, [request(max_tokens=601)])
    assert [r.accepted for r in done.rounds] == [5] * 100
    assert len(model.steps) == 101


def test_the_trace_adds_up():
    [done] = complete(ToyModel(TABLES), [request(max_tokens=40, temperature=1.0)])
    assert 1 + sum(r.emitted for r in done.rounds) == len(done.tokens)
    assert all(0 <= r.accepted <= r.proposed <= 5 and r.emitted == r.accepted + 1 for r in done.rounds)
    assert len({r.accepted for r in done.rounds}) > 1


def test_a_prompt_is_cut_by_the_token_budget():
    model = ToyModel(TABLES)
    r = request(prompt=[n % VOCAB for n in range(23)], max_tokens=3, draft_tokens=0)
    [done] = complete(model, [r], token_budget=5)
    assert len(model.steps) == 5 + 2
    assert done.tokens == expected(r)


def test_requests_wait_for_pages():
    model = ToyModel(TABLES, page_size=4, num_pages=10)  # one request needs 5 pages
    requests = [request(seed=n, temperature=1.0) for n in range(5)]
    results = complete(model, requests, max_batch=8)
    assert [c.tokens for c in results] == [expected(r) for r in requests]
    assert max(rows for rows, _, _ in model.steps) == 2


def test_what_never_fits_is_refused_before_anything_runs():
    model = ToyModel(TABLES, page_size=4, num_pages=3)
    with pytest.raises(DeviceError, match=r"needs 5 cache pages .* has 3 pages of 4"):
        Engine(model).submit(request())
    assert model.steps == []


def test_a_prompt_longer_than_the_context_is_refused():
    with pytest.raises(UsageError, match="prompt has 64 tokens, and the context of 64"):
        Engine(ToyModel(TABLES)).submit(request(prompt=[1] * 64))


def test_more_drafts_than_the_block_are_refused_by_name():
    with pytest.raises(UsageError, match=r"6 draft tokens .* at most 5 \(dspark_block_size"):
        Engine(ToyModel(TABLES)).submit(request(draft_tokens=6))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_tokens": -1}, "draft_tokens is -1"),
        ({"draft_tokens": True}, "draft_tokens is True"),
        ({"draft_tokens": 2.0}, r"draft_tokens is 2\.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": -0.1}, r"temperature is -0\.1"),
        ({"top_k": -1}, "top_k is -1; it must be a whole number, 0"),
        ({"top_k": 2.0}, r"top_k is 2\.0"),
        ({"top_k": True}, "top_k is True"),
        ({"top_p": -0.1}, r"top_p is -0\.1; it must be a number from 0 to 1"),
        ({"top_p": 1.1}, r"top_p is 1\.1"),
        ({"top_p": float("nan")}, "top_p is nan"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"prompt": ()}, "at least one prompt token"),
    ],
)
def test_nonsense_requests_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        request(**options)


class NotFinite(ToyModel):
    """Reports broken logits for the request with seed 13 at its third token."""

    def step(self, rows, *, width: int, draft: bool) -> StepResult:
        result = super().step(rows, width=width, draft=draft)
        bad = [row.seed == 13 and row.cache_length + len(row.tokens) > 5 for row in rows]
        return StepResult(**{**vars(result), "finite": ~np.array(bad)})


def test_a_broken_row_fails_alone():
    model = NotFinite(TABLES, num_pages=12)
    engine = Engine(model, max_batch=2)
    requests = [request(seed=13), request(seed=2, temperature=0.7), request(seed=3)]
    ids = [engine.submit(r) for r in requests]
    events = list(engine.run())
    [failed] = [e for e in events if isinstance(e, FailedEvent)]
    assert failed.request_id == ids[0]
    assert "NaN" in failed.message
    done = {e.request_id: e.completion.tokens for e in events if isinstance(e, FinishedEvent)}
    assert done == {i: expected(r) for i, r in zip(ids[1:], requests[1:], strict=True)}


def test_a_cancelled_request_gives_its_pages_back():
    model = ToyModel(TABLES, num_pages=5)
    engine = Engine(model)
    first, second = engine.submit(request()), engine.submit(request(seed=1))
    engine.step()
    engine.cancel(first)
    [done] = [e for e in engine.run() if isinstance(e, FinishedEvent)]
    assert (done.request_id, done.completion.tokens) == (second, expected(request(seed=1)))


def test_times_come_from_the_clock():
    moments = iter([10.0, 10.0, 12.0, 12.5, 13.0, 13.5])
    engine = Engine(ToyModel(HOPELESS), clock=lambda: next(moments))
    engine.submit(request(max_tokens=3, draft_tokens=0))
    engine.submit(request(max_tokens=1, draft_tokens=0))
    done = [e.completion for e in engine.run() if isinstance(e, FinishedEvent)]
    assert [c.timing.first_token for c in done] == [2.0, 2.0]
    assert [c.timing.per_token for c in done] == [None, 0.5]
