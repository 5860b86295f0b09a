"""The accounts add up, exactly, for the released model too."""

from __future__ import annotations

import json
import math
import time

import pytest

from specdecode.core.checkpoint.locate import preset_folders
from specdecode.core.checkpoint.sharding.inputs import plan_input, planned_tensors
from specdecode.core.checkpoint.sharding.layout import COLUMNS, HOST, REPLICATED, ROWS, Layout, Placement, Strategy
from specdecode.core.checkpoint.sharding.memory import DEVICE_MEMORY, GB, USABLE, fits, plan_caches
from specdecode.core.checkpoint.sharding.plan import FAMILIES, Plan, family, make_plan
from specdecode.core.checkpoint.sharding.preset import read_sharding_preset, sharding_preset
from specdecode.core.checkpoint.sharding.splits import place
from specdecode.core.errors import ConfigError, UsageError
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from tests.support.hollow import write_hollow_checkpoint
from tests.support.released import released_config

TP8, EP8 = (Layout(strategy=strategy, ranks=8) for strategy in (Strategy.TENSOR, Strategy.EXPERT))
RELEASED = DeepseekV41Config.from_json(released_config())


@pytest.fixture(scope="module")
def plans() -> dict[Layout, Plan]:
    tensors = planned_tensors(RELEASED)
    return {layout: make_plan(RELEASED, tensors, layout) for layout in (TP8, EP8)}


def test_the_preset_is_the_released_configuration():
    assert DeepseekV41Config.from_json(preset_folders()["deepseek-v4.1-flash"]) == RELEASED
    preset = sharding_preset("deepseek-v4.1-flash")
    assert preset is not None
    assert preset.layouts == (TP8, EP8)
    assert sharding_preset("demo") is None
    assert sharding_preset("../presets/deepseek-v4.1-flash") is None


@pytest.mark.parametrize("layout", [TP8, EP8], ids=str)
def test_every_byte_of_the_released_model_is_accounted_for(plans, layout):
    plan = plans[layout]
    assert plan.tensors == 96_085
    assert plan.nbytes == 510_286_023_000
    assert plan.split + plan.replicated + plan.host == plan.nbytes
    # Two tables with a row of 256 codes and 8 scales for every address.
    assert plan.host == (384_006_168 + 384_016_682) * 264 == 202_758_032_400
    on_devices = sum(device.total for device in plan.devices)
    assert on_devices == plan.nbytes - plan.host + 7 * plan.replicated
    assert sum(plan.whole.values()) == plan.nbytes
    for name in FAMILIES:
        shares = [device.families[name] for device in plan.devices]
        assert sum(share.split for share in shares) + shares[0].replicated == plan.whole[name] or name == FAMILIES[-1]


