"""Cut and joined, everything is as it was: for any shapes, for the demo, and for a rank's own slices."""

from __future__ import annotations

import io
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode.core.checkpoint.formats import dequantize_fp8_blocks, dequantize_mxfp4
from specdecode.core.checkpoint.inventory import TensorSpec
from specdecode.core.checkpoint.locate import preset_folders
from specdecode.core.checkpoint.reader import Checkpoint
from specdecode.core.checkpoint.shard import read_header
from specdecode.core.checkpoint.sharding import rejoin, unit
from specdecode.core.checkpoint.sharding.cutting import cut, join
from specdecode.core.checkpoint.sharding.layout import COLUMNS, HOST, REPLICATED, ROWS, Layout, Placement, Strategy
from specdecode.core.checkpoint.sharding.merge import merge
from specdecode.core.checkpoint.sharding.rejoin import open_sharded
from specdecode.core.checkpoint.sharding.source import Source, source_file
from specdecode.core.checkpoint.sharding.writer import shard
from specdecode.core.checkpoint.slices import Axis
from specdecode.core.errors import CheckpointError
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from tests.support.sharded import digests, divisible_config, shard_weights, write_divisible
from tests.support.tiny import write_shard

DEMO = preset_folders()["demo"]
TINY = DeepseekV41Config.from_json(divisible_config())


class Quiet:
    """A watcher that remembers how much was done."""

    def __init__(self) -> None:
        self.total = self.done = 0

    def begin(self, nbytes: int, done: int) -> None:
        self.total, self.done = nbytes, done

    def advance(self, nbytes: int) -> None:
        self.done += nbytes

    def note(self, message: str) -> None: ...


@given(
    rows=st.integers(0, 9),
    columns=st.integers(0, 9),
    item=st.sampled_from([1, 2, 4]),
    ranks=st.integers(1, 5),
    axis=st.sampled_from([None, Axis.ROWS, Axis.COLUMNS]),
    chunk=st.integers(1, 200),
)
def test_cut_and_join_are_inverse(rows, columns, item, ranks, axis, chunk):
    shape = (rows * (ranks if axis is Axis.ROWS else 1), columns * (ranks if axis is Axis.COLUMNS else 1))
    nbytes = math.prod(shape) * item
    whole = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8).tobytes()
    parts = [b""] * (ranks if axis else 1)
    for rank, data in cut(shape, nbytes, axis, len(parts), io.BytesIO(whole).read, chunk):
        assert len(data) <= max(chunk, 1)
        parts[rank] += data
    array = np.frombuffer(whole, np.uint8).reshape(*shape, item)
    expected = np.split(array, len(parts), axis=0 if axis is Axis.ROWS else 1) if nbytes else [array] * len(parts)
    assert parts == [part.tobytes() for part in expected]
    reads = [io.BytesIO(part).read for part in parts]
    assert b"".join(join(shape, nbytes, axis, reads, chunk)) == whole


PLACEMENTS = [ROWS, COLUMNS, REPLICATED, HOST, Placement(rank=0)]


@st.composite
def checkpoints(draw) -> tuple[int, list[list[tuple[str, TensorSpec, Placement]]]]:
    """A number of ranks, and files of tensors with random shapes that it divides."""
    ranks = draw(st.integers(1, 4))
    files = []
    for file in range(draw(st.integers(1, 3))):
        tensors = []
        for number in range(draw(st.integers(1, 4))):
            shape = draw(st.lists(st.integers(0, 6), min_size=1, max_size=3))
            placement = draw(st.sampled_from(PLACEMENTS if len(shape) > 1 else [ROWS, REPLICATED, HOST]))
            if placement.axis:
                shape[placement.axis.place(tuple(shape))] *= ranks
            dtype = draw(st.sampled_from(["BF16", "F32", "I8", "F8_E8M0"]))
            tensors.append((f"t{file}.{number}.é", TensorSpec(dtype, tuple(shape)), placement))
        files.append(tensors)
    return ranks, files


