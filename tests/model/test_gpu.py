"""What only a GPU has: recordings that launch what the step launches, and copies that run beside the host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from max.driver import accelerator_count

from specdecode.core.checkpoint.locate import preset_folders
from specdecode.core.engine.step import StepRow
from specdecode.core.models.deepseek_v41.load import load_step_model
from tests.model.conftest import MAX_LENGTH
from tests.model.test_promise import Plain, requests_of
from tests.support.promise import Watched, complete, write_promise_checkpoint

pytestmark = pytest.mark.skipif(accelerator_count() == 0, reason="there is no GPU")


@pytest.fixture(autouse=True)
def _on_a_gpu(device):
    if device == "cpu":
        pytest.skip("a GPU's own")


def rows(model, batch: int, width: int, *, at: int = 20, first: int = 3) -> list[StepRow]:
    """Decode steps of requests that each have their own pages."""
    pages = -(-(at + 1 + model.block_size) // model.page_size)
    return [
        StepRow(
            tokens=(first + place,),
            cache_length=at,
            pages=tuple(range(place * pages, (place + 1) * pages)),
            draft_tokens=tuple(range(7, 7 + width)),
            lookback=tuple(range(3, 3 + model.lookback_length)),
            seed=place,
            temperature=0.0,
        )
        for place in range(batch)
    ]


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize(("batch", "width"), [(1, 0), (1, 5), (3, 2), (8, 5)])
def test_a_recording_launches_what_the_step_launches(small, batch, width, draft):
    small.verify_replay(rows(small, batch, width), width=width, draft=draft)
    # Other lengths, other tokens: nothing but the shape decides what is launched.
    small.verify_replay(rows(small, batch, width, at=31, first=90), width=width, draft=draft)


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize(("batch", "width"), [(1, 0), (1, 3), (8, 2)])
def test_with_an_autoregressive_drafter_too(eagle, batch, width, draft):
    eagle.verify_replay(rows(eagle, batch, width), width=width, draft=draft)
    eagle.verify_replay(rows(eagle, batch, width, at=31, first=90), width=width, draft=draft)


def test_recordings_give_the_bits_of_eager_steps(small, store, tmp_path):
    eager = load_step_model(
        write_promise_checkpoint(tmp_path),
        devices="gpu:0",
        max_length=MAX_LENGTH,
        num_pages=96,
        store=store,
        capture=False,
    )
    plain = Plain(eager, families=(0,))
    plain.model = small
    assert plain.holds(Watched, 0, 5, max_batch=8, join_every=2)
    assert plain.holds(Watched, 0, 0, max_batch=3)
    assert len(small.captured) > 0


def test_steps_that_nobody_reads_in_between_do_not_mix(small):
    """Inputs are staged while the device still runs the steps before."""
    chunks = [
        replace(rows(small, 1, 0)[0], tokens=tuple(range(3 + n, 11 + n)), cache_length=0, lookback=())
        for n in range(40)
    ]
    alone = []
    for chunk in chunks:
        outputs = small.run([chunk], width=0, draft=True)
        alone.append(outputs.logits.to_numpy().copy())
    together = [small.run([chunk], width=0, draft=True) for chunk in chunks]
    for one, other in zip(alone, together, strict=True):
        assert one.tobytes() == other.logits.to_numpy().tobytes()


def test_a_step_reads_its_results_as_they_are(small):
    given = rows(small, 4, 3)
    outputs = small.run(given, width=3, draft=True)
    expected = [np.array(v.to_numpy()) for v in (outputs.next_tokens, outputs.num_accepted, outputs.next_draft_tokens)]
    for _ in range(3):  # eager, recorded, replayed
        result = small.step(given, width=3, draft=True)
        found = (result.next_tokens, result.num_accepted, result.next_draft_tokens)
        assert all((a == b).all() for a, b in zip(expected, found, strict=True))


@pytest.mark.parametrize("batch", [2, 16, 32])
def test_the_promise_in_large_batches(device, batch):
    model = load_step_model(preset_folders()["demo"], devices=device, max_length=128, max_batch=32)
    requests = [r for family in range(4) for r in requests_of(model.vocab_size, family)]
    plain = complete(model, [replace(r, draft_tokens=0) for r in requests], max_batch=1)
    for width in range(6):
        assert complete(model, [replace(r, draft_tokens=width) for r in requests], max_batch=batch) == plain
