"""The acceptance rules, enumerated: every block that a drafter can propose, every outcome of its tests, no sampling."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.oracle.law import Trial, block, match, rejection

VOCAB, DRAFTS = 3, 2


def laws(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random laws of token n + 1 given the tokens before: target [V, V, V] by depth, drafter the same."""
    rng = np.random.default_rng(seed)

    def random(*shape: int) -> np.ndarray:
        mass = rng.random((*shape, VOCAB)) ** 3 + 0.01
        return mass / mass.sum(axis=-1, keepdims=True)

    depths = [random(*[VOCAB] * n) for n in range(DRAFTS + 1)]
    return depths, [random(*[VOCAB] * n) for n in range(DRAFTS)]


def joint(target) -> np.ndarray:
    """The target's law of three tokens."""
    law = target[0]
    for depth in target[1:]:
        law = law[..., None] * depth
    return law


def committed(target, drafter, rule) -> np.ndarray:
    """The law of the three tokens after a round: those committed, and the target's own behind them."""
    law = np.zeros((VOCAB,) * (DRAFTS + 1))
    for drafts in itertools.product(range(VOCAB), repeat=DRAFTS):
        p = np.stack([target[n][drafts[:n]] for n in range(DRAFTS + 1)])
        q = np.stack([drafter[n][drafts[:n]] for n in range(DRAFTS)])
        proposed = np.prod([q[n, x] for n, x in enumerate(drafts)])
        test = rule(p, q, drafts)
        for n, chance in enumerate(test.chances()):
            for token in range(VOCAB):
                add(law, target, (*drafts[:n], token), proposed * chance * test.residuals[n][token])
    return law


def add(law: np.ndarray, target, tokens: tuple[int, ...], mass: float) -> None:
    """Spread a round's mass over what the target does after its tokens."""
    if len(tokens) == DRAFTS + 1:
        law[tokens] += mass
        return
    for token in range(VOCAB):
        add(law, target, (*tokens, token), mass * target[len(tokens)][tokens][token])


@pytest.mark.parametrize("rule", [rejection, block])
@pytest.mark.parametrize("seed", range(8))
def test_the_committed_law_is_the_targets(rule, seed):
    target, drafter = laws(seed)
    np.testing.assert_allclose(committed(target, drafter, rule), joint(target), atol=1e-12)


def bonus_from_residual(rule):
    """Draws the corrected token from the target's whole law, as if nothing had been rejected."""

    def wrong(p, q, drafts):
        made = rule(p, q, drafts)
        return Trial(passes=made.passes, residuals=tuple(p), joint=made.joint)

    return wrong


def always_passes_first(rule):
    """Never tests the first draft."""

    def wrong(p, q, drafts):
        made = rule(p, q, drafts)
        return Trial(passes=(1.0, *made.passes[1:]), residuals=made.residuals, joint=made.joint)

    return wrong


def told_another_q(rule):
    """Is told the drafter's law at another temperature than the drafts were drawn at."""

    def wrong(p, q, drafts):
        flat = q**0.5
        return rule(p, flat / flat.sum(axis=1, keepdims=True), drafts)

    return wrong


def blocks_tested_one_by_one(rule):
    """Takes the joint tests of a block for tests of single drafts."""

    def wrong(p, q, drafts):
        made = rule(p, q, drafts)
        return Trial(passes=made.passes, residuals=made.residuals, joint=not made.joint)

    return wrong


@pytest.mark.parametrize("rule", [rejection, block])
@pytest.mark.parametrize(
    "mistake", [bonus_from_residual, always_passes_first, told_another_q, blocks_tested_one_by_one]
)
def test_a_wrong_rule_changes_the_law(rule, mistake):
    target, drafter = laws(3)
    assert np.abs(committed(target, drafter, mistake(rule)) - joint(target)).max() > 1e-3


def test_block_verification_accepts_no_less():
    """Sun et al.'s theorem: the expected length of a joint test is at least that of single ones."""
    for seed in range(8):
        target, drafter = laws(seed)
        lengths = []
        for rule in (rejection, block):
            total = 0.0
            for drafts in itertools.product(range(VOCAB), repeat=DRAFTS):
                p = np.stack([target[n][drafts[:n]] for n in range(DRAFTS + 1)])
                q = np.stack([drafter[n][drafts[:n]] for n in range(DRAFTS)])
                chance = np.prod([q[n, x] for n, x in enumerate(drafts)])
                total += chance * sum(n * c for n, c in enumerate(rule(p, q, drafts).chances()))
            lengths.append(total)
        assert lengths[1] >= lengths[0] - 1e-12


def test_sample_and_match_commits_the_very_draw():
    rng = np.random.default_rng(1)
    rows = [mass / mass.sum() for mass in rng.random((4, 9))]
    tokens = [match(rows[n:], [], 5, 10 + n)[1] for n in range(4)]
    assert match(rows, tokens[:3], 5, 10) == (3, tokens[3])
    wrong = [tokens[0], (tokens[1] + 1) % 9, tokens[2]]
    assert match(rows, wrong, 5, 10) == (1, tokens[1])
