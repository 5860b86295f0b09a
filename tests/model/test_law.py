"""Edits, grammars, limits and acceptance rules in the compiled step, against the definitions on its own logits.

Drafts and laws concentrate on a few tokens, so that drafts are accepted about as often as not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from specdecode.core.engine.edits import BANNED, OUTPUT, SEEN, LogitEdits, Penalties
from specdecode.core.engine.step import Acceptance, StepRow
from tests.oracle import law as oracle
from tests.oracle.law import Law
from tests.support.trajectory import run

BATCH, STEPS, WIDTH, FEW = 16, 60, 5, 5


@dataclass(frozen=True, kw_only=True)
class Case:
    """A row, its law, and the tokens that its grammar allows at each place, None without one."""

    row: StepRow
    law: Law
    allowed: np.ndarray | None


def case(rng: np.random.Generator, vocab: int, pages: tuple[int, ...], rule: Acceptance) -> Case:
    """A random request at its first step."""
    few = rng.choice(np.arange(3, vocab - 8), FEW, replace=False).tolist()
    prompt = rng.choice([*few, *range(3, 20)], int(rng.integers(1, 7))).tolist()
    drafts = tuple(rng.choice(few, int(rng.integers(0, WIDTH + 1))).tolist())
    # Values that float32 holds exactly, so that no order of rounding matters.
    edits = {t: (bool(rng.integers(2)), bool(rng.integers(2)), int(rng.integers(3)), 12.0) for t in few}
    edits |= {int(t): (False, True, int(rng.integers(3)), 0.25) for t in rng.integers(3, vocab - 8, 4) if t not in few}
    law = Law(
        temperature=float(rng.choice([0.0, 1e-6, 0.5, 1.0, 2.0])),
        top_k=int(rng.choice([0, 0, 1, 3, 40])),
        top_p=float(rng.choice([1.0, 1.0, 0.5, 0.9])),
        min_p=float(rng.choice([0.0, 0.0, 0.05, 0.5])),
        edits=edits,
        repetition=float(rng.choice([1.0, 1.25, 2.0])),
        frequency=float(rng.choice([0.0, 0.5, 2.0])),
        presence=float(rng.choice([0.0, 0.25, -1.0])),
        free_from=len(prompt) + int(rng.integers(0, WIDTH + 1)),
    )
    allowed = None
    if rng.integers(2):
        allowed = rng.random((len(drafts) + 1, vocab)) < 0.5
        allowed[:, few[:3]] = True
    probs = rng.random((len(drafts), vocab)).astype(np.float32) * 0.01
    probs[:, few] += rng.random((len(drafts), FEW)).astype(np.float32) ** 2
    probs /= probs.sum(axis=1, keepdims=True)
    row = StepRow(
        tokens=prompt,
        cache_length=0,
        pages=pages,
        draft_tokens=drafts,
        lookback=(),
        seed=int(rng.integers(2**63)),
        temperature=law.temperature,
        top_k=law.top_k,
        top_p=law.top_p,
        min_p=law.min_p,
        edits=as_edits(law),
        mask=None if allowed is None else as_mask(allowed),
        acceptance=rule,
        draft_probs=probs if rule else None,
    )
    return Case(row=row, law=law, allowed=allowed)


def partly_right(small, rng: np.random.Generator, cases: list[Case]) -> list[Case]:
    """The cases that match draws, with the draws themselves as drafts up to a random place."""
    rights = [int(rng.integers(WIDTH + 1)) for _ in cases]
    for n in range(WIDTH):
        short = [replace(c.row, draft_tokens=c.row.draft_tokens[:n], mask=masked(c, n)) for c in cases]
        result, _ = run(small, [replace(row, draft_probs=None) for row in short], width=WIDTH, draft=False)
        for place, (c, right) in enumerate(zip(cases, rights, strict=True)):
            known = c.row.draft_tokens
            if c.row.acceptance is Acceptance.MATCH and n < min(right, len(known)):
                better = (*known[:n], int(result.next_tokens[place]), *known[n + 1 :])
                cases[place] = replace(c, row=replace(c.row, draft_tokens=better))
    return cases


def masked(case: Case, drafts: int) -> np.ndarray | None:
    return None if case.row.mask is None else case.row.mask[: drafts + 1]


def as_edits(law: Law) -> LogitEdits:
    marks = [BANNED * banned + SEEN * seen + OUTPUT * count for banned, seen, count, _ in law.edits.values()]
    return LogitEdits(
        tokens=np.array(list(law.edits), np.int32),
        marks=np.array(marks, np.int32),
        bias=np.array([bias for *_, bias in law.edits.values()], np.float32),
        penalties=Penalties(repetition=law.repetition, frequency=law.frequency, presence=law.presence),
        free_from=law.free_from,
    )


def as_mask(allowed: np.ndarray) -> np.ndarray:
    """Booleans [rows, V] as bits, int32 [rows, V / 32]."""
    padded = np.pad(allowed, ((0, 0), (0, -allowed.shape[1] % 32)))
    return np.packbits(padded, axis=1, bitorder="little").view(np.int32)


def expected(case: Case, logits: np.ndarray, edit=oracle.edited, tests=None) -> tuple[int, int]:
    """Accepted drafts and the next token, from the step's own logits [WIDTH + 1, V]."""
    row, drafts = case.row, case.row.draft_tokens
    start = len(row.tokens)
    laws = []
    for n in range(len(drafts) + 1):
        allowed = None if case.allowed is None else case.allowed[n]
        z = edit(logits[n], case.law, drafts[:n], start + n, allowed)
        laws.append(oracle.probabilities(z, case.law))
    if row.acceptance is Acceptance.MATCH or not drafts:
        return oracle.match(laws, drafts, row.seed, start)
    rule = tests or (oracle.rejection if row.acceptance is Acceptance.REJECTION else oracle.block)
    return oracle.tested(rule(np.stack(laws), row.draft_probs.astype(np.float64), drafts), row.seed, start)


