"""Lists of the command line, modes, and the order in which modes take turns."""

from __future__ import annotations

import pytest

from specdecode.core.bench.plan import (
    PLAIN,
    Drafter,
    by_category,
    groups,
    modes,
    parse_devices,
    parse_sizes,
    parse_temperatures,
    parse_widths,
    rotated,
)
from specdecode.core.errors import UsageError

DSPARK, EAGLE = Drafter(method="dspark", most=5), Drafter(method="eagle", most=3)
NGRAM = Drafter(method="ngram", most=5, confident=False)


def test_lists():
    assert parse_widths("0, 3,auto") == (0, 3, "auto")
    assert parse_sizes("--batch", "1,8") == (1, 8)
    assert parse_temperatures("0,0.7") == (0.0, 0.7)
    assert parse_devices("cpu,gpu:0,8") == ("cpu", "gpu:0,8")  # a number behind a GPU is one more of them
    assert parse_devices("8,gpu:0,1,cpu") == ("8", "gpu:0,1", "cpu")


@pytest.mark.parametrize("text", ["", "1,", "x", "-1", "1.5", "auto,Auto"])
def test_no_width(text):
    with pytest.raises(UsageError, match=r"^--draft-tokens .*Write a list as 0,3,auto\.$"):
        parse_widths(text)


@pytest.mark.parametrize(("text", "why"), [("0", "0 is not possible"), ("2,2", "names 2 twice")])
def test_no_size(text, why):
    with pytest.raises(UsageError, match=why):
        parse_sizes("--batch", text)


def test_each_method_at_each_width_after_plain_decoding():
    found, left_out = modes([DSPARK, EAGLE], (0, 3, 5))
    assert [mode.name for mode in found] == ["plain", "dspark 3", "dspark 5", "eagle 3"]
    assert left_out == ["eagle 5 is left out: it drafts up to 3 tokens a round"]


def test_without_widths_each_drafts_what_it_can():
    assert [mode.name for mode in modes([DSPARK, EAGLE, NGRAM], ())[0]] == ["plain", "dspark 5", "eagle 3", "ngram 5"]
    assert modes([], ()) == ([PLAIN], [])


def test_a_lookup_has_no_confidences():
    found, left_out = modes([DSPARK, NGRAM], ("auto",))
    assert [mode.name for mode in found] == ["plain", "dspark auto"]
    assert left_out == ["ngram auto is left out: it has no confidences to choose by"]


def test_a_width_that_nobody_drafts():
    with pytest.raises(UsageError, match=r"--draft-tokens 9 is not possible \(dspark: it drafts up to 5"):
        modes([DSPARK], (3, 9))


def test_everybody_begins_equally_often():
    arms = ["plain", "dspark", "auto"]
    firsts = [rotated(arms, turn)[0] for turn in range(9)]
    assert [firsts.count(arm) for arm in arms] == [3, 3, 3]
    assert all(sorted(rotated(arms, turn)) == sorted(arms) for turn in range(9))


def test_groups_and_categories():
    assert groups([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4], [5]]
    assert by_category(["a1", "b1", "a2"], lambda item: item[0]) == {"a": ["a1", "a2"], "b": ["b1"]}
