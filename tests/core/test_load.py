"""What loading refuses, and what it may import. Nothing compiles."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from max.driver import CPU

from specdecode.core.errors import CheckpointError, DeviceError, UsageError
from specdecode.core.models.deepseek_v41 import load
from tests.support.promise import write_promise_checkpoint


@pytest.mark.parametrize(
    ("devices", "degree", "error", "said"),
    [
        ("gpu", 1, UsageError, "--devices gpu is not supported"),
        ("cpux4", 2, UsageError, "--data-parallel-degree 2 on 4"),
        ("gpu:0,65", 1, DeviceError, "gpu:0,65 needs 2 GPUs"),
        ("65", 1, UsageError, "1 to 64 devices"),
    ],
)
def test_devices_are_refused_before_anything_is_read(devices, degree, error, said):
    with pytest.raises(error, match=said):
        load.load_step_model(Path("nowhere"), devices=devices, data_parallel_degree=degree, max_length=8)


def test_an_eagle_drafter_runs_on_one_device():
    with pytest.raises(UsageError, match="cpux2: an EAGLE drafter runs on one device"):
        load.load_step_model(Path("nowhere"), devices="cpux2", max_length=8, drafter=Path("eagle"))


def test_a_folder_without_weights_is_refused(tmp_path):
    folder = write_promise_checkpoint(tmp_path)
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    with pytest.raises(CheckpointError, match="holds neither"):
        load.load_step_model(folder, max_length=8)


def test_caches_beyond_the_memory_are_refused_in_numbers(tmp_path):
    folder = write_promise_checkpoint(tmp_path)
    with pytest.raises(DeviceError, match=r"1000000000 pages of \d+ KiB need \d+ MiB, and \d+ MiB are free"):
        load.load_step_model(folder, max_length=8, num_pages=10**9)


def test_a_copy_of_the_demo_runs_the_shipped_graph_and_never_its_own(tmp_path, monkeypatch):
    """A graph is native code: the installation's is run, not one that lies in the checkpoint's folder."""
    from specdecode.core.checkpoint.locate import preset_folders

    monkeypatch.setenv("SPECDECODE_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "copy"
    shutil.copytree(preset_folders()["demo"], folder, ignore=shutil.ignore_patterns("*.mef.gz"))
    (folder / "graphs" / "step.x86-64-v3.mef.gz").write_bytes(b"foreign code")
    assert load.load_step_model(folder, max_length=32).max_length == 32
    assert not (tmp_path / "cache").exists()  # nothing had to be compiled


def test_engram_tables_are_mapped_not_copied(tmp_path):
    from specdecode.core.checkpoint.reader import Checkpoint

    checkpoint = Checkpoint.open(write_promise_checkpoint(tmp_path))
    weight, scale = load.engram_host_buffers(checkpoint, CPU())
    info = checkpoint.info("layers.1.engram.embed.weight")
    assert tuple(weight.shape) == info.shape
    assert (weight.to_numpy() == checkpoint.array("layers.1.engram.embed.weight")).all()
    assert (scale.to_numpy() == checkpoint.array("layers.1.engram.embed.scale")).all()
    maps = Path("/proc/self/maps")
    if maps.exists():
        address = weight.to_numpy().ctypes.data
        mapped = [line.split() for line in maps.read_text().splitlines() if str(info.file) in line]
        ranges = [[int(end, 16) for end in fields[0].split("-")] for fields in mapped]
        assert any(low <= address < high for low, high in ranges)


def test_loading_imports_neither_the_graph_builder_nor_max_nn():
    code = (
        "import sys, specdecode.core.models.deepseek_v41.load;"
        "print([m for m in sys.modules if m.startswith(('max.nn', 'max.pipelines', 'torch'))"
        " or m.endswith('unified.driver')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