@pytest.fixture(scope="module", params=list(Acceptance), ids=lambda rule: rule.name.lower())
def steps(request, small) -> list[tuple[Case, np.ndarray, tuple[int, int]]]:
    """Cases with their logits and what the step made of them."""
    rng = np.random.default_rng(int(request.param) + 5)
    done = []
    for _ in range(STEPS):
        cases = [
            case(rng, small.vocab_size, (place,), request.param if rng.random() < 0.8 else Acceptance.MATCH)
            for place in range(BATCH)
        ]
        cases = partly_right(small, rng, cases)
        result, logits = run(small, [c.row for c in cases], width=WIDTH, draft=False)
        assert result.finite.all()
        made = zip(result.num_accepted.tolist(), result.next_tokens.tolist(), strict=True)
        done += zip(cases, logits.copy(), made, strict=True)
    return done


def mistakes(steps, **changed) -> int:
    """In how many cases the definitions, some of them changed, say something else."""
    return sum(expected(c, logits, **changed) != made for c, logits, made in steps)


def test_steps_follow_the_definitions(steps):
    assert mistakes(steps) == 0
    accepted = {made[0] for _, _, made in steps}
    assert accepted == set(range(WIDTH + 1))


def forgets_drafts(row, law, drafts, position, allowed=None):
    """Penalises what was committed only, as if a block's own tokens did not count."""
    return oracle.edited(row, law, [], position, allowed)


def bans_whole_blocks(row, law, drafts, position, allowed=None):
    """Lifts a ban between rounds only."""
    return oracle.edited(row, law, drafts, position - len(drafts), allowed)


def without(name: str, value: float) -> Callable:
    """Leaves one limit or penalty out."""

    def changed(row, law, drafts, position, allowed=None):
        return oracle.edited(row, replace(law, **{name: value}), drafts, position, allowed)

    return changed


def unmasked(row, law, drafts, position, allowed=None):
    """Ignores the grammar behind the first row."""
    return oracle.edited(row, law, drafts, position, allowed if not drafts else None)


@pytest.mark.parametrize(
    "mistake",
    [
        forgets_drafts,
        bans_whole_blocks,
        unmasked,
        without("repetition", 1.0),
        without("frequency", 0.0),
        without("presence", 0.0),
    ],
)
def test_a_wrong_law_is_noticed(steps, mistake):
    assert mistakes(steps, edit=mistake) > 0


def test_min_p_matters(steps):
    changed = [(replace(c, law=replace(c.law, min_p=0.0)), logits, made) for c, logits, made in steps]
    assert mistakes(changed) > 0


def test_another_rule_is_noticed(steps):
    if all(c.row.acceptance is Acceptance.MATCH for c, _, _ in steps):
        pytest.skip("there is no ratio test to replace")
    kind = max(c.row.acceptance for c, _, _ in steps)
    other = oracle.block if kind is Acceptance.REJECTION else oracle.rejection
    assert mistakes(steps, tests=other) > 0


def test_a_grammar_without_a_token_fails_its_request_alone(small):
    rng = np.random.default_rng(1)
    cases = [case(rng, small.vocab_size, (place,), Acceptance.MATCH) for place in range(3)]
    none = np.zeros((len(cases[1].row.draft_tokens) + 1, -(-small.vocab_size // 32)), np.int32)
    rows = [cases[0].row, replace(cases[1].row, mask=none), cases[2].row]
    result, _ = run(small, rows, width=WIDTH, draft=False)
    assert result.finite.tolist() == [True, False, True]


def test_edits_that_come_and_go_leave_nothing_behind(small):
    """The same batch with, without and with edits again."""
    rng = np.random.default_rng(2)
    rows = [case(rng, small.vocab_size, (place,), Acceptance.MATCH).row for place in range(4)]
    bare = [replace(row, edits=None, mask=None, min_p=0.0, top_k=0, top_p=1.0) for row in rows]
    outcomes = []
    for batch in (rows, bare, rows, bare):
        result, _ = run(small, batch, width=WIDTH, draft=False)
        outcomes.append((result.num_accepted.tolist(), result.next_tokens.tolist()))
    assert outcomes[0] == outcomes[2] != outcomes[1] == outcomes[3]
