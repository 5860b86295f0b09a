"""The GPU's batch processor on the CPU: the same inputs as the CPU's own, in buffers that stay. Nothing compiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from max.driver import CPU

from specdecode.core.cache.leaves import allocate_leaves
from specdecode.core.models.deepseek_v41.unified.processor import (
    BatchRuntime,
    UnifiedDSparkDeepseekV41BatchProcessor,
)
from specdecode.core.models.deepseek_v41.unified.staged import FRAMES, StagedBatchProcessor
from tests.core.test_unified_inputs import CONFIG, PAGES, TEXT, buffer, row

ROWS = [row(), row(tokens=[1, 2, 3], cache_length=1, draft_tokens=(), lookback=(8,), pages=(3, 4, 5), seed=-1)]


def processors():
    tables = [buffer(rows, TEXT.engram_head_dim, dtype=np.uint8) for rows in TEXT.engram_num_embeddings]
    runtime = BatchRuntime(leaves=allocate_leaves(TEXT, PAGES, 8), page_size=16, engram_host_buffers=tables)
    staged = Synchronous(CONFIG, replace(runtime, device=CPU()))
    return UnifiedDSparkDeepseekV41BatchProcessor(CONFIG, runtime), staged


class Synchronous(StagedBatchProcessor):
    """Waits for its copies, which run in the background on the CPU too, as the tests read right away."""

    def prepare(self, *args, **options):
        inputs = super().prepare(*args, **options)
        CPU().synchronize()
        return inputs


@pytest.fixture
def staged() -> StagedBatchProcessor:
    return processors()[1]


def lookup(inputs) -> np.ndarray:
    return inputs.kv_cache_inputs.lookup_table.to_numpy()


@pytest.mark.parametrize("draft", [False, True])
def test_inputs_are_those_of_the_cpu(draft):
    plain, staged = processors()
    history = buffer(3, TEXT.engram_max_ngram_size - 1)
    for rows, options in (
        (ROWS, {}),
        (ROWS[:1], {}),
        ([replace(r, lookback=()) for r in ROWS], {"history": history, "sources": [2, 0]}),
        ([replace(r, temperature=0.25, seed=4) for r in ROWS], {}),
        ([replace(ROWS[0], top_k=3), replace(ROWS[1], top_p=0.5)], {}),
        ([replace(r, top_k=2 + n) for n, r in enumerate(ROWS)], {}),
        (ROWS, {}),
        (ROWS[:1], {}),
    ):
        expected = plain.prepare(rows, width=3, draft=draft, **options)
        given = staged.prepare(rows, width=3, draft=draft, **options)
        for name, value in vars(expected).items():
            if name == "kv_cache_inputs":
                width = max(len(r.pages) for r in rows)
                assert (lookup(given)[:, :width] == lookup(expected)).all()
                assert (lookup(given)[:, width:] == 0).all()
                assert (given.kv_cache_inputs.cache_lengths.to_numpy() == value.cache_lengths.to_numpy()).all()
                assert given.kv_cache_inputs.leaves is staged.runtime.leaves
            elif hasattr(value, "to_numpy"):
                other = getattr(given, name).to_numpy()
                assert (other.dtype, other.shape) == (value.to_numpy().dtype, value.to_numpy().shape), name
                assert (other == value.to_numpy()).all(), name


def test_the_page_table_is_as_wide_as_a_power_of_two(staged):
    widths = {
        count: lookup(staged.prepare([row(pages=(1, 2, 3, 4, 5)[:count])], width=2, draft=True)).shape[1]
        for count in (2, 3, 4, 5)
    }
    assert widths == {2: 2, 3: 4, 4: 4, 5: 8}


def test_a_shape_keeps_its_buffers_and_others_have_their_own(staged):
    first = staged.prepare([row()], width=2, draft=True)
    second = staged.prepare([row(tokens=[8], draft_tokens=(1,), pages=(5, 6), seed=1)], width=2, draft=True)
    assert all(a is b for a, b in zip(first.buffers, second.buffers, strict=True))
    assert second.tokens.to_numpy().tolist() == [8]
    assert lookup(second).tolist() == [[5, 6]]
    for other in (
        staged.prepare([row()], width=3, draft=True),
        staged.prepare([row()], width=2, draft=False),
        staged.prepare([row(tokens=[1, 2])], width=2, draft=True),
        staged.prepare([row(), row()], width=2, draft=True),
        staged.prepare([row(pages=(1, 2, 3))], width=2, draft=True),
    ):
        assert other.tokens is not first.tokens


def test_pages_are_written_and_checked_when_they_change(staged, monkeypatch):
    checked = []
    check = UnifiedDSparkDeepseekV41BatchProcessor._check_pages
    monkeypatch.setattr(
        UnifiedDSparkDeepseekV41BatchProcessor,
        "_check_pages",
        lambda self, place, row: (checked.append(row.pages), check(self, place, row)),
    )
    pages, equal, other = (1, 2), tuple([1, 2]), [3, 4]  # noqa: C409
    staged.prepare([row(pages=pages)], width=2, draft=True)
    checked.clear()
    staged.prepare([row(pages=pages)], width=2, draft=True)
    assert checked == []
    for given in (equal, other, other):  # a list may have changed since
        assert lookup(staged.prepare([row(pages=given)], width=2, draft=True)).tolist() == [list(given)]
    assert len(checked) == 3
    with pytest.raises(ValueError, match="outside the 8"):
        staged.prepare([row(pages=(1, 9))], width=2, draft=True)
    assert lookup(staged.prepare([row(pages=pages)], width=2, draft=True)).tolist() == [[1, 2]]


def test_frames_are_bounded(staged):
    first = staged.prepare([row()], width=2, draft=True).tokens
    for count in range(2, FRAMES + 2):
        staged.prepare([row(tokens=[1] * count, pages=tuple(range(8)))], width=2, draft=True)
    assert staged.prepare([row()], width=2, draft=True).tokens is not first
    assert len(staged._frames) == FRAMES


def test_what_the_cpu_refuses_is_refused_and_leaves_no_trace(staged):
    for bad in ({"tokens": []}, {"lookback": (1,)}, {"pages": (1, 8)}, {"cache_length": 30}):
        with pytest.raises(ValueError, match="row 0"):
            staged.prepare([row(**bad)], width=2, draft=True)
    with pytest.raises(ValueError, match="needs rows"):
        staged.prepare([], width=2, draft=True)
    assert lookup(staged.prepare([row()], width=2, draft=True)).tolist() == [[1, 2]]


def test_a_device_must_be_named():
    with pytest.raises(ValueError, match="names none"):
        StagedBatchProcessor(CONFIG, BatchRuntime(leaves=allocate_leaves(TEXT, PAGES, 8), page_size=16))
