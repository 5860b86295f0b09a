"""Spreads, parts of a step, the byte floor: by hand."""

from __future__ import annotations

import pytest

from specdecode.core.bench.document import AcceptanceFigures
from specdecode.core.bench.measure import Counts, Played, Reply, Run
from specdecode.core.bench.parts import DraftShares, Floor, parts
from specdecode.core.bench.plan import PLAIN, Mode
from specdecode.core.bench.rows import Place, rows
from specdecode.core.bench.spread import Spread, percentile
from specdecode.core.bench.timed import Span
from specdecode.core.bench.traffic import Step, traffic
from specdecode.core.checkpoint.locate import preset_folders
from specdecode.core.engine.ngram import PromptLookup
from specdecode.core.engine.step import StepResult
from specdecode.core.metrics import Round
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig
from tests.support.toy import Tables, ToyModel

DEMO = preset_folders()["demo"]
SERVER = Mode(method="server", width=2)


def test_percentiles():
    assert percentile([], 0.5) is None
    assert percentile([3.0], 0.95) == 3.0
    assert percentile([4.0, 1.0, 2.0, 3.0], 0.5) == 2.5
    assert percentile(list(map(float, range(101))), 0.95) == 95.0


def test_a_spread_is_not_moved_by_one_slow_repeat():
    spread = Spread.of([10.0, 11.0, 90.0])
    assert (spread.median, spread.mad) == (11.0, 1.0)


def span(requests: int, width: int, draft: bool, seconds: float, *, decode: bool = True, context: int = 64) -> Span:
    return Span(requests=requests, width=width, draft=draft, decode=decode, context=context, seconds=seconds)


def test_the_parts_add_up_to_the_wall():
    shares = DraftShares({(1, 2): (3.0, 4.0), (4, 2): (4.0, 8.0)})  # drafting is a quarter, and half
    spans = [span(1, 0, True, 3.0, decode=False), span(1, 2, True, 4.0), span(4, 2, True, 2.0), span(1, 0, False, 1.0)]
    found = parts(spans, 12.0, 0.5, shares)
    assert (found.prompt, found.draft, found.verify) == (3.0, 1.0 + 1.0 + 0.5, 3.0 + 1.0 + 1.0)
    assert (found.decode_steps, found.steps, found.host) == (3, 4, pytest.approx(1.5))
    assert found.wall == pytest.approx(12.0)


def test_shares_between_measured_batches():
    measured = {(1, 0): (3.0, 4.0), (1, 4): (9.0, 10.0), (5, 0): (7.0, 10.0), (5, 4): (17.0, 20.0)}
    shares = DraftShares(measured)
    assert [shares.of(n, 0) for n in (1, 5, 9)] == pytest.approx([1 / 4, 3 / 10, 3 / 10])
    assert shares.of(1, 2) == pytest.approx(1 / 7)  # 6 and 7 seconds
    assert shares.of(3, 2) == pytest.approx(2 / 11)  # 9 and 11
    assert DraftShares({}).of(1, 3) == 0.0
    assert DraftShares({(1, 2): (5.0, 4.0)}).of(1, 2) == 0.0  # a clock that says that drafting takes less than nothing


class SlowDrafter(ToyModel):
    """A step takes a tick, and drafting three more."""

    now = 0.0

    def step(self, rows, *, width, draft) -> StepResult:
        self.now += 4.0 if draft else 1.0
        return super().step(rows, width=width, draft=draft)


def test_shares_are_measured_by_steps_with_and_without_drafting(monkeypatch):
    model = SlowDrafter(Tables.random(8, 0), block_size=2)
    import specdecode.core.bench.parts as module

    timed = module.step_seconds
    monkeypatch.setattr(module, "step_seconds", lambda *given: timed(*given, clock=lambda: model.now))
    shares = DraftShares.measure(model, 2)
    assert shares.measured == {(n, width): (1.0, 4.0) for n in (1, 2) for width in (0, 2)}


def test_the_floor_counts_each_step_that_decodes():
    config = DeepseekV41Config.from_json(DEMO)
    plain, wide = (
        traffic(config, Step(batch=2, width=w, context=64, draft=d)).total for w, d in ((0, False), (3, True))
    )
    floor = Floor(config=config, bandwidth=1000.0)
    spans = [span(2, 0, False, 1.0), span(2, 3, True, 3.0), span(2, 0, False, 9.0, decode=False)]
    assert floor.of(spans) == ((plain + wide) / 2, pytest.approx((plain + wide) / 4.0 / 1000.0))
    assert wide > plain
    assert floor.of([]) is None


def test_experts_of_a_step_are_never_more_than_there_are():
    config = DeepseekV41Config.from_json(DEMO)
    sizes = [traffic(config, Step(batch=b, width=0, context=8, draft=False)).weights for b in (1, 8, 10**6, 10**7)]
    assert sizes[0] < sizes[1] < sizes[2] == sizes[3]


