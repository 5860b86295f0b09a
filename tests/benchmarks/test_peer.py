"""The comparison with MAX's own model, without compiling: sizes, inputs and the report."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from typing import Any

import pytest
from max.driver import CPU
from max.graph import BufferType, Dim

from specdecode.core.engine.device import open_place
from specdecode.core.errors import UsageError
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config, LayerKind
from tests.benchmarks.peers import part as parts
from tests.benchmarks.peers.figures import Build, Spent, timed
from tests.benchmarks.peers.ours import our_rows
from tests.benchmarks.peers.part import Part, Plan
from tests.benchmarks.peers.sizes import DIFFERENCES, SHARED, Sizes, our_content, v4_fields
from tests.benchmarks.peers.table import lines
from tests.benchmarks.peers.v4 import V4, stand_in_for_videos

SIZES = Sizes()


def v4() -> V4:
    """MAX's model for the CPU, where it is never traced; skips where its packages are not installed."""
    stand_in_for_videos()
    pytest.importorskip("max.pipelines", reason="MAX's pipelines need packages of max[serve]", exc_type=ImportError)
    return V4(SIZES, open_place("cpu"))


def test_both_configurations_have_the_same_sizes():
    text, fields = DeepseekV41Config.from_json(our_content(SIZES)).text_config, v4_fields(SIZES)
    for name in (*SHARED, "num_hidden_layers", "dspark_block_size", "max_position_embeddings"):
        assert getattr(text, name) == fields[name], name
    assert list(text.dspark_target_layer_ids) == fields["dspark_target_layer_ids"]
    assert text.num_stages == len(fields["dspark_target_layer_ids"])
    assert text.dspark_n_routed_experts == fields["n_routed_experts"]
    assert [text.layer_kind(layer) for layer in range(3)] == [LayerKind.WINDOW, LayerKind.FULL, LayerKind.FULL]


def test_the_differences_say_the_numbers_of_these_sizes():
    rows = [1024 // ratio for ratio in (*SIZES.ours_ratios[1:], *SIZES.v4_ratios[1:])]
    assert any("512 and 1024, against 256 and 8" in each for each in DIFFERENCES)
    assert rows == [512, 1024, 256, 8]
    assert any(f"{SIZES.n_routed_experts} experts, {SIZES.num_experts_per_tok} chosen" in each for each in DIFFERENCES)


def test_requests_share_no_page_and_end_with_the_context():
    rows = our_rows(SIZES, 3, 1024)
    assert len({page for row in rows for page in row.pages}) == 3 * 64
    assert {row.cache_length + 1 + len(row.draft_tokens) for row in rows} == {1024}


def test_inputs_fit_the_signature_that_max_declares():
    model = v4()
    from tests.benchmarks.peers.v4_inputs import step_inputs

    found = step_inputs(SIZES, model.caches, CPU(), 2, 1024)
    declared = model.module.input_types(model.caches)
    assert len(found) == len(declared)
    dims: dict[str, int] = {}
    for buffer, wanted in zip(found, declared, strict=True):
        assert (buffer.dtype, buffer.rank) == (wanted.dtype, wanted.rank)
        for size, dim in zip(buffer.shape, wanted.shape, strict=True):
            assert size == (int(dim) if is_static(dim) else dims.setdefault(str(dim), size)), str(dim)
    leaves = [buffer for buffer, wanted in zip(found, declared, strict=True) if isinstance(wanted, BufferType)]
    assert len(leaves) == 7


def is_static(dim: Dim) -> bool:
    return str(dim).isdigit()


def test_max_s_weights_have_the_model_s_names_and_shapes():
    model = v4()
    layer = "layers.1.attn"
    assert tuple(model.weights[f"{layer}.wkv.weight"].shape) == (SIZES.head_dim, SIZES.hidden_size)
    experts = {name.split(".")[4] for name in model.weights if name.startswith("layers.0.ffn.experts.")}
    assert len(experts) == SIZES.n_routed_experts
    assert {name.split(".")[1] for name in model.weights if name.startswith("mtp.")} == {"0", "1", "2"}
    assert model.weights["norm.weight"].to_numpy().sum() == SIZES.hidden_size


def test_a_step_is_timed_in_three_ways():
    runs, reads = [], []
    step = timed(
        lambda: runs.append(1), reads.append, CPU(), repeats=2, mode="eager", batch=1, context=8, sound=True, kernels=7
    )
    assert (len(step.device.values), len(step.wall.values), len(step.host.values)) == (2, 2, 2)
    assert len(reads) == 2 + 3  # with the warm-up
    assert step.kernels == 7


def a_part(title: str, wall: float) -> Part:
    spent = Spent(wall=wall, cpu=4 * wall)
    step = timed(
        lambda: None, lambda _: None, CPU(), repeats=1, mode="eager", batch=1, context=8, sound=True, kernels=7
    )
    where: dict[str, str | int] = {"device": "some GPU", "max": "1", "cpu": "some CPU", "cores": 2}
    build = Build(ops=9, trace=spent, compile=spent, load=spent)
    return Part(title=title, machine=where, build=build, steps=[step])


def test_a_file_gathers_both_parts_of_the_same_sizes(tmp_path):
    file = tmp_path / "figures.json"
    document = parts.save(file, "ours", a_part("ours", 2.0), SIZES)
    assert not any("compile, MAX's in ours" in line for line in lines(document))
    document = parts.save(file, "max", a_part("MAX", 8.0), SIZES)
    assert document == json.loads(file.read_text())
    report = "\n".join(lines(document))
    assert "trace and compile, MAX's in ours: 4.0 by the clock, 4.0 in CPU time" in report
    assert "MAX's eager step in our eager ones" in report
    assert set(parts.kept(file, replace(SIZES, hidden_size=32))["parts"]) == set()


def test_what_came_before_a_failure_is_kept(tmp_path, monkeypatch: Any, capsys: Any):
    def failing(*_: object) -> Any:
        yield a_part("MAX", 8.0)
        raise RuntimeError("a kernel failed")

    monkeypatch.setattr(parts, "measure", failing)
    options = peer_script().arguments().parse_args(["--part", "max", "--json", str(tmp_path / "figures.json")])
    with pytest.raises(RuntimeError, match="a kernel failed"):
        peer_script().one(options)
    assert set(parts.kept(options.json, SIZES)["parts"]) == {"max"}
    assert "MAX " in capsys.readouterr().out


def peer_script() -> Any:
    return importlib.import_module("tests.benchmarks.peer")


@pytest.mark.parametrize("case", [(0, 1024), (1, 4096)])
def test_a_case_that_cannot_be_run_is_refused(case):
    with pytest.raises(UsageError, match="cannot be run"):
        parts.check(Plan(until="steps", devices="gpu:0", cases=(case,), repeats=1), SIZES)


def test_without_a_gpu_there_is_one_message(monkeypatch: Any):
    monkeypatch.setattr(parts, "accelerator_count", lambda: 0)
    with pytest.raises(UsageError, match="there is no GPU to run on") as raised:
        parts.opened(Plan(until="steps", devices="gpu:0", cases=((1, 1024),), repeats=1))
    assert raised.value.exit_code == 2
