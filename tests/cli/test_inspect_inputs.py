"""`specdecode inspect-inputs`: the table, a real step's values, and pairs of checkpoints."""

from __future__ import annotations

import json
import shutil

import pytest
from max.graph import DeviceRef
from typer.testing import CliRunner

from specdecode.cli.app import make_app
from specdecode.core.checkpoint.locate import preset_folders
from specdecode.core.device_layout import DeviceLayout
from specdecode.core.inspection.signature import inputs, kind_of, named_inputs, outputs, table
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from tests.support.released import released_config
from tests.support.tiny import write_checkpoint

DEMO = preset_folders()["demo"]
TEXT = "In the beginning God created the heaven and the earth."


def run(*arguments: str):
    result = CliRunner().invoke(make_app(panels=False), ["inspect-inputs", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def document(*arguments: str) -> dict:
    return json.loads(run(*arguments, "--json").stdout)


def test_every_input_has_a_line_in_graph_order():
    result = run("demo")
    assert result.exit_code == 0
    config = DeepseekV41Config.from_json(DEMO)
    names = [known.name for known in named_inputs(config, DeviceLayout.single(DeviceRef.CPU()), True)]
    lines = result.stdout.partition("outputs")[0].splitlines()[2:]
    assert [line.split()[1] for line in lines if line] == names
    assert all(line.split()[0] == str(n) for n, line in enumerate(line for line in lines if line))
    assert "kv_window (in and out)" in result.stdout


@pytest.mark.parametrize("devices", ["cpu", "gpu:0"])
@pytest.mark.parametrize("masks", [True, False])
def test_devices_and_masks(devices, masks):
    flag = "--structured-output" if masks else "--no-structured-output"
    found = {entry["name"]: entry for entry in document("demo", "--devices", devices, flag)["inputs"]}
    assert ("pinned_bitmask" in found) is masks
    assert found["tokens"]["device"] == devices
    assert found["return_n_logits"]["device"] == "cpu"
    assert found["engram.1.weight"]["device"] == "cpu"


def test_several_devices_have_an_input_each():
    entries = document("demo", "--devices", "gpu:0,1", "--data-parallel-degree", "2")["inputs"]
    found = {entry["name"]: entry for entry in entries}
    assert [found[f"kv_window.{rank}"]["device"] for rank in (0, 1)] == ["gpu:0", "gpu:1"]
    assert found["cache_lengths.1"]["shape"] == ["batch_1"]
    assert found["data_parallel_splits"] | {"index": 0} == {
        "index": 0, "name": "data_parallel_splits", "kind": "control", "dtype": "int64", "shape": [3], "device": "cpu",
        "meaning": "first request of each replica, and the end", "changed": False, "values": [], "bytes": 24,
    }  # fmt: skip
    assert (found["ep_buffer.0"]["changed"], found["ep_buffer.0"]["kind"]) == (True, "exchange")
    tensor = [entry["name"] for entry in document("demo", "--devices", "2")["inputs"]]
    assert "signal_buffer.1" in tensor
    assert "ep_buffer.1" not in tensor


@pytest.mark.parametrize("degree", ["1", "2"])
def test_the_values_of_a_step_on_two_devices(degree):
    options = ("--devices", "cpux2", "--data-parallel-degree", degree, "--prompt", "In the beginning")
    found = {entry["name"]: entry for entry in document("demo", *options)["inputs"]}
    one = {entry["name"]: entry for entry in document("demo", "--prompt", "In the beginning")["inputs"]}
    assert found["tokens"]["values"] == one["tokens"]["values"]
    assert found["lookup_table.0"]["shape"] == one["lookup_table"]["shape"]
    assert found["cache_lengths.1"]["shape"] == [2 - int(degree)]  # the second replica has no request


def test_an_eagle_drafter_is_shown_on_one_device_only():
    result = run("demo", "--method", "eagle", "--devices", "cpux2")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "An EAGLE drafter runs on one device" in result.stderr


def test_a_released_configuration_needs_no_weights(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(released_config()))
    found = document(str(tmp_path))
    tables = [entry for entry in found["inputs"] if entry["kind"] == "Engram table"]
    text = DeepseekV41Config.from_json(tmp_path).text_config
    assert len(tables) == 2 * len(text.engram_layer_ids)
    assert [entry["shape"][0] for entry in tables[::2]] == list(text.engram_num_embeddings)
    assert all(isinstance(entry["bytes"], int) for entry in tables)


@pytest.mark.parametrize(("phase", "drafts"), [("prefill", 0), ("decode", 0), ("verify", 5)])
def test_the_values_of_a_step(phase, drafts):
    found = document("demo", "--prompt", TEXT, "--phase", phase)
    whole = len(document("demo", "--prompt", TEXT)["tokens"])
    by_name = {entry["name"]: entry for entry in found["inputs"]}
    tokens = whole if phase == "prefill" else 1
    assert by_name["tokens"]["shape"] == [tokens]
    assert by_name["draft_tokens"]["shape"] == [1, drafts]
    assert by_name["merged_rows"]["shape"] == [tokens + drafts]
    assert by_name["input_row_offsets"]["values"] == [0, tokens]
    assert by_name["cache_lengths"]["values"] == [whole - tokens - drafts]
    assert all(isinstance(entry["bytes"], int) for entry in found["inputs"])
    assert found["tokens"][0].split()[0] == str(by_name["tokens"]["values"][0])
    assert len(found["tokens"]) == tokens + drafts


def test_markdown_is_a_table():
    lines = run("demo", "--markdown").stdout.splitlines()
    assert lines[0] == "## inputs"
    assert lines[2].startswith("| # | name | kind |")
    assert {line.count(" | ") for line in lines if line.startswith("| ")} == {7}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--phase", "verify"], "--phase verify needs a prompt"),
        (["demo", "-p", "x", "--phase", "later"], "--phase later is not possible. Use prefill, decode, verify."),
        (["demo", "-p", "x", "--phase", "verify"], "verify needs 6: its last 5 stand for drafts"),
        (["demo", "--devices", "tpu"], "--devices tpu is not supported"),
        (["demo", "--json", "--markdown"], "--json and --markdown contradict each other"),
    ],
)
def test_what_is_not_possible(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_folder_that_is_no_checkpoint(tmp_path):
    assert run(str(tmp_path)).exit_code == 3


def test_a_checkpoint_pairs_with_itself_and_not_with_another(tmp_path):
    assert run("--diff", "demo", "demo").exit_code == 0
    (tmp_path / "other").mkdir()
    other = write_checkpoint(tmp_path / "other")
    result = run("--diff", "demo", str(other))
    assert result.exit_code == 3
    assert "they do not pair: tokenizer" in result.stdout
    copy = tmp_path / "copy"
    shutil.copytree(DEMO, copy)
    content = json.loads((copy / "config.json").read_text())
    content["text_config"]["dspark_noise_token_id"] = 2046
    (copy / "config.json").write_text(json.dumps(content))
    found = json.loads(run("--diff", "demo", str(copy), "--json").stdout)
    assert found["pairs"] is False
    assert [fact["name"] for fact in found["facts"] if not fact["equal"]] == ["dspark_noise_token_id"]


def test_every_input_has_a_kind():
    config = DeepseekV41Config.from_json(DEMO)
    one, both = DeviceLayout.single(DeviceRef.CPU()), (DeviceRef.GPU(0), DeviceRef.GPU(1))
    for layout in (one, DeviceLayout(devices=both), DeviceLayout(devices=both, data_parallel_degree=2)):
        for known in named_inputs(config, layout, True):
            assert kind_of(known.name)
    with pytest.raises(KeyError):
        kind_of("something_new")
    assert len(table(inputs(config, one), markdown=False)) == len(inputs(config, one)) + 1
    assert [entry.index for entry in outputs(config, one)] == list(range(8))
