"""Opening devices: what is said where there is none. No GPU is needed."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import max.driver
import pytest

from specdecode.core.engine import device as devices
from specdecode.core.engine.device import open_place
from specdecode.core.engine.devices import open_places
from specdecode.core.errors import DeviceError, ExitCode


def machine(monkeypatch, count, accelerator):
    monkeypatch.setattr(max.driver, "accelerator_count", lambda: count)
    monkeypatch.setattr(max.driver, "Accelerator", accelerator)


def test_the_cpu_is_a_place():
    place = open_place("cpu")
    assert place.is_host
    assert place.ref.is_cpu()


@pytest.mark.parametrize("name", ["gpu", "gpu:x", "gpu:0,1", "cpux4", "2", ""])
def test_several_devices_are_not_one_place(name):
    with pytest.raises(ValueError, match="is neither cpu nor one GPU"):
        open_place(name)


def test_several_devices_are_opened_in_rank_order(monkeypatch):
    machine(monkeypatch, 2, lambda index: SimpleNamespace(api="cuda", is_compatible=True, is_host=False, id=index))
    places = open_places("gpu:1,0", 2)
    assert [place.name for place in places.ranks] == ["gpu:1", "gpu:0"]
    assert str(places.layout) == "2 devices, data parallel 2"
    shards = open_places("cpux3")
    assert (shards.single, len(shards.ranks), len(shards.different), shards.layout.logical) == (False, 3, 1, True)


@pytest.mark.parametrize(
    ("devices", "count", "said"),
    [
        ("8", 0, "--devices 8 needs 8 GPUs, and MAX finds no GPU: gpu:0, gpu:1, gpu:2, gpu:3 … are missing. Use what "
                 "is there, or --devices cpux8, which runs the same layout on the CPU."),
        ("gpu:0,3", 2, "--devices gpu:0,3 needs 2 GPUs, and MAX finds 2 GPUs, gpu:0 to gpu:1: gpu:3 is missing."),
    ],
)  # fmt: skip
def test_gpus_that_are_missing_are_named(monkeypatch, devices, count, said):
    machine(monkeypatch, count, None)
    with pytest.raises(DeviceError) as caught:
        open_places(devices)
    assert str(caught.value).startswith(said)
    assert caught.value.exit_code == ExitCode.DEVICE


def test_no_gpu_is_said_with_the_driver_s_reason(monkeypatch):
    def absent(index):
        raise ValueError(
            'failed to create device\n  CUDA information: Failed to open library "libnvidia-ml.so.1"\nmore'
        )

    machine(monkeypatch, 0, absent)
    with pytest.raises(DeviceError) as caught:
        open_place("gpu:0")
    assert str(caught.value) == (
        "--devices gpu:0: MAX finds no GPU here (accelerator_count() is 0). The driver says: Failed to open library "
        '"libnvidia-ml.so.1". Install the NVIDIA driver if there is one, or use --devices cpu.'
    )


@pytest.mark.parametrize(("count", "found"), [(1, "one GPU, gpu:0"), (2, "2 GPUs, gpu:0 to gpu:1")])
def test_a_number_beyond_the_last_gpu_is_refused(monkeypatch, count, found):
    machine(monkeypatch, count, None)
    with pytest.raises(DeviceError, match=rf"gpu:2: there is no such GPU, MAX finds {found}. Use one of them"):
        open_place("gpu:2")


def test_a_gpu_of_another_kind_is_refused(monkeypatch):
    card = SimpleNamespace(api="hip", is_compatible=True, model_name="MI300X", is_host=False)
    machine(monkeypatch, 1, lambda index: card)
    with pytest.raises(DeviceError, match=r"gpu:0 is MI300X \(hip\), which the step's kernels do not run on"):
        open_place("gpu:0")


def test_a_gpu_that_cannot_be_opened_is_said(monkeypatch):
    def broken(index):
        raise ValueError("CUDA call failed: out of memory\nlong story")

    machine(monkeypatch, 1, broken)
    with pytest.raises(DeviceError, match=r"cannot be opened. CUDA call failed: out of memory. Use --devices cpu"):
        open_place("gpu:0")


def test_an_opened_gpu_tells_its_free_memory(monkeypatch):
    card = SimpleNamespace(
        api="cuda", is_compatible=True, is_host=False, id=1, stats={"free_memory": 7 << 20, "total_memory": 9 << 20}
    )
    machine(monkeypatch, 2, lambda index: card)
    place = open_place("gpu:1")
    assert (place.free_memory, place.is_host, str(place.ref)) == (7 << 20, False, "gpu:1")
    card.stats = {"free_memory": 0}
    assert place.free_memory is None


def test_the_host_s_memory_is_known_or_not(monkeypatch, tmp_path):
    known = devices.free_host_memory()
    assert known is None or known > 1 << 20
    monkeypatch.setattr(devices, "Path", lambda name: tmp_path / "nothing")
    assert devices.free_host_memory() is None


def test_an_absent_gpu_compiles_under_the_key_of_a_real_one():
    code = (
        "from specdecode.core.engine.device import absent_gpu;"
        "from specdecode.core.engine.mef import GraphKey;"
        "place = absent_gpu('sm_90a');"
        "print(place.ref, place.is_host, GraphKey.here('step', 'd', place.device).target.split('+')[1])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["gpu:0", "False", "cuda-sm_90"]
    with pytest.raises(DeviceError, match="H200 is no architecture"):
        devices.absent_gpu("H200")
