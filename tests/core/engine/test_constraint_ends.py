"""Where a grammar ends a request, and illegal drafts and the end of reasoning inside a block."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from specdecode.core.engine.request import Completion, FinishReason
from specdecode.core.engine.step import StepRow
from specdecode.core.metrics import Round
from specdecode.core.text.constraints import constraint
from tests.core.engine.test_constraints import EOS, FAMILY, WORDS, complete, request
from tests.core.engine.test_stops import Recital
from tests.support.toy import ToyModel
from tests.support.words import Language, cat, letter, star


class Wanted(Recital):
    """A recital in the words of this file."""

    target = SimpleNamespace(shape=(WORDS.vocab_size,))


def recited(tokens: list[int], *, width: int, wrong_every: int = 0, **options) -> Completion:
    """A request whose model wants these tokens whatever its mask says; where the mask forbids one, the run breaks."""
    options = {"prompt": (1,), "max_tokens": 20, "draft_tokens": width, "stop_ids": frozenset(), **options}
    [done] = complete(ToyModel(Wanted(tokens, wrong_every)), [request(**options)])
    assert 1 + sum(r.emitted for r in done.rounds) == len(done.tokens)
    return done


@pytest.mark.parametrize("width", range(6))
@pytest.mark.parametrize("place", range(9))
def test_the_end_of_a_grammar_at_every_place_of_a_block(place, width):
    language = star(letter("b"))
    once = cat(language, letter("c"))  # complete with c: nothing may follow, and no end is drawn
    done = recited([2] * place + [3] + [1] * 9, width=width, language=once, min_tokens=5)
    assert (done.text, done.reason, done.stopped_by) == ("b" * place + "c", FinishReason.STOP, None)
    assert done.tokens == (*[2] * place, 3)
    # Where more could follow the end is drawn; it ends the request in spite of ignore_eos and min_tokens.
    done = recited([2] * (place + 1) + [EOS] + [1] * 9, width=width, language=language, min_tokens=19)
    assert (done.text, done.reason, done.stopped_by) == ("b" * (place + 1), FinishReason.STOP, EOS)
    assert done.tokens == (*[2] * (place + 1), EOS)


@pytest.mark.parametrize("width", range(6))
def test_what_comes_first_ends_the_request(width):
    language = cat(star(letter("b")), letter("c"))
    tokens = [2, 2, 3, 1]

    def end(**options):
        done = recited(tokens, width=width, language=language, **options)
        return done.text, done.reason, done.stopped_by

    assert end(max_tokens=3) == ("bbc", FinishReason.STOP, None)
    assert end(max_tokens=2) == ("bb", FinishReason.LENGTH, None)
    assert end(stop=("bc",)) == ("b", FinishReason.STOP, "bc")
    assert end(stop_ids=frozenset({2})) == ("", FinishReason.STOP, 2)
    assert end(stop_ids=frozenset({3})) == ("bb", FinishReason.STOP, 3)


class Prefers:
    """In place of tables: position p drafts one token, and draws the first of several that its mask allows."""

    target = SimpleNamespace(shape=(WORDS.vocab_size,))
    drafter = None

    def __init__(self, drafted: list[str], wanted: list[list[str]]) -> None:
        self._drafted = [0, *WORDS.ids(*drafted)]
        self._wanted = [[], *(WORDS.ids(*texts) for texts in wanted)]

    def sample(self, table, before, last, *, position: int, seed: int, temperature: float, mask=None, **limits) -> int:
        if table is None:
            return self._drafted[position] if position < len(self._drafted) else EOS
        wanted = self._wanted[position] if position < len(self._wanted) else range(WORDS.vocab_size)
        return next(token for token in wanted if mask is None or mask[token])


def preferred(drafted: list[str], wanted: list[list[str]], language: Language, **options) -> Completion:
    model = ToyModel(Prefers(drafted, wanted), block_size=len(drafted) - 1)
    [done] = complete(model, [request(language, prompt=(1,), **options)])
    return done


def test_an_illegal_draft_in_a_block():
    """FAULTS 21: behind the first token the drafts are a, x, b, and the grammar is a b*."""
    language = cat(letter("c"), cat(letter("a"), star(letter("b"))))
    drafts, wanted = ["c", "a", "c", "b"], [["c"], ["a"], ["c", "b"], ["c", "a", "<eos>"]]
    done = preferred(drafts, wanted, language)
    assert done.tokens == tuple(WORDS.ids("c", "a", "b", "<eos>"))
    assert done.rounds[0] == Round(proposed=1, accepted=1, emitted=2)  # x would be rejected, so it is not verified
    assert preferred(drafts, wanted, language, draft_tokens=0).tokens == done.tokens


def test_the_end_of_reasoning_in_a_block():
    """FAULTS 23: behind the first token the drafts are t1, </think>, and what may not and what may begin the answer."""
    language = cat(letter("a"), star(letter("b")))
    drafts = ["c", "c", "</think>", "c", "a"]
    wanted = [["c"], ["c"], ["</think>"], ["c", "a"], ["c", "b"], ["<eos>"]]
    done = preferred(drafts, wanted, language, starts_thinking=True)
    assert done.tokens == tuple(WORDS.ids("c", "c", "</think>", "a", "b", "<eos>"))
    assert done.rounds[0] == Round(proposed=2, accepted=2, emitted=3)
    assert done.text == "cc</think>ab"
    assert preferred(drafts, wanted, language, starts_thinking=True, draft_tokens=0).tokens == done.tokens


@pytest.mark.parametrize(
    ("thinking", "drafts", "wanted", "accepted", "drawn"),
    [
        (False, ["a", "c", "b"], [["a"], ["c", "b"], ["b"]], 1, "b"),
        (True, ["c", "</think>", "c", "a"], [["c"], ["</think>"], ["c", "a"], ["a"], ["b"]], 2, "a"),
        (True, ["c", "</think>", "a", "b"], [["c"], ["</think>"], ["a"], ["b"], ["c", "b"]], 4, "b"),
    ],
)
def test_one_step_rejects_an_illegal_draft_at_its_row(thinking, drafts, wanted, accepted, drawn):
    """FAULTS 21 and 23 behind the seam, where somebody verifies illegal drafts all the same."""
    grammar = request(FAMILY[0]).grammar
    made = constraint(WORDS, grammar=grammar, thinking=thinking, thinking_budget=None)
    proposed = WORDS.ids(*drafts)
    row = StepRow(
        tokens=[1],
        cache_length=0,
        pages=[0, 1],
        draft_tokens=proposed,
        lookback=[],
        seed=0,
        temperature=0.0,
        mask=made.masks(proposed),
    )
    result = ToyModel(Prefers(drafts, wanted)).step([row], width=len(drafts), draft=False)
    committed = [*proposed[: int(result.num_accepted[0])], int(result.next_tokens[0])]
    assert committed == [*proposed[:accepted], *WORDS.ids(drawn)]
    made.commit(committed)


def test_a_model_that_applies_no_mask_is_found_out():
    with pytest.raises(RuntimeError, match="drew token 1, which the request's mask forbids"):
        recited([2, 1], width=0, language=cat(letter("b"), letter("c")))