def test_an_eagle_drafter_is_read_in_place_of_the_checkpoints_own():
    config = DeepseekV41Config.from_json(DEMO)
    eagle = EagleConfig.from_folder(DEMO / "eagle", config.text_config)
    plain, drafting = (Step(batch=1, width=3, context=64, draft=d) for d in (False, True))
    assert traffic(config, plain, eagle) == traffic(config, plain)
    added = [traffic(config, drafting, e).total - traffic(config, plain, e).total for e in (None, eagle)]
    assert 0 < added[1] < added[0]  # one layer of 1.2 MB, and the head again, instead of three stages


def run(*outputs: tuple[int, ...], seconds: float = 1.0, counts: Counts | None = None, error: str | None = None) -> Run:
    replies = [
        Reply(
            output=(*tokens, "length"),
            tokens=len(tokens),
            first_token=0.1,
            per_token=0.2,
            rounds=(Round(proposed=2, accepted=1, emitted=2),),
        )
        for tokens in outputs
    ]
    return Run(seconds=seconds, played=tuple(Played(replies=(r,), error=error) for r in replies), counts=counts)


class Found:
    """Runs as `measure` gives them."""

    def __init__(self, **runs: list[Run]) -> None:
        self._runs = runs

    def of(self, category: str, mode: Mode) -> list[Run]:
        return self._runs[f"{category}_{'plain' if mode.plain else 'other'}"]


def place(**names: list[str]) -> Place:
    return Place(devices="cpu", batch=1, temperature=0.0, names=names, floors={}, shares={})


DSPARK = Mode(method="dspark", width=2)


def test_a_row():
    found = Found(a_plain=[run((1, 2), seconds=2.0), run((1, 2), seconds=4.0)], a_other=[run((1, 2)), run((1, 2))])
    plain, other = rows(found, [PLAIN, DSPARK], place(a=["p"]))
    assert (plain.tokens_per_second.values, plain.speed_up, plain.acceptance) == ([1.0, 0.5], None, None)
    assert other.speed_up is not None
    assert (other.speed_up.median, other.speed_up.values) == (3.0, [2.0, 4.0])  # within each repeat, then the median
    assert (other.acceptance.rounds, other.acceptance.length, other.acceptance.length_with_bonus) == (1, 1.0, 2.0)
    assert (other.identical.same, other.identical.compared, other.identical.first_difference) == (1, 1, None)


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ((1, 3), "q: turn 1, output 1: plain 2, here 3"),
        ((1, 2, 2), "q: turn 1, output 2: plain 'length', here 2"),
    ],
)
def test_a_difference_in_any_repeat_is_found(wrong, where):
    found = Found(
        a_plain=[run((7,), (1, 2)), run((7,), (1, 2))],
        a_other=[run((7,), (1, 2)), run((7,), wrong)],
    )
    _, other = rows(found, [PLAIN, DSPARK], place(a=["p", "q"]))
    assert (other.identical.same, other.identical.compared) == (1, 2)
    assert other.identical.first_difference == where


def test_a_failed_prompt_is_not_compared_and_gives_no_tokens():
    found = Found(a_plain=[run((1, 2))], a_other=[run((1,), error="broken")])
    _, other = rows(found, [PLAIN, DSPARK], place(a=["p"]))
    assert (other.failed, other.identical.compared, other.tokens) == (1, 0, 0)


def test_all_categories_together():
    found = Found(a_plain=[run((1, 2))], a_other=[run((1, 2))], b_plain=[run((3,))], b_other=[run((3,), seconds=0.25)])
    every = rows(found, [PLAIN, DSPARK], place(a=["p"], b=["q"]))
    assert [(row.category, row.mode) for row in every[4:]] == [("all", "plain"), ("all", "dspark 2")]
    assert every[5].tokens_per_second.median == 3 / 1.25
    assert (every[5].prompts, every[5].identical.same) == (2, 2)


def test_a_servers_counters():
    counts = Counts(drafts=4, draft_tokens=8, accepted=6, per_position=(4, 2, 0, 0, 0))
    found = Found(a_plain=[run((1,))], a_other=[run((1,), counts=counts)])
    _, other = rows(found, [PLAIN, SERVER], place(a=["p"]))
    assert other.acceptance == AcceptanceFigures(
        rounds=4, proposed=8, accepted=6, length=1.5, length_with_bonus=2.5, rate=0.75, per_position=[1.0, 0.5]
    )
    nobody_counts = Found(a_plain=[run((1,))], a_other=[run((1,))])
    assert rows(nobody_counts, [PLAIN, SERVER], place(a=["p"]))[1].acceptance is None


def test_a_proposer_of_the_host_is_timed():
    from specdecode.core.bench.timed import TimedModel

    ticks = iter(range(100))
    model = TimedModel(ToyModel(Tables.random(8, 0)), clock=lambda: float(next(ticks)))
    proposer = model.timed(PromptLookup(longest=2, shortest=1))
    assert proposer.propose([1, 2, 3, 1], 2) == [2, 3]
    assert model.take() == ([], 1.0)
    assert model.take() == ([], 0.0)
