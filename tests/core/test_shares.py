"""Every device's part of the weights: together they are the whole, and as large as planned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from max.graph import DeviceRef

from specdecode.core.checkpoint.sharding.inputs import planned_tensors
from specdecode.core.checkpoint.sharding.layout import Layout, Strategy
from specdecode.core.checkpoint.sharding.plan import make_plan
from specdecode.core.device_layout import DeviceLayout
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.parallel import shares
from specdecode.core.models.deepseek_v41.registry import _parts, rank_bytes, weight_bytes
from specdecode.core.models.deepseek_v41.weights import graph_weights
from tests.support.promise import parallel_config
from tests.support.released import released_config

SMALL = DeepseekV41Config.from_json(parallel_config())
RELEASED = DeepseekV41Config.from_json(released_config())
CPU = DeviceRef.CPU()
LAYOUTS = [(2, 1), (4, 1), (8, 1), (2, 2), (4, 4)]


def logical(count: int, degree: int) -> DeviceLayout:
    return DeviceLayout(devices=(CPU,) * count, data_parallel_degree=degree)


def gpus(count: int, degree: int) -> DeviceLayout:
    return DeviceLayout(devices=tuple(map(DeviceRef.GPU, range(count))), data_parallel_degree=degree)


@pytest.mark.parametrize(("count", "degree"), LAYOUTS)
def test_the_parts_of_a_weight_are_the_whole(count, degree):
    """Loaded parts, put together along their axis, are what one device loads."""
    rng = np.random.default_rng(3)
    arrays: dict[str, np.ndarray] = {}
    cut = 0

    def source(shape):
        return lambda name: arrays.setdefault(name, rng.integers(0, 255, shape, np.uint8))

    ranks = [shares.rank_weights(SMALL, logical(count, degree), rank) for rank in range(count)]
    for name, whole in graph_weights(SMALL).items():
        if not whole.sources:
            continue
        read = source(whole.shape[1:] if whole.stacked else whole.shape)
        everything = np.stack(_parts(whole, read)) if whole.stacked else _parts(whole, read)[0]
        different = {weights[name].part.index: weights[name] for weights in ranks}
        pieces = []
        for place in sorted(different):
            parts = _parts(different[place], read)
            pieces.append(np.stack(parts) if whole.stacked else parts[0])
            assert pieces[-1].shape == different[place].shape, name
        axis = ranks[0][name].part.axis
        assert np.array_equal(np.concatenate(pieces, axis=axis) if len(pieces) > 1 else pieces[0], everything), name
        assert len(pieces) == ranks[0][name].part.count
        cut += len(pieces) > 1
    assert cut > 10


def test_neighbours_share_what_cannot_be_cut_further():
    parts = [shares.rank_weights(SMALL, logical(4, 1), rank)["head.weight"] for rank in range(4)]
    assert [(weight.part.index, weight.part.count) for weight in parts] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert [weight.name for weight in parts] == ["head.weight.0-of-2"] * 2 + ["head.weight.1-of-2"] * 2


@pytest.mark.parametrize(("count", "degree"), LAYOUTS)
def test_logical_shards_hold_nothing_twice(count, degree):
    total = sum(rank_bytes(SMALL, logical(count, degree)))
    assert total == weight_bytes(SMALL)


@pytest.mark.parametrize(("ranks", "degree", "strategy"), [(8, 1, Strategy.TENSOR), (8, 8, Strategy.EXPERT)])
def test_a_device_of_the_released_model_holds_what_the_plan_says(ranks, degree, strategy):
    plan = make_plan(RELEASED, planned_tensors(RELEASED), Layout(strategy=strategy, ranks=ranks))
    held = rank_bytes(RELEASED, gpus(ranks, degree))
    for device, own in zip(plan.devices, held, strict=True):
        vision = device.families["vision"].total  # planned, as it is in the checkpoint, and not run
        assert own == pytest.approx(device.total - vision, rel=0.001)


def test_one_device_has_everything():
    (only,) = (shares.rank_weights(SMALL, logical(1, 1), rank) for rank in range(1))
    assert only == {name: replace(weight, name=name) for name, weight in graph_weights(SMALL).items()}
