"""What `--devices` may say, and what is said of the rest; no device is asked."""

from __future__ import annotations

import pytest
from max.graph import DeviceRef

from specdecode.core.device_layout import DeviceLayout
from specdecode.core.device_names import DeviceNames
from specdecode.core.errors import UsageError

CPU = DeviceRef.CPU()


@pytest.mark.parametrize(
    ("text", "gpus", "shards", "count"),
    [
        ("cpu", (), 1, 1),
        ("gpu:3", (3,), 1, 1),
        ("gpu:0,2", (0, 2), 1, 2),
        ("2", (0, 1), 1, 2),
        ("1", (0,), 1, 1),
        ("cpux4", (), 4, 4),
        ("cpu×4", (), 4, 4),
        ("gpu:1x2", (1,), 2, 2),
    ],
)
def test_forms(text, gpus, shards, count):
    names = DeviceNames.parse(text)
    assert (names.gpus, names.shards, names.count) == (gpus, shards, count)


@pytest.mark.parametrize("text", ["", "tpu", "gpu", "gpu:x", "cpux", "gpu:0,1x2", "cpu,gpu:0", "-1", "gpu:0,"])
def test_other_forms_are_refused_with_all_that_work(text):
    with pytest.raises(UsageError, match=r"is not supported. Use cpu, one GPU as gpu:0, several as gpu:0,1 or"):
        DeviceNames.parse(text)


@pytest.mark.parametrize(("text", "said"), [("0", "1 to 64"), ("cpux0", "1 to 64"), ("65", "1 to 64"),
                                            ("gpu:1,1", "names a GPU twice")])  # fmt: skip
def test_numbers_that_make_no_layout(text, said):
    with pytest.raises(UsageError, match=said):
        DeviceNames.parse(text)


@pytest.mark.parametrize("text", ["9" * 20, "9" * 5000, "cpux" + "9" * 20, "9999999", "٢", "gpu:٢"])
def test_numbers_that_are_none(text):
    with pytest.raises(UsageError, match="is not supported"):
        DeviceNames.parse(text)


def test_more_gpus_than_collectives_join():
    with pytest.raises(UsageError, match="up to 8 GPUs"):
        DeviceNames.parse("9")
    with pytest.raises(UsageError, match="1 to 64"):
        DeviceNames.parse("999999")
    assert DeviceNames.parse("8").count == 8


def test_one_device_has_no_replicas():
    with pytest.raises(UsageError, match=r"needs 2 devices, and --devices cpu is one. Name as many, for .* cpux2"):
        DeviceNames.parse("cpu", 2)


def test_the_data_parallel_degree_is_one_or_all():
    assert DeviceNames.parse("cpux4", 4).data_parallel_degree == 4
    with pytest.raises(UsageError, match=r"--data-parallel-degree 2 on 4 device\(s\) is not supported"):
        DeviceNames.parse("cpux4", 2)
    with pytest.raises(UsageError, match="A data-parallel degree of 2 on 4 devices"):
        DeviceLayout(devices=(CPU,) * 4, data_parallel_degree=2)


def test_a_layout_knows_who_has_what():
    gpus = DeviceLayout(devices=(DeviceRef.GPU(0), DeviceRef.GPU(1)))
    shards = DeviceLayout(devices=(CPU,) * 2, data_parallel_degree=2)
    assert (gpus.signals, gpus.replicas, gpus.logical) == (2, 1, False)
    assert (shards.signals, shards.replicas, shards.logical) == (0, 2, True)
    assert DeviceLayout.single(CPU).named("kv_window", 0) == "kv_window"
    assert shards.named("kv_window", 1) == "kv_window.1"
    with pytest.raises(UsageError, match="named twice"):
        DeviceLayout(devices=(DeviceRef.GPU(0), DeviceRef.GPU(0), DeviceRef.GPU(1)))
