"""Draft widths are about time alone: every policy gives the same tokens, and the measured one gives them soonest."""

from __future__ import annotations

import math

import pytest

from specdecode.core.engine.costs import StepCosts, measure
from specdecode.core.engine.engine import Engine
from specdecode.core.engine.request import FinishedEvent, Request
from specdecode.core.engine.widths import TRIAL_ROUNDS, AutoWidth, ConfidenceThreshold, Draft, FullWidth
from specdecode.core.errors import UsageError
from tests.support.toy import Tables, ToyModel


class Timed(ToyModel):
    """A toy whose steps take what `price` says on a clock of its own."""

    def __init__(self, tables, price, **options):
        super().__init__(tables, **options)
        self.price, self.now = price, 0.0

    def step(self, rows, *, width, draft):
        self.now += self.price(len(rows), width, draft)
        return super().step(rows, width=width, draft=draft)


def cheap(requests, width, draft):
    """A machine that waits for memory: more rows cost little."""
    return 1.0 + 0.02 * requests * (1 + width) + (0.2 if draft else 0.0)


def middling(requests, width, draft):
    return 1.0 + 0.22 * (requests * (1 + width) - 1) + (0.3 if draft else 0.0)


def dear(requests, width, draft):
    """A machine that computes: a row costs as much as any other."""
    return 0.2 + 0.8 * requests * (1 + width) + (0.5 * requests if draft else 0.0)


def finish(model, *, widths=None, draft_tokens=None, requests=4, temperature=0.7, tokens=160, max_batch=2):
    engine = Engine(model, max_batch=max_batch, widths=widths, clock=lambda: getattr(model, "now", 0.0))
    ids = [
        engine.submit(
            Request(prompt=(1, 2, 3), max_tokens=tokens, seed=seed, temperature=temperature, draft_tokens=draft_tokens)
        )
        for seed in range(requests)
    ]
    done = {e.request_id: e.completion for e in engine.run() if isinstance(e, FinishedEvent)}
    return [done[i].tokens for i in ids]


def toy(agreement, price=cheap):
    tables = Tables.random(12, seed=3, agreement=agreement)
    return Timed(tables, price, num_pages=512, max_length=256, page_size=8)


@pytest.mark.parametrize("agreement", [0.3, 0.9])
def test_every_policy_gives_the_tokens_of_plain_decoding(agreement):
    plain = finish(toy(agreement), draft_tokens=0)
    for widths in (FullWidth(), ConfidenceThreshold(0.5), ConfidenceThreshold(1.0), auto_for(toy(agreement, middling))):
        assert finish(toy(agreement), widths=widths) == plain


def auto_for(model, max_batch=2):
    costs = measure(model, max_batch=max_batch, clock=lambda: model.now)
    model.now = 0.0
    return AutoWidth(costs=costs, block=model.block_size)


@pytest.mark.parametrize("price", [cheap, middling, dear])
@pytest.mark.parametrize("agreement", [0.15, 0.6, 0.95])
def test_auto_is_within_a_twentieth_of_the_best_fixed_width_and_of_plain(agreement, price):
    def seconds(**options):
        model = toy(agreement, price)
        widths = auto_for(model) if options.pop("auto", False) else None
        finish(model, widths=widths, tokens=240, **options)
        return model.now

    fixed = min(seconds(draft_tokens=width) for width in range(6))
    assert seconds(auto=True) <= 1.05 * fixed


def test_a_policy_that_ignores_costs_fails_that_comparison():
    model = toy(0.15, dear)
    finish(model, tokens=240)
    plain = toy(0.15, dear)
    finish(plain, tokens=240, draft_tokens=0)
    assert model.now > 1.05 * plain.now


def test_a_threshold_cuts_before_the_first_doubt_and_never_looks_behind_it():
    logit = math.log(0.9 / 0.1)
    doubt = math.log(0.4 / 0.6)
    drafts = [
        Draft(logits=[logit, doubt, logit], limit=3),
        Draft(logits=[logit, logit, logit], limit=2),
        Draft(logits=[], limit=0),
    ]
    assert ConfidenceThreshold(0.5).choose(drafts) == [1, 2, 0]
    assert ConfidenceThreshold(0.0).choose(drafts) == [3, 2, 0]
    with pytest.raises(UsageError, match=r"1\.5 is outside 0 to 1"):
        ConfidenceThreshold(1.5)


def test_auto_takes_the_width_with_the_most_tokens_per_second():
    def chosen(logits, limit=5):
        costs = StepCosts(plain_points={1: 1.0}, points={(1, w): 1.0 + 0.2 * w for w in range(6)})
        policy = AutoWidth(costs=costs, block=5)
        assert policy.choose([Draft(logits=logits, limit=limit)]) == [limit]  # nothing is known yet
        for _ in range(TRIAL_ROUNDS):
            policy.observe([0.0] * 5, 0, 0)
        return policy.choose([Draft(logits=logits, limit=limit)])

    sure, unsure = 9.0, -9.0
    assert chosen([sure] * 5) == [5]
    assert chosen([sure, sure, unsure, sure, sure]) == [2]
    assert chosen([unsure] * 5) == [0]
    assert chosen([sure] * 5, limit=1) == [1]


def test_costs_are_met_where_measured_and_linear_between():
    costs = StepCosts(
        plain_points={1: 1.0, 5: 3.0},
        points={(1, 0): 1.5, (1, 5): 2.5, (5, 0): 4.0, (5, 5): 9.0},
    )
    assert (costs.plain(1), costs.plain(3), costs.plain(9)) == (1.0, 2.0, 5.0)
    assert costs.speculative(1, 5) == 2.5
    assert costs.speculative(3, 0) == pytest.approx(2.75)
    costs.record(1, 5, 3.5, draft=True)
    moved = costs.speculative(1, 5)
    assert 2.5 < moved < 2.6
    costs.record(1, 5, 300.0, draft=True)  # the machine was busy elsewhere
    assert costs.speculative(1, 5) == moved


def test_a_machine_that_slows_down_does_not_speak_against_the_width_in_use():
    """Every step takes half as long again, and only one width is run: it stays as dear as the others."""
    costs = StepCosts(plain_points={1: 1.0}, points={(1, w): 1.0 + 0.2 * w for w in range(6)})
    for _ in range(200):
        costs.record(1, 5, 1.5 * 2.0, draft=True)
    assert costs.speculative(1, 5) / costs.speculative(1, 2) == pytest.approx(2.0 / 1.4, rel=0.1)


def test_a_width_that_is_really_dearer_is_found_out():
    """Two widths in turn, one of which takes half as long again as it was measured to."""
    costs = StepCosts(plain_points={1: 1.0}, points={(1, w): 1.0 + 0.2 * w for w in range(6)})
    for _ in range(200):
        costs.record(1, 5, 1.5 * 2.0, draft=True)
        costs.record(1, 2, 1.4, draft=True)
    assert costs.speculative(1, 5) / costs.speculative(1, 2) == pytest.approx(1.5 * 2.0 / 1.4, rel=0.1)


def test_measuring_uses_pages_that_exist_and_leaves_out_what_does_not_fit():
    small = Timed(Tables.random(8, seed=1), cheap, num_pages=4, max_length=32, page_size=4)
    costs = measure(small, max_batch=8, clock=lambda: small.now)
    assert set(costs.plain_points) == {1}
    assert costs.plain(1) == pytest.approx(cheap(1, 0, False))
    assert costs.speculative(1, 5) == pytest.approx(cheap(1, 5, True))
