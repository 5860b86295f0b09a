"""Masks by their exact values: illegal drafts, the end of a grammar, the end of reasoning, a budget."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from specdecode.core.errors import TokenizerError, UsageError
from specdecode.core.text.bitmask import allows
from specdecode.core.text.constraint import Constraint
from specdecode.core.text.constraints import constraint
from specdecode.core.text.grammar import Grammar
from specdecode.core.text.tokenizer import TextTokenizer
from tests.support.words import Words

LETTERS = Words("<eos>", "a", "b", "x", "ab", "bb", "</think>")
JSON = Words("<eos>", "t1", "</think>", "x", "{", "}", '"', "1", ":", "{}", '{"')
EVERYTHING = list(LETTERS._texts)


def made(words: Words = LETTERS, grammar: str | Grammar | None = "ab*", **options) -> Constraint:
    if isinstance(grammar, str):
        grammar = Grammar(kind="regex", text=grammar)
    result = constraint(words, **{"grammar": grammar, "thinking": False, "thinking_budget": None, **options})
    assert result is not None
    return result


def rows(of: Constraint, drafts: list[int], words: Words = LETTERS) -> list[list[str]]:
    masks = of.masks(drafts)
    assert masks.dtype == np.int32
    assert masks.shape == (len(drafts) + 1, -(-words.vocab_size // 32))
    return [words.named(row) for row in masks]


def test_an_illegal_draft():
    """FAULTS 21: grammar a b*, drafts a, x, b."""
    c = made()
    a, x, b = LETTERS.ids("a", "x", "b")
    assert rows(c, [a, x, b]) == [["a", "ab"], ["<eos>", "b", "bb"], [], []]
    c.commit([a, b])  # a was accepted, x rejected, b drawn in its place
    assert rows(c, []) == [["<eos>", "b", "bb"]]
    c.commit([LETTERS.eos])
    assert c.finished
    assert c.ended


def test_drafts_that_are_worth_verifying():
    c = made(grammar="(ab*|xx)", stop_ids=[])
    a, b, x, eos = (*LETTERS.ids("a", "b", "x"), LETTERS.eos)
    cases = [([a, b, b], 3), ([a, x, b], 1), ([x, x], 1), ([a, eos, b], 1), ([b], 0), ([], 0), ([a, b, x, b], 2)]
    assert [c.useful(drafts) for drafts, _ in cases] == [useful for _, useful in cases]
    assert rows(c, [a, x, b]) == [["a", "x", "ab"], ["<eos>", "b", "bb"], [], []]
    stuck = made(grammar="(abq|abb)")
    assert stuck.useful([a, b, b]) == 2
    assert made(grammar="abq").useful([a, b]) == 1  # what cannot go on is found out when it is committed


def test_drafts_leave_no_trace():
    drafts = [LETTERS.ids("a", "b", "b"), LETTERS.ids("ab", "x"), [0, 0], [], [99, -1]]
    c = made()
    for one in drafts:
        assert rows(c, one)[0] == ["a", "ab"]
        assert rows(c, LETTERS.ids("a"))[1] == ["<eos>", "b", "bb"]
    c.commit(LETTERS.ids("ab"))
    for one in drafts:
        assert rows(c, one)[0] == ["<eos>", "b", "bb"]


def test_think_end_in_the_middle_of_the_drafts():
    """FAULTS 23: drafts t1, </think>, "x", "{" and a JSON schema after the reasoning."""
    schema = Grammar(kind="json_schema", text='{"type": "object", "additionalProperties": false}')
    c = made(JSON, schema, thinking=True)
    everything, begin = list(JSON._texts), ["{", "{}"]
    assert rows(c, JSON.ids("t1", "</think>", "x", "{"), JSON) == [everything, everything, begin, [], []]
    assert rows(c, JSON.ids("t1", "</think>", "{", "}"), JSON) == [everything, everything, begin, ["}"], ["<eos>"]]
    c.commit(JSON.ids("t1", "</think>", "{"))  # "x" was rejected, "{" drawn under the mask
    assert not c.finished
    assert rows(c, JSON.ids("}", "x"), JSON) == [["}"], ["<eos>"], []]
    c.commit(JSON.ids("}"))
    assert c.finished
    assert not c.ended


@pytest.mark.parametrize("place", range(5))
def test_think_end_at_every_place(place):
    t1, end = LETTERS.ids("x", "</think>")
    c = made(thinking=True)
    drafts = [t1] * place + [end] + LETTERS.ids("a", "b")
    free = [EVERYTHING] * (place + 1)
    assert rows(c, drafts) == [*free, ["a", "ab"], ["<eos>", "b", "bb"], ["<eos>", "b", "bb"]]
    c.commit(drafts[: place + 1])
    assert rows(c, []) == [["a", "ab"]]


@pytest.mark.parametrize("budget", range(5))
def test_a_budget_forces_the_end_of_reasoning_at_its_row(budget):
    x, end, a = LETTERS.ids("x", "</think>", "a")
    free, forced = [[EVERYTHING] * budget, ["</think>"]]
    c = made(thinking=True, thinking_budget=budget)
    assert rows(c, [x] * budget + [end, a]) == [*free, forced, ["a", "ab"], ["<eos>", "b", "bb"]]
    assert rows(c, [x] * (budget + 2)) == [*free, forced, [], []]
    alone = made(grammar=None, thinking=True, thinking_budget=budget)
    assert rows(alone, [x] * budget + [end, x]) == [*free, forced, EVERYTHING, EVERYTHING]
    assert not alone.free
    alone.commit([x] * budget + [end])
    assert alone.free


def test_what_was_committed_counts_against_the_budget():
    x = LETTERS.ids("x")
    c = made(grammar=None, thinking=True, thinking_budget=4)
    rows(c, x * 3)
    c.commit(x * 3)
    assert rows(c, x * 2) == [EVERYTHING, ["</think>"], []]


def test_nothing_asked_for_is_no_constraint():
    nothing = {"grammar": None, "thinking": True, "thinking_budget": None}
    assert constraint(LETTERS, **nothing) is None
    assert constraint(None, **nothing) is None
    assert constraint(LETTERS, grammar=None, thinking=False, thinking_budget=3) is None


def test_the_end_of_a_grammar():
    c = made(grammar="ab", stop_ids=LETTERS.ids("x"))
    assert rows(c, LETTERS.ids("ab", "x", "b")) == [["a", "ab"], ["<eos>", "x"], ["<eos>", "x"], []]
    c.commit(LETTERS.ids("ab"))
    assert c.finished
    assert not c.ended
    c.commit(LETTERS.ids("x", "b"))  # behind the end nothing counts, and nothing is an error
    assert c.finished


def test_a_stop_id_that_the_grammar_goes_on_with_is_text():
    c = made(grammar="a(b|x)*", stop_ids=LETTERS.ids("x"))
    c.commit(LETTERS.ids("a", "x"))
    assert not c.ended
    assert rows(c, []) == [["<eos>", "b", "x", "bb"]]


@pytest.mark.parametrize("size", [31, 32, 33, 63, 64, 65])
def test_every_size_of_vocabulary(size):
    words = Words("<eos>", "a", *("" for _ in range(size - 3)), "b")
    c = made(words, "ab*")
    assert rows(c, [1], words) == [["a"], ["<eos>", "b"]]
    c.commit([1, size - 1, 0])
    assert c.ended


def test_markers_are_no_text():
    words = Words("<eos>", "</think>", "<", "/", "t", "h", "i", "n", "k", ">")
    assert rows(made(words, "</think>"), words.ids("<"), words) == [["<"], ["/"]]


def test_the_demo_tokenizer():
    folder = Path(__file__).resolve().parents[3] / "presets" / "demo"
    tokenizer = TextTokenizer.open(folder, bos=0, eos=1, image=2046, vocab_size=2048)
    c = constraint(tokenizer, grammar=Grammar(kind="json_object"), thinking=True, thinking_budget=None)
    answer = tokenizer.encode('{"said": "light</think>", "day": 1}')[1:]
    end = tokenizer.backend.token_to_id("</think>")
    spelt = [token for token in answer if token != end]
    masks = c.masks([end, *spelt])
    assert masks.shape == (len(spelt) + 2, 64)
    assert (masks[0] == -1).all()
    for row, token in zip(masks[1:], spelt, strict=False):
        assert allows(row, token)
        assert not any(allows(row, marker) for marker in tokenizer.added if marker != 1)
    c.commit([end, *spelt])
    assert c.finished


def test_a_grammar_in_lark():
    c = made(grammar=Grammar(kind="lark", text='start: "a" rest\nrest: "b"*'))
    assert rows(c, LETTERS.ids("a")) == [["a", "ab"], ["<eos>", "b", "bb"]]


def test_a_committed_token_that_was_forbidden_is_a_defect_of_the_model():
    with pytest.raises(RuntimeError, match="drew token 3, which the request's mask forbids"):
        made().commit(LETTERS.ids("x"))


SCHEMAS = "Correct it, or leave out what is not supported."


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("json_schema", '{"type": "objct"}', f"The JSON schema cannot be used: Invalid type: objct. {SCHEMAS}"),
        (
            "json_schema",
            '{"type": "object", "dependentRequired": {}}',
            f'The JSON schema cannot be used: Unimplemented keys: ["dependentRequired"]. {SCHEMAS}',
        ),
        (
            "regex",
            "a(b",
            "The regular expression cannot be used: unclosed group in 'a(b'. "
            "The syntax is that of Rust's regex crate, and the whole text must match.",
        ),
        ("regex", "a(?=b)", "look-around, including look-ahead and look-behind, is not supported in 'a(?=b)'"),
        ("lark", "start: foo", 'The grammar cannot be used: at 1(8): unknown name: "foo"'),
        ("lark", "", "The grammar cannot be used: Empty grammar. The syntax is Lark in llguidance's dialect"),
        ("lark", 'x: "a"', "no start rule found"),
        ("lark", '{"grammars": []}', "The grammar cannot be used: it is JSON. The syntax is Lark"),
        ("regex", "", "The grammar allows the empty text only."),
        ("regex", "q", "No text fits the grammar, or none that this vocabulary can spell"),
        ("regex", "\udcff", "The regular expression is not UTF-8 text."),
        ("gbnf", "", "'gbnf' is no kind of grammar. There are json_schema, json_object, regex, lark."),
    ],
)
def test_what_cannot_be_used_is_refused(kind, text, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        made(grammar=Grammar(kind=kind, text=text))


def test_what_is_missing_is_said():
    regex = Grammar(kind="regex", text="a")
    with pytest.raises(UsageError, match="need a tokenizer, and this engine was given none"):
        constraint(None, grammar=regex, thinking=False, thinking_budget=None)
    with pytest.raises(TokenizerError, match="has no token </think>"):
        made(Words("<eos>", "a"), "a", thinking=True)
