"""Single steps in arbitrary company: thousands of them, each against the same request decoded alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specdecode.core.checkpoint.reader import Checkpoint
from specdecode.core.engine.request import Request
from specdecode.core.models.deepseek_v41.load import load_step_model
from tests.support.promise import write_promise_checkpoint
from tests.support.trajectory import Trajectory, run, write_pages

STEPS = 1500
PAGES = 5


@pytest.fixture(scope="module")
def trajectories(small) -> list[Trajectory]:
    rng = np.random.default_rng(7)
    pages = rng.permutation(small.num_pages)
    found = []
    for place, length in enumerate((1, 3, 6, 11, 18, 24, 33, 41)):
        prompt = tuple(rng.integers(3, small.vocab_size - 8, length).tolist())
        request = Request(prompt=prompt, max_tokens=28, temperature=(0.0, 0.7, 1.0)[place % 3], seed=place + 2**63)
        own = pages[place * PAGES : (place + 1) * PAGES].tolist()
        found.append(Trajectory.of(small, request, own))
    return found


class Case:
    """One request's part of a random step, and what has to come of it."""

    def __init__(self, source: Trajectory, rng: np.random.Generator, width: int) -> None:
        self.source = source
        prompt, end = len(source.request.prompt), len(source.tokens)
        if rng.random() < 0.3:  # a chunk of the prompt; only its last token's logits mean something
            self.at = int(rng.integers(prompt))
            self.count = int(rng.integers(1, prompt - self.at + 1))
            drafts: list[int] = []
            right = 0
        else:
            self.at, self.count = int(rng.integers(prompt - 1, end - 1)), 1
            drafts = source.tokens[self.at + 1 : self.at + 1 + int(rng.integers(width + 1))]
            drafts = drafts[: end - self.at - 2]
            right = int(rng.integers(len(drafts) + 1))
            for place in range(right, len(drafts)):
                drafts[place] = int(rng.integers(source.model.vocab_size))
            while right < len(drafts) and drafts[right] == source.tokens[self.at + 1 + right]:
                right += 1
        self.accepted = right
        self.row = source.row(self.at, self.count, drafts)

    def check(self, logits, result, place: int) -> None:
        first = self.at + self.count
        assert result.finite[place]
        for n in range(self.accepted + 1):
            assert logits[place, n].tobytes() == self.source.logits[first + n]
        if first < len(self.source.request.prompt):
            return
        assert result.num_accepted[place] == self.accepted
        assert result.next_tokens[place] == self.source.tokens[first + self.accepted]
        if result.next_draft_tokens.shape[1]:
            found = result.next_draft_tokens[place].tobytes(), result.confidence[place].tobytes()
            assert found == self.source.drafts.setdefault(first + self.accepted, found)
            assert ((result.next_draft_tokens[place] >= 0) & np.isfinite(result.confidence[place])).all()


def test_a_row_does_not_depend_on_its_company(small, trajectories):
    rng = np.random.default_rng(11)
    accepted = set()
    for _ in range(STEPS):
        width, batch = int(rng.integers(small.block_size + 1)), int(rng.integers(1, len(trajectories) + 1))
        chosen = [trajectories[i] for i in rng.permutation(len(trajectories))[:batch]]
        cases = [Case(source, rng, width) for source in chosen]
        for case in cases:
            case.source.rewind(case.at)
        result, logits = run(small, [case.row for case in cases], width=width, draft=bool(rng.integers(2)))
        for place, case in enumerate(cases):
            case.check(logits, result, place)
            accepted.add(case.accepted)
    assert accepted == set(range(small.block_size + 1))
    assert sum(len(t.drafts) for t in trajectories) > 150


def test_the_lookback_may_stay_on_the_device(small, trajectories):
    """Step after step with the windows that the step before returned, in another order of the requests."""
    rng = np.random.default_rng(13)
    at = {i: len(t.request.prompt) - 1 for i, t in enumerate(trajectories)}
    for i, trajectory in enumerate(trajectories):
        trajectory.rewind(at[i])
    order, history, sources = list(at), None, None
    for _ in range(8):
        rows, rights = [], []
        for i in order:
            source = trajectories[i]
            right = int(rng.integers(4))
            drafts = [*source.tokens[at[i] + 1 : at[i] + 1 + right], -1]
            row = source.row(at[i], 1, [d for d in drafts if d >= 0])
            rows.append(row if history is None else replace(row, lookback=()))
            rights.append(right)
        inputs = small.batch_processor.prepare(rows, width=3, draft=True, history=history, sources=sources)
        outputs = small.execute(inputs)
        logits = outputs.logits.to_numpy().reshape(len(rows), 4, -1)
        assert outputs.num_accepted.to_numpy().tolist() == rights
        for place, i in enumerate(order):
            for n in range(rights[place] + 1):
                assert logits[place, n].tobytes() == trajectories[i].logits[at[i] + 1 + n]
            at[i] += rights[place] + 1
        before = {i: place for place, i in enumerate(order)}
        left = [i for i in order if at[i] + 5 < len(trajectories[i].tokens)]
        order = [left[i] for i in rng.permutation(len(left))]
        history, sources = outputs.engram_lookback_history, [before[i] for i in order]
    assert history is not None


def test_a_broken_row_is_reported_for_its_request_alone(
    small, trajectories, store, device, broken_folder, broken_token
):
    chosen = trajectories[2:6]
    at = [len(t.request.prompt) + 4 for t in chosen]
    model = load_step_model(
        broken_folder, devices=device, max_length=128, num_pages=small.num_pages, store=store, capture=False
    )
    for trajectory, n in zip(chosen, at, strict=True):
        write_pages(model, trajectory.pages, trajectory.snapshots[n])
    rows = [t.row(n) for t, n in zip(chosen, at, strict=True)]
    rows[1] = replace(rows[1], tokens=[broken_token])
    result, logits = run(model, rows, width=2, draft=True)
    assert result.finite.tolist() == [True, False, True, True]
    for place in (0, 2, 3):
        assert logits[place, 0].tobytes() == chosen[place].logits[at[place] + 1]


@pytest.fixture(scope="module")
def broken_token() -> int:
    return 200


@pytest.fixture(scope="module", params=[0x7FC0, 0x7FFF])
def broken_folder(request, tmp_path_factory, broken_token) -> Path:
    """The test checkpoint with a NaN in one token's embedding; rounding must not carry over its bits into a zero."""
    folder = write_promise_checkpoint(tmp_path_factory.mktemp("broken"))
    info = Checkpoint.open(folder).info("embed.weight")
    with info.file.open("r+b") as file:
        file.seek(info.offset + 2 * broken_token * info.shape[1])
        file.write(np.uint16(request.param).tobytes())
    return folder


def test_results_outlive_the_next_step(small, trajectories):
    source = trajectories[3]
    n = len(source.request.prompt)
    source.rewind(n)
    first, logits = run(small, [source.row(n)], width=0, draft=True)
    kept = first.next_draft_tokens.copy(), logits.copy()
    for _ in range(20):
        run(small, [source.row(n + 1)], width=0, draft=True)
    assert (first.next_draft_tokens == kept[0]).all()
    assert (logits == kept[1]).all()
