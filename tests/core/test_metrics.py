"""Acceptance figures on a recorded trace, their invariants, and nothing divided by zero."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdecode.core.metrics import DEFINITIONS, Acceptance, Round, Timing, median


def rnd(proposed: int, accepted: int, emitted: int | None = None) -> Round:
    return Round(proposed=proposed, accepted=accepted, emitted=accepted + 1 if emitted is None else emitted)


@st.composite
def rounds(draw):
    proposed = draw(st.integers(0, 5))
    accepted = draw(st.integers(0, proposed))
    ended = accepted > 0 and draw(st.booleans())
    return rnd(proposed, accepted, accepted if ended else None)


def test_one_recorded_trace():
    # Two full rounds, a rejection at once, the last round of a budget, and one whose third draft ended
    # the sequence.
    a = Acceptance.of([rnd(5, 5), rnd(5, 0), rnd(5, 2), rnd(2, 2), rnd(5, 3, 3), rnd(0, 0)])
    assert (a.rounds, a.proposed, a.accepted, a.emitted) == (5, 22, 12, 16)
    assert a.length == 12 / 5
    assert a.length_with_bonus == 16 / 5
    assert a.rate == 12 / 22
    assert a.histogram == (1, 0, 2, 1, 0, 1)
    assert a.per_position == (4 / 5, 4 / 5, 2 / 4, 1 / 3, 1 / 3)
    assert a.per_position_conditional == (4 / 5, 4 / 4, 2 / 3, 1 / 1, 1 / 1)


@given(trace=st.lists(rounds(), max_size=30))
def test_invariants(trace):
    a = Acceptance.of(trace)
    assert 0 <= a.accepted <= a.proposed
    assert sum(a.histogram) == a.rounds
    assert sum(k * count for k, count in enumerate(a.histogram)) == a.accepted
    assert a.accepted <= a.emitted <= a.accepted + a.rounds
    shares = (*a.per_position, *a.per_position_conditional)
    assert all(0 <= share <= 1 for share in shares)
    assert all(math.isfinite(x) for x in (a.length, a.length_with_bonus, a.rate) if x is not None)


@pytest.mark.parametrize("trace", [[], [rnd(0, 0), rnd(0, 0)]])
def test_without_proposals_there_are_no_ratios(trace):
    a = Acceptance.of(trace)
    assert (a.rounds, a.length, a.length_with_bonus, a.rate) == (0, None, None, None)
    assert a.histogram == a.per_position == a.per_position_conditional == ()
    assert "nan" not in str(asdict(a))


def test_time_per_token():
    assert Timing(first_token=1.0, last_token=3.0, tokens=5).per_token == 0.5
    assert Timing(first_token=1.0, last_token=1.0, tokens=1).per_token is None
    assert Timing(first_token=None, last_token=None, tokens=0).per_token is None


def test_median():
    assert median([]) is None
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0]) == 2.5


def test_every_printed_term_is_defined():
    assert all(meaning for meaning in DEFINITIONS.values())
    assert {"rounds", "accepted", "acceptance length", "time per output token"} <= DEFINITIONS.keys()