def test_the_released_model_on_eight_devices(plans):
    tp, ep = plans[TP8], plans[EP8]
    assert [device.total for device in tp.devices] == [40_457_824_328] * 8
    assert [device.total for device in ep.devices] == [48_530_373_960] * 8
    assert (tp.replicated, ep.replicated) == (2_304_943_432, 11_530_714_440)
    # 48 experts of 18,800,640 bytes in each of 40 layers either way, and 16 in each of three draft stages.
    for plan in (tp, ep):
        families = plan.devices[0].families
        assert families["routed experts"].split == 48 * 40 * 18_800_640
        assert families["drafter, routed experts"].split == 16 * 3 * 18_800_640
    assert tp.devices[0].largest == ("embed.weight", 129280 * 5120 * 2 // 8)


@pytest.mark.parametrize(
    ("name", "tensor_parallel", "expert_parallel"),
    [
        ("embed.weight", COLUMNS, REPLICATED),
        ("head.weight", ROWS, REPLICATED),
        ("layers.3.attn.wq_a.weight", REPLICATED, REPLICATED),
        ("layers.3.attn.wq_b.weight", ROWS, REPLICATED),
        ("layers.3.attn.wq_b.scale", ROWS, REPLICATED),
        ("layers.3.attn.attn_sink", ROWS, REPLICATED),
        ("layers.3.attn.wo_a.scale", ROWS, REPLICATED),
        ("layers.3.attn.wo_b.weight", ROWS, REPLICATED),
        ("mtp.1.attn.wo_b.scale", ROWS, REPLICATED),
        ("layers.2.attn.indexer.wq_b.weight", REPLICATED, REPLICATED),
        ("layers.3.ffn.gate.weight", REPLICATED, REPLICATED),
        ("layers.3.ffn.experts.95.w1.weight", ROWS, Placement(rank=1)),
        ("layers.3.ffn.experts.96.w2.scale", ROWS, Placement(rank=2)),
        ("layers.3.ffn.shared_experts.w3.scale", ROWS, REPLICATED),
        ("layers.3.ffn.shared_experts.w2.weight", ROWS, REPLICATED),
        ("layers.14.engram.embed.weight", HOST, HOST),
        ("layers.14.engram.wkv.weight", REPLICATED, REPLICATED),
        ("mtp.1.ffn.experts.127.w3.scale", ROWS, Placement(rank=7)),
        ("mtp.1.ffn.experts.127.w2.weight", ROWS, Placement(rank=7)),
        ("mtp.2.markov_head.embed.weight", REPLICATED, REPLICATED),
        ("mtp.2.markov_head.head.weight", REPLICATED, REPLICATED),
        ("mtp.0.main_proj.weight", REPLICATED, REPLICATED),
        ("vision.blocks.0.attn.wqkv.weight", REPLICATED, REPLICATED),
    ],
)
def test_where_a_tensor_goes(name, tensor_parallel, expert_parallel):
    assert place(name, RELEASED, TP8) == tensor_parallel
    assert place(name, RELEASED, EP8) == expert_parallel


@pytest.mark.parametrize("layout", [TP8, EP8], ids=str)
def test_a_matrix_and_its_scales_are_cut_in_the_same_blocks(plans, layout):
    tensors = planned_tensors(RELEASED)
    cut = [name for name, where in plans[layout].placements.items() if where.axis and name.endswith(".scale")]
    for name in cut:
        axis, matrix = plans[layout].placements[name].axis, name.removesuffix("scale") + "weight"
        assert plans[layout].placements[matrix].axis is axis
        part, scales = (axis.cut(tensors[n].shape, layout.ranks) for n in (matrix, name))
        packed = 2 if ".ffn.experts." in name else 1
        assert part[-1] * packed == scales[-1] * 32
        assert part[0] == scales[0] * (1 if packed == 2 else 32)
    assert len(cut) == (0 if layout is EP8 else (40 * 384 + 3 * 128) * 3 + 43 * (3 + 3))


def test_the_caches_of_a_device():
    text = RELEASED.text_config
    tp = plan_caches(text, TP8, context=65536, batch=8)
    ep = plan_caches(text, EP8, context=65536, batch=8)
    assert (tp.sequences, ep.sequences) == (8, 1)
    assert tp.allocated == 8 * ep.allocated
    # 2.5 rows of 288 + 68 bytes a token are 890, and 43 windows of 128 rows of 528 bytes.
    assert ep.compact == 65536 * 890 + 43 * 128 * 528
    # A page of 16 tokens in float32: 43 windows, 40 compressed rows and keys, openings of three sources in pairs.
    page = 4 * (43 * 16 * 512 + 40 * 512 + 40 * 128 + 3 * 5 * 1024)
    assert ep.allocated == math.ceil((65536 + 5) / 16) * page
    assert plan_caches(text, EP8, context=4096, batch=9).sequences == 2


def test_what_fits():
    verdicts = {fit.name: fit.fits for fit in fits(int(USABLE * 141 * GB))}
    assert verdicts == {name: memory >= 141 * GB for name, memory in DEVICE_MEMORY.items()}
    assert {fit.name: fit.fits for fit in fits(int(USABLE * 141 * GB) + 1)}["H200"] is False


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (Layout(strategy=Strategy.TENSOR, ranks=3), r"num_attention_heads = 64 heads, and 64 .* 3\. .*: 1, 2, 4, 8\."),
        (Layout(strategy=Strategy.TENSOR, ranks=16), r"attn\.wo_a has text_config\.o_groups = 8 groups"),
        (Layout(strategy=Strategy.EXPERT, ranks=5), r"n_routed_experts is 384, .*: 1, 2, 4, 8, 16, 32, 64, 128\."),
        (Layout(strategy=Strategy.EXPERT, ranks=24), r"dspark_n_routed_experts is 128"),
    ],
    ids=str,
)
def test_sizes_that_do_not_divide(layout, said):
    with pytest.raises(UsageError, match=said):
        make_plan(RELEASED, {}, layout)