@settings(max_examples=40, deadline=None)
@given(checkpoints(), st.sampled_from([3, 64, 4096]))
def test_any_checkpoint_comes_back(tmp_path_factory, drawn, chunk):
    ranks, files = drawn
    folder = tmp_path_factory.mktemp("any")
    model, out, back = (folder / name for name in ("model", "out", "back"))
    model.mkdir()
    rng = np.random.default_rng(ranks)
    for number, tensors in enumerate(files):
        content = {}
        for name, spec, _ in tensors:
            size = math.prod(spec.shape) * {"BF16": 2, "F32": 4}.get(spec.dtype, 1)
            content[name] = spec, rng.integers(0, 256, size, np.uint8).tobytes()
        write_shard(model / f"part{number}.safetensors", content)
    (model / "model.safetensors.index.json").write_text('{"any": "bytes"}\n\n')
    (model / "LICENSE").write_text("free")
    before = digests(model)
    placements = {name: placement for tensors in files for name, _, placement in tensors}
    paths = sorted(model.glob("*.safetensors"))
    source = Source(
        path=model,
        config=TINY,
        files=tuple(source_file(path, read_header(path)) for path in paths),
        index=model / "model.safetensors.index.json",
        copies=(Path("LICENSE"),),
        stray=(),
    )
    layout = Layout(strategy=Strategy.TENSOR, ranks=ranks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit, "CHUNK", chunk)
        patch.setattr(rejoin, "CHUNK", chunk)
        watcher = Quiet()
        shard(source, placements, layout, out, watcher)
        assert watcher.done == watcher.total == sum(path.stat().st_size for path in paths)
        merge(open_sharded(out), back, watcher)
    assert digests(model) == before == digests(back)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_divisible(tmp_path_factory.mktemp("divisible") / "model")


