"""Limits of the draws as graph inputs: there while a row has some, taken back after it, and free where none has."""

from __future__ import annotations

import pytest

from tests.core.test_unified_inputs import TEXT, numpy, processor, row

__all__ = ["processor"]


@pytest.mark.parametrize("first", [False, True])
def test_limits_are_written_while_a_row_has_some_and_taken_back(processor, first):
    def limits(*rows):
        inputs = processor.prepare(rows, width=2, draft=True)
        return [numpy(v).tolist() for v in (inputs.top_k, inputs.max_k, inputs.top_p, inputs.min_top_p)]

    unlimited = [[-1, -1], -1, [1, 1], 1]
    if not first:
        assert limits(row(), row()) == unlimited
    assert limits(row(top_k=4), row(top_k=9, top_p=0.5)) == [[4, 9], 9, [1, 0.5], 0.5]
    assert limits(row(top_k=4), row(top_p=0.25)) == [[4, -1], -1, [1, 0.25], 0.25]
    assert limits(row()) == [[-1], -1, [1], 1]  # another batch size shares the two scalars
    assert limits(row(), row()) == unlimited
    assert limits(row(top_k=2**70)) == [[TEXT.vocab_size], TEXT.vocab_size, [1], 1]


def test_a_batch_without_limits_writes_nothing(processor, monkeypatch):
    processor.prepare([row()], width=2, draft=True)
    written = []
    fill = processor._filled
    monkeypatch.setattr(processor, "_filled", lambda name, *rest: (written.append(name), fill(name, *rest))[1])
    processor.prepare([row()], width=2, draft=True)
    assert not {"top_k", "max_k", "top_p", "min_top_p"} & set(written)
    assert "temperature" in written