@pytest.mark.parametrize(
    ("changed", "ranks", "said"),
    [
        ({"hidden_size": 5088}, 2, r"hidden_size = 5088, which is 159 blocks of 32, and 159 is not a multiple of 2"),
        ({"moe_intermediate_size": 2272}, 8, r"w1 and w3 .*moe_intermediate_size = 2272, which is 71 blocks of 32"),
        ({"o_lora_rank": 8}, 4, r"attn\.wo_a has o_groups × o_lora_rank = 64, which is 2 blocks of 32"),
        ({"vocab_size": 129281}, 2, r"head has .*vocab_size = 129281 rows"),
    ],
    ids=str,
)
def test_blocks_and_rows_that_do_not_divide(changed, ranks, said):
    content = released_config()
    content["text_config"] |= changed  # type: ignore[operator]
    config = DeepseekV41Config.from_json(content)
    with pytest.raises(UsageError, match=said):
        make_plan(config, {}, Layout(strategy=Strategy.TENSOR, ranks=ranks))
    make_plan(config, {}, Layout(strategy=Strategy.TENSOR, ranks=1))


def test_every_family_is_a_known_one():
    assert {family(name) for name in planned_tensors(RELEASED)} == set(FAMILIES)


@pytest.mark.parametrize("source", ["folder", "config.json"])
def test_a_configuration_is_enough(tmp_path, source):
    (tmp_path / "config.json").write_text(json.dumps(released_config()))
    found = plan_input(str(tmp_path if source == "folder" else tmp_path / source))
    assert found.source is None
    assert len(found.tensors) == 96_085


def test_half_a_terabyte_of_files_is_planned_in_seconds(tmp_path):
    write_hollow_checkpoint(tmp_path, released_config(), files=48)
    assert sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir()) < 100e6
    start = time.process_time()
    found = plan_input(str(tmp_path))
    assert found.source is not None
    assert sum(file.size - file.header for file in found.source.files) == 510_286_023_000
    plan = make_plan(found.config, found.tensors, TP8)
    assert plan.split + plan.replicated + plan.host == 510_286_023_000
    assert plan.devices[7].total == 40_457_824_328
    assert time.process_time() - start < 30


@pytest.mark.parametrize(
    "text",
    [
        "shard-weights: {layouts: [{tp: 8}], context: 4}",
        "shard-weights: {layouts: [{pp: 8}], context: 4, batch-size: 1}",
        "shard-weights: {layouts: [{tp: 0}], context: 4, batch-size: 1}",
        "shard-weights: {layouts: [{tp: 8, ep: 8}], context: 4, batch-size: 1}",
        "shard-weights: {layouts: [], context: 4, batch-size: 1, batch: 2}",
        "shard-weights: {layouts: [], context: 4, batch-size: 1}",
        "shard-weights: 3",
        "- 1",
        "{",
    ],
)
def test_a_preset_that_cannot_be_read(tmp_path, text):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"x\.yaml: the section shard-weights cannot be read"):
        read_sharding_preset(tmp_path / "x.yaml")


def test_a_preset_without_the_section(tmp_path):
    (tmp_path / "x.yaml").write_text("model: demo")
    assert read_sharding_preset(tmp_path / "x.yaml") is None