@pytest.fixture(scope="module", params=["--tp 1", "--tp 2", "--tp 4", "--ep 2", "--ep 4"])
def sharded(request, model, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("sharded") / "out"
    assert shard_weights(model, out, *request.param.split(), "--verify").exit_code == 0
    return out


def test_a_sharded_folder_opens_like_the_original(model, sharded):
    original, opened = Checkpoint.open(model), Checkpoint.open(sharded)
    assert set(opened.names()) == set(original.names())
    assert opened.note == original.note
    for name in original.names():
        assert opened.info(name).shape == original.info(name).shape
        assert np.array_equal(opened.array(name), original.array(name))
        assert opened.array(name).dtype == original.array(name).dtype


def test_its_index_is_a_valid_one(model, sharded):
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    total = 0
    for name, file in index["weight_map"].items():
        total += read_header(sharded / file)[name].nbytes
    original = json.loads((model / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == total == original["metadata"]["total_size"]
    assert {path.name for path in sharded.glob("*.safetensors")} == set(index["weight_map"].values())


def test_the_public_reader_of_safetensors_reads_it(sharded):
    from safetensors import safe_open

    for path in sharded.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            assert set(file.keys()) == set(read_header(path))


def test_what_a_rank_holds(model, sharded):
    original, opened = Checkpoint.open(model), Checkpoint.open(sharded)
    ranks = range(opened.ranks)
    held = [set(opened.rank_names(rank)) for rank in ranks]
    assert set.union(*held) == set(original.names())
    for name in original.names():
        parts = [opened.rank_array(name, rank) for rank in ranks if name in held[rank]]
        whole = original.array(name)
        if parts[0].shape == whole.shape:
            assert len(parts) in (1, opened.ranks)  # an expert of one rank, or everybody's
            assert all(np.array_equal(part, whole) for part in parts)
        else:
            axis = next(a for a, b in enumerate(zip(parts[0].shape, whole.shape, strict=True)) if b[0] != b[1])
            assert np.array_equal(np.concatenate(parts, axis), whole)


def test_a_rank_that_is_none(sharded):
    opened = Checkpoint.open(sharded)
    with pytest.raises(CheckpointError, match=rf"sharded for {opened.ranks} ranks, and rank {opened.ranks} is not one"):
        opened.rank_array("embed.weight", opened.ranks)
    with pytest.raises(CheckpointError, match="rank -1 is not one"):
        opened.rank_names(-1)


def test_an_expert_of_another_rank(model, tmp_path):
    assert shard_weights(model, tmp_path / "out", "--ep", 2).exit_code == 0
    opened = Checkpoint.open(tmp_path / "out")
    name = "layers.0.ffn.experts.3.w1.weight"
    assert name in opened.rank_names(1)
    with pytest.raises(CheckpointError, match=r"belongs to rank 1; rank 0 has none of it"):
        opened.rank_array(name, 0)


def test_slices_of_matrices_decode_by_themselves(model, tmp_path):
    """FP4 and FP8 slices with their own scales are the slices of the decoded matrix."""
    assert shard_weights(model, tmp_path / "out", "--tp", 4).exit_code == 0
    original, opened = Checkpoint.open(model), Checkpoint.open(tmp_path / "out")
    cases = [
        (f"{part}.{name}", decode)
        for part in ("layers.2", "mtp.1")
        for name, decode in [
            ("ffn.experts.1.w1", dequantize_mxfp4),
            ("ffn.experts.1.w2", dequantize_mxfp4),
            ("ffn.shared_experts.w2", dequantize_fp8_blocks),
            ("attn.wq_b", dequantize_fp8_blocks),
            ("attn.wo_a", dequantize_fp8_blocks),
            ("attn.wo_b", dequantize_fp8_blocks),
        ]
    ]
    for name, decode in cases:
        whole = decode(original.array(f"{name}.weight"), original.array(f"{name}.scale"))
        for rank, expected in enumerate(np.split(whole, 4)):
            part = decode(*(opened.rank_array(f"{name}.{kind}", rank) for kind in ("weight", "scale")))
            assert np.array_equal(part, expected), name


def generated(model: Path) -> list[int]:
    command = [sys.executable, "-m", "specdecode.cli", "generate", "-p", "And it came to pass", "--json", "--quiet"]
    arguments = ["--max-tokens", "24", "--model", str(model)]
    output = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True).stdout
    tokens: list[int] = json.loads(output)["results"][0]["tokens"]
    assert len(tokens) == 24
    return tokens


@pytest.mark.parametrize("layout", ["--tp 2", "--ep 2", "--ep 4", "--ep 8"])
def test_the_demo_comes_back_and_runs(tmp_path, layout):
    out, back = tmp_path / "out", tmp_path / "back"
    assert shard_weights(DEMO, out, *layout.split(), "--verify").exit_code == 0
    assert shard_weights(out, back, "--merge").exit_code == 0
    assert digests(back) == digests(DEMO)
    if layout in ("--tp 2", "--ep 4"):
        assert generated(out) == generated(DEMO)


HIGH_WATER = """
import sys
from pathlib import Path
from specdecode.core.checkpoint.sharding.layout import Layout, Strategy
from specdecode.core.checkpoint.sharding.plan import make_plan
from specdecode.core.checkpoint.sharding.source import open_source
from specdecode.core.checkpoint.sharding.writer import shard
from tests.core.checkpoint.sharding.test_identity import Quiet
source = open_source(Path(sys.argv[1]))
layout = Layout(strategy=Strategy.TENSOR, ranks=4)
shard(source, make_plan(source.config, source.tensors, layout).placements, layout, Path(sys.argv[2]), Quiet())
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def test_memory_does_not_grow_with_the_tensors(tmp_path):
    """Resident memory against tensors of 0.8 GB together, each many times the buffers."""
    from tests.support.hollow import write_hollow_checkpoint

    config = divisible_config()
    config["text_config"] |= {"vocab_size": 1 << 20, "hidden_size": 128, "engram_num_embeddings": [4 << 20]}
    (model := tmp_path / "model").mkdir()
    write_hollow_checkpoint(model, config, files=1)
    size = (model / "model-00001-of-00001.safetensors").stat().st_size
    assert size > 700e6
    command = [sys.executable, "-c", HIGH_WATER, str(model), str(tmp_path / "out")]
    root = Path(__file__).resolve().parents[4]
    result = subprocess.run(command, capture_output=True, text=True, cwd=root)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) * 1024 < 300e6
    shutil.rmtree(tmp_path / "out")
