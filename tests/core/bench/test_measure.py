"""Modes take turns, warm-up does not count, and every repeat begins cold."""

from __future__ import annotations

from collections.abc import Sequence

from specdecode.core.bench.local import LocalArm
from specdecode.core.bench.measure import Played, Reply, Run, count_runs, measure
from specdecode.core.bench.plan import PLAIN, Mode
from specdecode.core.bench.timed import TimedModel
from specdecode.core.engine.costs import StepCosts
from specdecode.core.engine.engine import Engine
from specdecode.core.engine.request import FinishedEvent, Request
from tests.support.toy import Tables, ToyModel

FULL, AUTO = Mode(method="dspark", width=3), Mode(method="dspark", width="auto")


class Logs:
    """An arm that notes what it was asked for."""

    def __init__(self, mode: Mode, log: list[tuple[str, object]]) -> None:
        self.mode, self._log = mode, log

    def start(self) -> None:
        self._log.append((self.mode.name, "start"))

    def run(self, prompts: Sequence[str]) -> Run:
        self._log.append((self.mode.name, tuple(prompts)))
        reply = Reply(output=(len(self._log),), tokens=1, first_token=None, per_token=None)
        return Run(seconds=1.0, played=tuple(Played(replies=(reply,)) for _ in prompts))


def test_the_order_of_runs():
    log: list[tuple[str, object]] = []
    told: list[str] = []
    arms = [Logs(PLAIN, log), Logs(FULL, log)]
    categories = {"a": ["a1", "a2", "a3"], "b": ["b1"]}
    plan = {"batch": 2, "repeats": 2, "warm_up": 1}
    found = measure(arms, categories, advance=told.append, **plan)
    plain, full = "plain", "dspark 3"
    first, second = ("a1", "a2"), ("a3",)
    assert log == [
        (plain, "start"), (plain, first), (full, "start"), (full, first),
        (plain, "start"), (full, "start"), (plain, first), (full, first), (full, second), (plain, second),
        (plain, "start"), (full, "start"), (plain, ("b1",)), (full, ("b1",)),
        (plain, "start"), (full, "start"), (full, first), (plain, first), (plain, second), (full, second),
        (plain, "start"), (full, "start"), (full, ("b1",)), (plain, ("b1",)),
    ]  # fmt: skip
    assert len(told) == count_runs(categories, arms=2, **plan) == 14
    runs = found.of("a", FULL)
    assert [(run.seconds, len(run.played)) for run in runs] == [(2.0, 3), (2.0, 3)]  # two groups; no warm-up among them


def play(engine: Engine, prompts: Sequence[int], width: int | None) -> list[Played]:
    for prompt in prompts:
        engine.submit(Request(prompt=(1, 2, prompt), max_tokens=40, draft_tokens=width))
    done = {e.request_id: e.completion for e in engine.run() if isinstance(e, FinishedEvent)}
    return [
        Played(
            replies=(Reply(output=done[n].tokens, tokens=40, first_token=None, per_token=None, rounds=done[n].rounds),)
        )
        for n in range(len(prompts))
    ]


def arm(mode: Mode, tables: Tables) -> LocalArm[int]:
    costs = StepCosts(plain_points={1: 1.0}, points={(1, width): 1.0 + 0.5 * width for width in range(4)})
    model = TimedModel(ToyModel(tables, block_size=3))
    return LocalArm(mode, model, batch=1, tokenizer=None, costs=costs, play=play)


def test_auto_forgets_at_every_start_and_not_within_a_repeat():
    tables = Tables.random(
        8, 3, agreement=0.0
    )  # drafts are hardly ever accepted, so a policy that has learned drafts less
    auto = arm(AUTO, tables)

    def proposed() -> int:
        return sum(r.proposed for reply in auto.run([3]).replies for r in reply.rounds)

    auto.start()
    cold, learned = proposed(), proposed()
    auto.start()
    assert proposed() == cold > learned


def test_every_mode_gives_the_tokens_of_plain_decoding():
    tables = Tables.random(8, 1)
    outputs = []
    for mode in (PLAIN, FULL, AUTO, Mode(method="ngram", width=2)):
        one = arm(mode, tables)
        one.start()
        run = one.run([3, 4])
        outputs.append([reply.output for reply in run.replies])
        assert any(span.draft for span in run.spans) is (mode.method == "dspark")
        assert (run.proposing > 0) is (mode.method == "ngram")
    assert outputs == [outputs[0]] * 4
