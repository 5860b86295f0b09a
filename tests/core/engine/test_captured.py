"""Recordings of steps: when they are made, replayed and released. A fake model stands in for a GPU's."""

from __future__ import annotations

import pytest

from specdecode.core.engine.captured import CapturedSteps


class Fake:
    """Notes what it is asked for; outputs name what made them."""

    def __init__(self):
        self.calls, self.alive, self.fails = [], {}, False

    def execute(self, *inputs):
        self.calls.append(("execute", inputs))
        return ["executed"]

    def capture(self, key, *inputs):
        if self.fails:
            raise RuntimeError("capture failed")
        self.calls.append(("capture", key))
        self.alive[key] = inputs
        return [f"outputs of {key}"]

    def replay(self, key, *inputs):
        assert self.alive[key] == inputs
        self.calls.append(("replay", key))

    def debug_verify_replay(self, key, *inputs):
        assert self.alive[key] == inputs
        self.calls.append(("verify", key))

    def release_captured_graph(self, key):
        del self.alive[key]
        self.calls.append(("release", key))


INPUTS = (object(), object())


@pytest.fixture
def fake() -> Fake:
    return Fake()


def test_first_executed_then_recorded_then_replayed(fake):
    steps = CapturedSteps(fake)
    assert steps.run("a", INPUTS) == ["executed"]
    assert steps.run("a", list(INPUTS)) == ["outputs of 0"]
    assert steps.run("a", INPUTS) == ["outputs of 0"]
    assert fake.calls == [("execute", INPUTS), ("capture", 0), ("replay", 0), ("replay", 0)]


def test_shapes_have_recordings_of_their_own(fake):
    steps = CapturedSteps(fake)
    for shape in ("a", "b", "a", "b", "b", "a"):
        steps.run(shape, INPUTS)
    assert [call for call in fake.calls if call[0] != "execute"] == [
        ("capture", 0),
        ("replay", 0),
        ("capture", 1),
        ("replay", 1),
        ("replay", 1),
        ("replay", 0),
    ]


def test_the_recording_used_longest_ago_is_released(fake):
    steps = CapturedSteps(fake, limit=2)
    for shape in ("a", "b", "a", "b", "a", "c", "c"):
        steps.run(shape, INPUTS)
    assert list(fake.alive) == [0, 2]
    assert len(steps) == 2
    steps.run("b", INPUTS)  # known to come back, so recorded at once, under a new key
    assert fake.calls[-3:] == [("capture", 3), ("release", 0), ("replay", 3)]


def test_other_buffers_are_another_recording(fake):
    steps = CapturedSteps(fake)
    steps.run("a", INPUTS)
    steps.run("a", INPUTS)
    others = (INPUTS[0], object())
    assert steps.run("a", others) == ["outputs of 1"]
    assert list(fake.alive) == [1]
    assert steps.run("a", others[:1]) == ["outputs of 2"]
    assert list(fake.alive) == [2]


def test_a_failing_capture_is_not_kept(fake):
    steps = CapturedSteps(fake)
    steps.run("a", INPUTS)
    fake.fails = True
    with pytest.raises(RuntimeError, match="capture failed"):
        steps.run("a", INPUTS)
    assert len(steps) == 0
    fake.fails = False
    assert steps.run("a", INPUTS) == ["outputs of 1"]


def test_verifying_records_if_need_be_and_clearing_releases(fake):
    steps = CapturedSteps(fake)
    steps.verify("a", INPUTS)
    steps.verify("a", INPUTS)
    assert fake.calls == [("capture", 0), ("verify", 0), ("verify", 0)]
    steps.clear()
    assert fake.alive == {}
    assert len(steps) == 0
