"""The GPU's way of running steps keeps the promise: staged inputs, recorded steps, results in pinned memory.

It runs on the CPU here, with the CPU's graph and a stand-in for recordings, so that every machine checks it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from max.driver import CPU

from specdecode.core.engine.captured import CapturedSteps
from specdecode.core.engine.engine import Engine
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.models.deepseek_v41.load import PAGE_SIZE
from specdecode.core.models.deepseek_v41.unified.gpu_model import UnifiedDSparkDeepseekV41GpuModel
from tests.model.test_promise import Plain, requests_of
from tests.support.promise import Watched

pytestmark = pytest.mark.usefixtures("cpu_only")


class Recorded:
    """A graph whose recordings run on the CPU: the same buffers in, the same buffers out.

    Copies run in the background there, and a graph does not wait for them as it does on a GPU, so it is made to.
    """

    def __init__(self, graph) -> None:
        self.graph, self.outputs, self.replays = graph, {}, 0

    def execute(self, *inputs):
        CPU().synchronize()
        return self.graph.execute(*inputs)

    def capture(self, key, *inputs):
        results = self.execute(*inputs)
        self.outputs[key] = [result.copy() for result in results]
        CPU().synchronize()
        return self.outputs[key]

    def replay(self, key, *inputs):
        self.replays += 1
        results = self.execute(*inputs)
        for output, result in zip(self.outputs[key], results, strict=True):
            output.inplace_copy_from(result)
        CPU().synchronize()

    def release_captured_graph(self, key):
        del self.outputs[key]


@pytest.fixture(scope="module")
def staged(small, device) -> UnifiedDSparkDeepseekV41GpuModel:
    if device != "cpu":
        pytest.skip("the real thing is tested there")
    text = small.config.text_config
    model = UnifiedDSparkDeepseekV41GpuModel(
        small.config,
        Recorded(small._graph),
        pages=PageLayout.of(text, PAGE_SIZE),
        leaves=small.leaves,
        engram_host_buffers=small._tables,
        max_length=small.max_length,
        device=CPU(),
    )
    model.captured = CapturedSteps(model._graph, limit=6)
    return model


def test_steps_keep_the_promise(small, staged):
    plain = Plain(small, families=(0,))
    staged_too = Plain(staged, families=(0,))
    assert staged_too.outputs == plain.outputs
    assert staged_too.ledger.known == plain.ledger.known
    plain.model = staged
    assert plain.holds(Watched, 0, 5, max_batch=8, join_every=2)
    assert plain.holds(Watched, 0, 3, max_batch=3)


def test_recordings_are_used_and_bounded(staged):
    recorded = staged._graph
    recorded.outputs.clear()
    staged.captured = CapturedSteps(recorded, limit=2)
    outputs = []
    for _ in range(2):
        engine = Engine(staged, max_batch=4)
        for request in requests_of(staged.vocab_size, 0)[:4]:
            engine.submit(replace(request, draft_tokens=2))
        outputs.append([event.completion.tokens for event in engine.run() if hasattr(event, "completion")])
    assert outputs[0] == outputs[1]
    assert recorded.replays > 10
    assert len(recorded.outputs) == len(staged.captured) <= 2


def test_without_captured_steps_there_is_nothing_to_verify(staged):
    staged.captured = None
    with pytest.raises(ValueError, match="capture=False"):
        staged.verify_replay([], width=0, draft=False)
