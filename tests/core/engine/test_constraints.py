"""Constrained speculation = constrained plain decoding = the definition, one token at a time."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode.core.engine.engine import Engine
from specdecode.core.engine.request import Completion, FailedEvent, FinishedEvent, FinishReason, Request
from specdecode.core.errors import UsageError
from specdecode.core.text.constraint import Constraint
from specdecode.core.text.constraints import constraint
from specdecode.core.text.grammar import Grammar
from tests.support import wrong_masks
from tests.support.toy import Tables, ToyModel
from tests.support.words import NEVER, Language, Words, allowed, alt, cat, letter, star

WORDS = Words("<eos>", "a", "b", "c", "ab", "bc", "</think>", "ca")
EOS, THINK_END = 0, 6
LETTERS = "abc"


def request(language: Language | None = None, **options) -> Request:
    grammar = None if language is None else Grammar(kind="regex", text=language.pattern())
    defaults = {"prompt": (1, 2), "max_tokens": 12, "stop_ids": frozenset({EOS}), "grammar": grammar}
    return Request(**{**defaults, **options})


def complete(model: ToyModel, requests: list[Request], **options) -> list[Completion]:
    engine = Engine(model, tokenizer=WORDS, **options)
    ids = [engine.submit(r) for r in requests]
    done = {e.request_id: e.completion for e in engine.run() if isinstance(e, FinishedEvent)}
    return [done[i] for i in ids]


def definition(tables: Tables, r: Request, language: Language | None) -> tuple[tuple[int, ...], FinishReason]:
    """Tokens and the reason to end, without masks, matchers, engines or drafts."""
    tokens, rest, thinking, left = list(r.prompt), language, r.starts_thinking, r.thinking_budget
    while len(tokens) < len(r.prompt) + r.max_tokens:
        mask = np.ones(WORDS.vocab_size, np.bool_)
        if thinking and left == 0:
            mask = np.arange(WORDS.vocab_size) == THINK_END
        elif not thinking and rest is not None:
            mask = allowed(WORDS, rest, [EOS])
        how = {"position": len(tokens), "seed": r.seed, "temperature": r.temperature, "top_k": r.top_k}
        token = tables.sample(tables.target, tokens[-2] if len(tokens) > 1 else 0, tokens[-1], mask=mask, **how)
        tokens.append(token)
        written = tuple(tokens[len(r.prompt) :])
        if token in r.stop_ids or (token == EOS and not thinking and rest is not None):
            return written, FinishReason.STOP
        if thinking:
            thinking, left = token != THINK_END, None if left is None else left - 1
        elif rest is not None:
            rest = rest.after(WORDS.token_bytes(token).decode())
            if all(rest.after(one) == NEVER for one in LETTERS):
                return written, FinishReason.STOP
    return written, FinishReason.LENGTH


languages = st.recursive(
    st.sampled_from(LETTERS).map(letter),
    lambda inner: st.builds(cat, inner, inner) | st.builds(alt, inner, inner) | inner.map(star),
    max_leaves=7,
).map(lambda language: cat(letter("a"), language))


@st.composite
def cases(draw) -> tuple[Request, Language | None]:
    language = draw(st.none() | languages)
    r = request(
        language,
        prompt=tuple(draw(st.lists(st.integers(0, 7), min_size=1, max_size=6))),
        max_tokens=draw(st.integers(1, 14)),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        seed=draw(st.integers(0, 5)),
        top_k=draw(st.sampled_from([0, 0, 3])),
        draft_tokens=draw(st.sampled_from([0, 1, 2, 3, 4, 5])),
        starts_thinking=draw(st.booleans()),
        thinking_budget=draw(st.none() | st.integers(0, 5)),
        stop_ids=draw(st.sampled_from([frozenset({EOS}), frozenset()])),
    )
    return r, language


@settings(max_examples=200, deadline=None)
@given(
    batch=st.lists(cases(), min_size=1, max_size=3),
    agreement=st.sampled_from([0.5, 0.9, 1.0]),
    token_budget=st.integers(1, 20),
)
def test_speculative_is_plain_is_the_definition(batch, agreement, token_budget):
    tables = Tables.random(WORDS.vocab_size, seed=3, agreement=agreement)
    requests = [r for r, _ in batch]
    speculative = complete(ToyModel(tables), requests, token_budget=token_budget)
    plain = complete(ToyModel(tables), [replace(r, draft_tokens=0) for r in requests])
    for (r, language), fast, slow in zip(batch, speculative, plain, strict=True):
        assert (fast.tokens, fast.reason) == definition(tables, r, language)
        assert (slow.tokens, slow.reason, slow.text) == (fast.tokens, fast.reason, fast.text)
        check_text(r, fast)


def check_text(r: Request, done: Completion) -> None:
    """A finished answer belongs to its language, and reasoning stays within its budget."""
    tokens = list(done.tokens)
    end = tokens.index(THINK_END) if r.starts_thinking and THINK_END in tokens else None
    if r.starts_thinking and r.thinking_budget is not None:
        assert (len(tokens) if end is None else end) <= r.thinking_budget
    thought_only = r.starts_thinking and end is None
    if done.reason is FinishReason.STOP and r.grammar is not None and not thought_only:
        answer = done.text.partition("</think>")[2] if r.starts_thinking else done.text
        assert re.fullmatch(r.grammar.text, answer)


FAMILY = [
    cat(letter("a"), star(letter("b"))),
    cat(letter("a"), star(alt(cat(letter("b"), letter("c")), letter("a")))),
    star(alt(letter("c"), cat(letter("a"), letter("b")))),
    cat(star(letter("c")), cat(star(letter("a")), star(letter("b")))),
]


def differs(model_type: type[ToyModel]) -> bool:
    """Whether a model is caught by a fixed set of requests; a token that the mask forbids is found by the engine."""
    tables = Tables.random(WORDS.vocab_size, seed=4, agreement=0.9)
    pairs = [
        (request(language, temperature=t, seed=n, max_tokens=14), language)
        for n in range(4)
        for t in (0.0, 1.0)
        for language in FAMILY
    ]
    try:
        results = complete(model_type(tables), [r for r, _ in pairs])
    except RuntimeError:
        return True
    found = [(done.tokens, done.reason) for done in results]
    return found != [definition(tables, r, language) for r, language in pairs]


def test_the_right_model_is_not_caught():
    assert not differs(ToyModel)


@pytest.mark.parametrize(
    "model_type", [wrong_masks.MasksAreNotAdvanced, wrong_masks.BonusIsFree, wrong_masks.MasksAfterDrawing]
)
def test_a_wrong_model_is_caught(model_type):
    assert differs(model_type)


def acceptable_behind(masks: np.ndarray, drafts: list[int]) -> bool:
    """Whether some draft behind a forbidden one would pass its own row."""
    legal = [bool(masks[j, d // 32] >> (d % 32) & 1) for j, d in enumerate(drafts)]
    return any(legal[legal.index(False) :]) if False in legal else False


class AllOnesBehind(Constraint):
    """The mistake of FAULTS 21: rows behind an illegal draft allow everything."""

    def masks(self, drafts):
        rows = super().masks(drafts)
        rows[~rows.any(axis=1)] = -1
        return rows


@pytest.mark.parametrize("constraint_type", [Constraint, AllOnesBehind])
def test_nothing_behind_an_illegal_draft_could_be_accepted(constraint_type):
    made = constraint(WORDS, grammar=request(FAMILY[0]).grammar, thinking=False, thinking_budget=None)
    drafts = [1, 3, 2, 2]  # a, then c against the grammar, then b b
    masks = constraint_type(made._state).masks(drafts)
    assert acceptable_behind(masks, drafts) is (constraint_type is AllOnesBehind)


class Steps(ToyModel):
    """Keeps the rows it was given."""

    def step(self, rows, *, width: int, draft: bool):
        self.rows = [*getattr(self, "rows", []), *rows]
        return super().step(rows, width=width, draft=draft)


def test_rows_have_masks_where_something_is_drawn():
    model = Steps(Tables.random(WORDS.vocab_size, seed=3))
    prompt = tuple(n % 6 for n in range(11))
    complete(model, [request(FAMILY[2], prompt=prompt, temperature=1.0)], token_budget=4)
    shapes = [None if row.mask is None else (row.mask.dtype, row.mask.shape) for row in model.rows]
    assert shapes[:2] == [None, None]  # the first two of the prompt's three chunks
    assert shapes[2:] == [(np.int32, (len(row.draft_tokens) + 1, 1)) for row in model.rows[2:]]
    free = Steps(Tables.random(WORDS.vocab_size, seed=3))
    complete(free, [request(), request(starts_thinking=True, thinking_budget=0)])
    by_seed = [row.mask is None for row in free.rows]
    assert by_seed[:2] == [True, False]  # the first step: nothing asked for, </think> forced
    assert all(by_seed[2:])


def test_a_grammar_that_the_vocabulary_cannot_finish_fails_alone():
    engine = Engine(ToyModel(Tables.random(WORDS.vocab_size, seed=3)), tokenizer=WORDS)
    stuck = engine.submit(request(grammar=Grammar(kind="regex", text="abq")))
    other = engine.submit(request(FAMILY[0]))
    events = list(engine.run())
    [failed] = [e for e in events if isinstance(e, FailedEvent)]
    assert failed == FailedEvent(
        request_id=stuck, message="The grammar needs text that no token of the vocabulary spells."
    )
    assert [e.request_id for e in events if isinstance(e, FinishedEvent)] == [other]


def test_what_cannot_be_submitted():
    model = ToyModel(Tables.random(WORDS.vocab_size, seed=3))
    with pytest.raises(UsageError, match="The regular expression cannot be used: unclosed group"):
        Engine(model, tokenizer=WORDS).submit(request(grammar=Grammar(kind="regex", text="(")))
    with pytest.raises(UsageError, match="need a tokenizer, and this engine was given none"):
        Engine(model).submit(request(FAMILY[0]))
    with pytest.raises(UsageError, match="need a tokenizer"):
        Engine(model).submit(request(starts_thinking=True, thinking_budget=1))
    for budget in (-1, True, 2.0):
        with pytest.raises(UsageError, match=f"thinking_budget is {budget}; it must be a whole number, 0 or more"):
            request(thinking_budget=budget)
