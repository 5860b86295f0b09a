"""Frames and landings, on the CPU in place of a GPU: layout, one copy each way, waiting before memory is reused."""

from __future__ import annotations

import numpy as np
import pytest
from max.driver import CPU, Buffer

from specdecode.core.engine import staging
from specdecode.core.engine.staging import ALIGNMENT, Frame, Landing, Recent

ARRAYS = {
    ("tokens", (3,)): np.array([1, 2, 3], np.int64),
    ("table", (2, 2)): np.array([[4, 5], [6, 7]], np.uint32),
    ("none", (0,)): np.zeros(0, np.int32),
    ("seed", (1,)): np.array([2**64 - 1], np.uint64),
}


def test_a_frame_has_every_input_on_both_sides():
    frame = Frame(ARRAYS, CPU())
    assert list(frame.arrays) == list(ARRAYS)
    frame.send()
    frame.wait()
    for name, array in ARRAYS.items():
        home, buffer = frame.arrays[name]
        assert (home == array).all()
        assert home.dtype == array.dtype
        assert (buffer.to_numpy() == array).all()
        assert (buffer.to_numpy().dtype, tuple(buffer.shape)) == (array.dtype, name[1])
        assert buffer.is_contiguous


def test_inputs_begin_where_allocations_would():
    frame = Frame(ARRAYS, CPU())
    first = frame.arrays["tokens", (3,)][1]._data_ptr()
    for name in ARRAYS:
        if 0 not in name[1]:
            assert (frame.arrays[name][1]._data_ptr() - first) % ALIGNMENT == 0


def test_the_device_sees_new_contents_only_once_sent():
    frame = Frame(ARRAYS, CPU())
    frame.send()
    home, buffer = frame.arrays["tokens", (3,)]
    frame.wait()  # copies run in the background on the CPU too
    home[:] = 9
    assert buffer.to_numpy().tolist() == [1, 2, 3]
    frame.send()
    frame.wait()
    assert buffer.to_numpy().tolist() == [9, 9, 9]


def test_filling_waits_for_the_copy_and_only_once(monkeypatch):
    frame, waits = Frame(ARRAYS, CPU()), []

    class Event:
        def synchronize(self):
            waits.append("waited")

    class Queue:
        def record_event(self):
            waits.append("recorded")
            return Event()

    frame._queue = Queue()
    frame.wait()
    frame.send()
    frame.wait()
    frame.wait()
    assert waits == ["recorded", "waited"]


def test_a_frame_copies_once(monkeypatch):
    copies = []

    class Counted:
        def __init__(self, buffer):
            self.buffer = buffer

        def inplace_copy_from(self, source):
            copies.append(int(source.num_elements))
            self.buffer.inplace_copy_from(source)

    frame = Frame(ARRAYS, CPU())
    frame._device = Counted(frame._device)
    frame.send()
    assert copies == [len(ARRAYS) * ALIGNMENT]


def test_results_land_together():
    results = [Buffer.from_numpy(a) for a in (np.arange(3), np.zeros((3, 0), np.float32), np.ones((3, 2), np.float32))]
    landing = Landing(results, CPU())
    arrays = landing.fetch(results)
    assert [a.tolist() for a in arrays] == [[0, 1, 2], [[], [], []], [[1, 1]] * 3]
    results[0].to_numpy()[:] = 5
    assert arrays[0].tolist() == [0, 1, 2]
    assert landing.fetch(results)[0].tolist() == [5, 5, 5]


def test_recent_keeps_what_was_used_last():
    dropped = []
    recent = Recent(2, lambda key, value: dropped.append((key, value)))
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    recent.put("c", 3)
    assert dropped == [("b", 2)]
    assert (recent.get("b"), len(recent)) == (None, 2)
    recent.drop("b")
    recent.drop("a")
    recent.clear()
    assert dropped == [("b", 2), ("a", 1), ("c", 3)]
    assert len(recent) == 0
    with pytest.raises(ValueError, match="limit=0"):
        staging.Recent(0)
