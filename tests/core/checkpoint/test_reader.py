"""A good folder opens; every way of breaking it is refused with one clear message."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from specdecode.core.checkpoint import inventory
from specdecode.core.checkpoint.inventory import TensorSpec
from specdecode.core.checkpoint.reader import Checkpoint
from specdecode.core.checkpoint.shard import Shard
from specdecode.core.errors import CheckpointError, ConfigError
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from tests.support.golden import golden_sets
from tests.support.released import released_config
from tests.support.tiny import CONFIG, INDEX, write_checkpoint, write_index, write_shard

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
ITEM_BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("good"), vision=True)


@pytest.fixture
def folder(good, tmp_path):
    """A copy to break."""
    return shutil.copytree(good, tmp_path / "model")


def rewrite(folder, change) -> None:
    """Let `change` edit the tensors of all shards as one dict, and write them with a fitting index."""
    files = {file: Shard(folder / file) for file in (FIRST, SECOND)}
    weight_map, total = {}, 0
    for file, shard in files.items():
        tensors = {
            name: (TensorSpec(info.dtype, info.shape), shard.array(name).tobytes())
            for name, info in shard.tensors.items()
        }
        change(tensors)
        write_shard(folder / file, tensors)
        weight_map.update(dict.fromkeys(tensors, file))
        total += sum(len(data) for _, data in tensors.values())
    write_index(folder, weight_map, total)


def refused(folder, match) -> str:
    with pytest.raises(CheckpointError, match=match) as caught:
        Checkpoint.open(folder)
    return str(caught.value)


def test_a_good_folder_opens(good):
    checkpoint = Checkpoint.open(good)
    assert checkpoint.config.text_config.num_hidden_layers == 5
    assert checkpoint.note == "18 vision tensors are left out: images are not supported."
    assert not any(name.startswith(("vision", "aligner", "image")) for name in checkpoint.names())
    info = checkpoint.info("layers.0.attn.wq_a.scale")
    assert (info.dtype, info.shape, info.nbytes) == ("F8_E8M0", (1, 1), 1)
    assert info.file.parent == good


def test_arrays_are_views_with_the_right_types(good):
    checkpoint = Checkpoint.open(good)
    for name, dtype in [
        ("layers.0.attn.wq_a.weight", np.uint8),
        ("layers.0.attn.wq_a.scale", np.uint8),
        ("layers.0.ffn.experts.1.w2.weight", np.uint8),
        ("embed.weight", np.uint16),
        ("layers.4.hc_ffn_fn", np.float32),
    ]:
        array = checkpoint.array(name)
        assert array.dtype == dtype
        assert array.shape == checkpoint.info(name).shape
        assert not array.flags.owndata
        assert not array.flags.writeable


def test_values_are_those_on_disk(good):
    checkpoint = Checkpoint.open(good)
    name = "layers.0.ffn.gate.bias"
    raw = (good / checkpoint.info(name).file.name).read_bytes()
    info = checkpoint.info(name)
    assert checkpoint.array(name).tobytes() == raw[info.offset : info.offset + info.nbytes]


def test_a_single_file_needs_no_index(tmp_path):
    write_checkpoint(tmp_path, shards=1)
    (tmp_path / INDEX).unlink()
    (tmp_path / "model-00001-of-00001.safetensors").rename(tmp_path / "model.safetensors")
    assert len(Checkpoint.open(tmp_path).names()) == 328


def test_no_weights_at_all(folder):
    (folder / INDEX).unlink()
    refused(folder, r"holds neither model\.safetensors\.index\.json nor model\.safetensors")


def test_no_configuration(folder):
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"No config\.json in "):
        Checkpoint.open(folder)


def test_a_missing_tensor_is_named_with_the_nearest_name(folder):
    def rename(tensors):
        if "layers.2.attn.kv_norm.weight" in tensors:
            tensors["layers.2.attn.kvnorm.weight"] = tensors.pop("layers.2.attn.kv_norm.weight")

    rewrite(folder, rename)
    message = refused(folder, r"lacks tensor layers\.2\.attn\.kv_norm\.weight\.")
    assert "nearest name in the files is layers.2.attn.kvnorm.weight" in message


def test_several_missing_tensors_are_counted(folder):
    def drop(tensors):
        for name in [n for n in tensors if n.startswith("mtp.1.ffn.experts.1.")]:
            del tensors[name]

    rewrite(folder, drop)
    refused(folder, r"lacks tensor mtp\.1\.ffn\.experts\.1\.w\d\.\w+ \(and 5 more\)")


def test_an_unexpected_tensor_is_named_with_the_nearest_name(folder):
    def add(tensors):
        if "embed.weight" in tensors:
            tensors["layers.4.attn.indexer.wk.weight"] = (TensorSpec("BF16", (1,)), b"\0\0")

    rewrite(folder, add)
    message = refused(folder, r"unexpected tensor layers\.4\.attn\.indexer\.wk\.weight")
    assert "nearest name that config.json asks for is layers.4.attn." in message


@pytest.mark.parametrize(
    ("spec", "found"),
    [(TensorSpec("BF16", (16, 32)), r"BF16 \[16, 32\]"), (TensorSpec("U8", (32, 32)), r"U8 \[32, 32\]")],
)
def test_a_wrong_shape_or_type(folder, spec, found):
    def change(tensors):
        if "layers.0.attn.wq_a.weight" in tensors:
            tensors["layers.0.attn.wq_a.weight"] = (spec, bytes(1024))

    rewrite(folder, change)
    refused(folder, rf"layers\.0\.attn\.wq_a\.weight is {found}, but config\.json asks for F8_E4M3 \[32, 32\]")


def test_a_short_shard(folder):
    path = folder / SECOND
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 100)
    refused(folder, rf"00002-of-00002\.safetensors has {size - 100} bytes, and its header says .* 100 are missing")


@pytest.mark.parametrize("size", [0, 5, 300])
def test_a_shard_cut_inside_its_header(folder, size):
    with (folder / FIRST).open("r+b") as file:
        file.truncate(size)
    refused(folder, r"00001-of-00002\.safetensors has \d+ bytes, and its header needs")


def test_a_damaged_header(folder):
    data = bytearray((folder / FIRST).read_bytes())
    data[8] = ord("?")
    (folder / FIRST).write_bytes(data)
    refused(folder, "is not a safetensors file")


def test_a_header_that_contradicts_itself(folder):
    data = (folder / FIRST).read_bytes().replace(b'"F32", "shape": [24]', b'"F32", "shape": [23]', 1)
    (folder / FIRST).write_bytes(data)
    refused(folder, r"is F32 \[23\] and needs 92 bytes, but its header gives it 96")


def test_a_missing_shard(folder):
    (folder / FIRST).unlink()
    refused(folder, r"00001-of-00002\.safetensors does not exist")


def edit_index(folder, change) -> None:
    content = json.loads((folder / INDEX).read_text())
    change(content)
    (folder / INDEX).write_text(json.dumps(content))


def test_an_index_that_places_a_tensor_elsewhere(folder):
    edit_index(folder, lambda index: index["weight_map"].update({"embed.weight": SECOND}))
    refused(folder, rf"says that embed\.weight is in {SECOND}, but it is in {FIRST}")


def test_an_index_that_knows_more_than_the_shards(folder):
    edit_index(folder, lambda index: index["weight_map"].update({"extra": FIRST}))
    refused(folder, r"says that extra is in .*, but no shard holds it")


def test_an_index_that_knows_less_than_the_shards(folder):
    edit_index(folder, lambda index: index["weight_map"].pop("head.weight"))
    refused(folder, r"holds head\.weight, which .*index\.json does not place there")


def test_an_index_with_another_size(folder):
    edit_index(folder, lambda index: index["metadata"].update(total_size=12))
    refused(folder, r"says total_size 12, but the tensors of its shards have \d+ bytes")


@pytest.mark.parametrize("text", ["[]", "{", '{"weight_map": {"a": "../b"}}', '{"weight_map": 3}'])
def test_a_damaged_index(folder, text):
    (folder / INDEX).write_text(text)
    refused(folder, "is not a safetensors index")


def test_the_released_inventory():
    tensors = inventory.expected_tensors(DeepseekV41Config.from_json(released_config()))
    sizes = [ITEM_BYTES[spec.dtype] * int(np.prod(spec.shape, dtype=np.int64)) for spec in tensors.values()]
    assert len(tensors) == 96_085
    assert sum(map(inventory.is_vision, tensors)) == 266
    assert sum(sizes) == 510_286_023_000


def test_vision_is_part_of_the_inventory_only_where_it_has_layers():
    config = DeepseekV41Config.from_json(CONFIG)
    assert sum(map(inventory.is_vision, inventory.expected_tensors(config))) == 18


@pytest.mark.parametrize("path", golden_sets(), ids=lambda path: path.name)
def test_reference_sets_open(path):
    names = Checkpoint.open(path).names()
    assert len(names) == len(set(names)) == len(json.loads((path / INDEX).read_text())["weight_map"])
