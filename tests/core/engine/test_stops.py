"""Why a request ends: tokens of a block are looked at in order, and nothing behind the end is kept anywhere."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode.core.engine.engine import Engine
from specdecode.core.engine.request import Completion, FinishedEvent, FinishReason, Request, TokensEvent
from specdecode.core.errors import UsageError
from specdecode.core.metrics import Acceptance
from tests.support.toy import ToyModel

STOP, LENGTH, CONTEXT = FinishReason.STOP, FinishReason.LENGTH, FinishReason.CONTEXT


class Recital:
    """In place of tables: position p holds token p - 1 of a list; the drafter is right except every n-th time."""

    target = SimpleNamespace(shape=(100,))
    drafter = None

    def __init__(self, tokens: list[int], wrong_every: int = 0) -> None:
        self._tokens = tokens
        self._wrong_every = wrong_every

    def sample(self, table, before, last, *, position: int, seed: int, temperature: float, **limits: float) -> int:
        if table is None and self._wrong_every and position % self._wrong_every == 0:
            return 99
        return self._tokens[(position - 1) % len(self._tokens)]


class Letters:
    """Token n is the n-th of these byte strings."""

    def __init__(self, *texts: str | bytes) -> None:
        self._texts = [t.encode() if isinstance(t, str) else t for t in texts]

    def token_bytes(self, token: int) -> bytes:
        return self._texts[token] if token < len(self._texts) else b"?"


def run(tokens: list[int], texts: Letters | None, *, width: int = 5, wrong_every: int = 0, length=64, **options):
    """(completion, pieces of its events) of one request whose prompt is one token."""
    model = ToyModel(Recital(tokens, wrong_every), max_length=length)
    engine = Engine(model, tokenizer=texts)
    engine.submit(Request(prompt=(0,), draft_tokens=width, **{"max_tokens": 20, **options}))
    events = list(engine.run())
    streamed = [event for event in events if isinstance(event, TokensEvent)]
    [done] = [event.completion for event in events if isinstance(event, FinishedEvent)]
    assert sum((event.tokens for event in streamed), ()) == done.tokens
    assert "".join(event.text for event in streamed) == done.text
    assert all(len(event.pieces) == len(event.tokens) for event in streamed)
    assert 1 + sum(r.emitted for r in done.rounds) == len(done.tokens)
    assert all(0 <= r.accepted <= r.proposed and r.accepted <= r.emitted for r in done.rounds)
    acceptance = Acceptance.of(done.rounds)
    assert acceptance.emitted <= len(done.tokens)
    return done


def outcome(done: Completion) -> tuple[tuple[int, ...], str, FinishReason, int | str | None]:
    return done.tokens, done.text, done.reason, done.stopped_by


@pytest.mark.parametrize("width", range(6))
@pytest.mark.parametrize("place", range(9))
def test_a_stop_string_over_two_tokens_at_every_place(width, place):
    # Inside a block, between rounds, at the bonus token: tokens 1 and 2 are "E" and "ND".
    tokens = [3] * place + [1, 2] + [4] * 9
    done = run(tokens, Letters("", "E", "ND", "x", "y"), width=width, stop=("END",))
    assert outcome(done) == (tuple(tokens[: place + 2]), "x" * place, STOP, "END")


@pytest.mark.parametrize("wrong_every", [1, 2, 3, 4])
def test_at_the_corrected_token(wrong_every):
    done = run([3, 3, 1, 2, 4], Letters("", "E", "ND", "x", "y"), wrong_every=wrong_every, stop=("END",))
    assert outcome(done) == ((3, 3, 1, 2), "xx", STOP, "END")


@pytest.mark.parametrize("width", [0, 2, 5])
def test_the_earliest_reason_wins(width):
    tokens, texts = [1, 2, 3, 4, 5, 6], Letters("", "a", "b", "c", "d", "e", "f")

    def end(**options):
        return outcome(run(tokens, texts, width=width, **options))[1:]

    assert end(stop=("d", "bc")) == ("a", STOP, "bc")
    assert end(stop=("d",), stop_ids=frozenset({3})) == ("ab", STOP, 3)
    assert end(stop=("c",), stop_ids=frozenset({3})) == ("ab", STOP, 3)
    assert end(stop=("e",), max_tokens=4) == ("abcd", LENGTH, None)
    assert end(stop=("d",), max_tokens=4) == ("abc", STOP, "d")
    assert end(stop_ids=frozenset({4}), max_tokens=4) == ("abc", STOP, 4)
    assert end(stop=("e",), length=4) == ("abc", CONTEXT, None)
    assert end(stop=("c",), include_stop=True) == ("abc", STOP, "c")
    assert end(stop_ids=frozenset({2}), include_stop=True) == ("ab", STOP, 2)


@pytest.mark.parametrize("width", [0, 3])
def test_nothing_stops_before_min_tokens(width):
    tokens, texts = [1, 2, 1, 2, 1, 2], Letters("", "a", "b")
    assert run(tokens, texts, width=width, stop_ids=frozenset({2}), min_tokens=1).tokens == (1, 2)
    assert run(tokens, texts, width=width, stop_ids=frozenset({2}), min_tokens=2).tokens == (1, 2, 1, 2)
    assert run(tokens, texts, width=width, stop=("b",), min_tokens=2).text == "aba"


@pytest.mark.parametrize("width", range(6))
def test_half_a_character_at_the_end_is_flushed_once(width):
    thumb = "👍".encode()
    done = run([1, 2, 1, 2], Letters("", thumb[:2], thumb[2:]), width=width, max_tokens=3)
    assert done.text == "👍\ufffd"


def test_an_invalid_byte_and_a_genuine_replacement_character():
    assert run([1, 2, 3, 4], Letters("", b"\xff", "\ufffd", "x"), max_tokens=3).text == "\ufffd\ufffdx"


@settings(max_examples=150, deadline=None)
@given(
    tokens=st.lists(st.integers(1, 6), min_size=1, max_size=16),
    width=st.integers(0, 5),
    wrong_every=st.integers(0, 4),
    stops=st.lists(st.text("ab👍", min_size=1, max_size=3), max_size=2).map(tuple),
    stop_ids=st.frozensets(st.integers(1, 6), max_size=1),
    min_tokens=st.integers(0, 4),
    include=st.booleans(),
)
def test_speculation_changes_nothing_about_the_end(tokens, width, wrong_every, stops, stop_ids, min_tokens, include):
    thumb = "👍".encode()
    texts = Letters("", "a", "b", "ab", thumb[:1], thumb[1:], "b👍a")
    options = {"stop": stops, "stop_ids": stop_ids, "min_tokens": min_tokens, "include_stop": include}
    plain = run(tokens, texts, width=0, **options)
    assert outcome(run(tokens, texts, width=width, wrong_every=wrong_every, **options)) == outcome(plain)


def test_the_last_block_counts_what_was_kept():
    # Drafts 2 and 3 of the second round are accepted by the model, but the text ends with draft 1.
    done = run([1, 1, 2, 1, 1, 1, 1], Letters("", "a", "b"), stop_ids=frozenset({2}))
    assert [(r.proposed, r.accepted, r.emitted) for r in done.rounds] == [(5, 2, 2)]


def test_an_engine_without_a_tokenizer_knows_no_stop_strings():
    with pytest.raises(UsageError, match="Stop strings need a tokenizer"):
        run([1], None, stop=("x",))
    assert run([1], None, max_tokens=2).text == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": ("",)}, "A stop string is empty"),
        ({"stop": ("\udcff",)}, "A stop string is not UTF-8"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"min_tokens": 21}, "from 0 to max_tokens, 20"),
        ({"min_tokens": True}, "min_tokens is True"),
    ],
)
def test_nonsense(options, message):
    with pytest.raises(UsageError, match=message):
        run([1], Letters(), **options)
