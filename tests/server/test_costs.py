"""How steps' seconds are shared out between verifying and drafting."""

from __future__ import annotations

import pytest

from specdecode.core.engine.costs import StepCosts
from specdecode.core.engine.report import StepReport
from specdecode.core.server.costs import Spent, draft_seconds, total

COSTS = StepCosts(plain_points={1: 0.010}, points={(1, 0): 0.013, (1, 5): 0.020})


def report(**changed) -> StepReport:
    return StepReport(**{"decoding": {7: 5}, "prefilling": 0, "width": 5, "drafts": True, "seconds": 0.040, **changed})


def test_a_decoding_step_is_shared_as_it_was_measured():
    # Drafting costs 0.013 - 0.010 of the 0.020 s that such a step took; this one took twice as long.
    assert draft_seconds(COSTS, report()) == pytest.approx(0.006)


def test_a_step_with_prompts_has_what_drafting_costs_otherwise():
    assert draft_seconds(COSTS, report(prefilling=2)) == pytest.approx(0.003)
    assert draft_seconds(COSTS, report(prefilling=2, seconds=0.001)) == 0.001


def test_a_step_that_drafts_nothing():
    assert draft_seconds(COSTS, report(drafts=False)) == draft_seconds(None, report(drafts=False)) == 0


def test_what_nobody_measured_is_not_known():
    assert draft_seconds(None, report()) is None
    one, other = Spent(), Spent()
    one.add(0.5, 0.1)
    other.add(0.25, None)
    other.add(0.25, 0.1)
    assert (one.verify, other.verify, other.seconds) == (0.4, None, 0.5)
    assert total([one, other]) == Spent(steps=3, seconds=1.0, draft=None)
    assert total([one, one]).verify == pytest.approx(0.8)
