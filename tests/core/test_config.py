"""Configurations: the released one, layer patterns, and every kind of refusal."""

from __future__ import annotations

import copy
import json

import pytest

from specdecode.core.errors import ConfigError
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config, LayerKind
from tests.support.golden import golden_sets
from tests.support.released import released_config
from tests.support.tiny import CONFIG


def changed(**values) -> dict[str, object]:
    """The tiny configuration with fields changed; `__` separates levels, `...` removes."""
    config = copy.deepcopy(CONFIG)
    for dotted, value in values.items():
        *path, name = dotted.split("__")
        holder = config
        for part in path:
            holder = holder[part]
        if value is ...:
            del holder[name]
        else:
            holder[name] = value
    return config


def text(**values) -> dict[str, object]:
    return changed(**{f"text_config__{name}": value for name, value in values.items()})


def test_the_released_layers():
    t = DeepseekV41Config.from_json(released_config()).text_config
    kinds = [t.layer_kind(layer) for layer in range(40)]
    assert [i for i in range(40) if kinds[i] is LayerKind.WINDOW] == [0, 1]
    assert [i for i in range(40) if kinds[i] is LayerKind.FULL] == [2, 8, 14, 20]
    assert [i for i in range(40) if kinds[i] is LayerKind.REINDEX] == [24, 28, 32, 36]
    assert [t.kv_source(i) for i in (2, 7, 8, 13, 14, 19, 20, 39)] == [2, 2, 8, 8, 14, 14, 20, 20]
    assert [t.index_source(i) for i in (7, 19, 20, 23, 24, 27, 39)] == [2, 14, 20, 20, 24, 24, 36]
    assert [i for i in range(40) if t.owns_index_keys(i)] == [2, 8, 14, 20]
    assert [i for i in range(40) if t.is_candidate_source(i)] == [20]
    assert [i for i in range(40) if t.uses_candidates(i)] == [24, 28, 32, 36]
    assert t.num_stages == 3
    assert t.engram_ngrams == (2, 3, 4)
    assert t.engram_rows_per_token == 24


def test_a_reindexing_layer_without_keys_and_a_window_layer_between():
    pattern = text(
        compress_ratios=[0, 2, 2, 0, 2, 0, 0],
        kv_source_layer_ids=[1],
        index_source_layer_ids=[1, 2],
        candidate_source_layer_id=-1,
    )
    t = DeepseekV41Config.from_json(pattern).text_config
    assert [t.layer_kind(i).value for i in range(5)] == ["window", "full", "reindex", "window", "reuse"]
    assert not t.owns_index_keys(2)
    assert (t.kv_source(4), t.index_source(4)) == (1, 2)
    assert not any(t.uses_candidates(i) for i in range(5))
    with pytest.raises(ValueError, match="layer 3 attends to its window only"):
        t.kv_source(3)


def test_read_from_a_folder_or_file(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    from_folder = DeepseekV41Config.from_json(tmp_path)
    assert from_folder == DeepseekV41Config.from_json(tmp_path / "config.json") == DeepseekV41Config.from_json(CONFIG)
    assert from_folder.quantization_config.weight_block_size == (32, 32)
    assert isinstance(from_folder.text_config.rope_theta, float)


def test_vision_may_be_absent():
    assert DeepseekV41Config.from_json(changed(vision_config=...)).vision_config is None


@pytest.mark.parametrize("path", golden_sets(), ids=lambda path: path.name)
def test_reference_sets_are_accepted(path):
    assert DeepseekV41Config.from_json(path).model_type == "deepseek_v41"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (changed(model_type="deepseek_v4"), r"model_type is 'deepseek_v4'; supported: 'deepseek_v41'\."),
        (changed(architectures=["Other"]), r"architectures is \('Other',\)"),
        (changed(quantization_config__expert_dtype="fp8"), "quantization_config.expert_dtype is 'fp8'"),
        (changed(quantization_config__weight_block_size=[128, 128]), r"weight_block_size is \(128, 128\)"),
        (changed(quantization_config=...), "quantization_config is missing"),
        (changed(bos_token_id=300), "bos_token_id is 300; must be an id below vocab_size 266"),
        (text(hidden_act="gelu"), "text_config.hidden_act is 'gelu'; supported: 'silu'"),
        (text(scoring_func="softmax"), "text_config.scoring_func is 'softmax'"),
        (text(tie_word_embeddings=True), "text_config.tie_word_embeddings is True"),
        (text(num_key_value_heads=2), "text_config.num_key_value_heads is 2"),
        (text(hidden_size=...), "text_config.hidden_size is missing"),
        (text(hidden_size="32"), "text_config.hidden_size must be an integer, found '32'"),
        (text(hidden_size=True), "text_config.hidden_size must be an integer, found True"),
        (text(hidden_size=48), "text_config.hidden_size is 48; must be a multiple of 32"),
        (text(o_lora_rank=8), "text_config.o_lora_rank is 8; times o_groups it must be a multiple of 32"),
        (text(swiglu_limit=0.0), "text_config.swiglu_limit is 0.0; must be positive"),
        (text(rms_norm_eps=float("inf")), "text_config.rms_norm_eps is inf; must be positive"),
        (text(num_hidden_layers=0), "text_config.num_hidden_layers is 0; must be positive"),
        (text(compress_ratios=[0, 2.5]), r"text_config.compress_ratios\[1\] must be an integer, found 2.5"),
        (text(compress_ratios=3), "text_config.compress_ratios must be a list, found 3"),
        (
            text(compress_ratios=[0, 2, 2, 1, 1]),
            "compress_ratios is '5 entries'; must have one entry for each of 5",
        ),
        (
            text(compress_ratios=[0, 4, 2, 1, 1, 0, 0]),
            r"compress_ratios\[1\] is 4; supported here: \(0, 1, 2\)",
        ),
        (text(compress_ratios=[0, 2, 2, 1, 1, 0, 1]), r"compress_ratios\[6\] is 1; supported here: \(0,\)"),
        (
            text(compress_ratios=[0, 2, 1, 1, 1, 0, 0]),
            r"compress_ratios\[2\] is 1; the KV source before layer 2",
        ),
        (
            text(compress_ratios=[2, 2, 2, 1, 1, 0, 0]),
            r"compress_ratios\[0\] is 2; the KV source before layer 0",
        ),
        (text(kv_source_layer_ids=[3, 1]), r"kv_source_layer_ids is \[3, 1\]; must be ascending"),
        (text(index_source_layer_ids=[3, 4]), r"must contain every KV source, and \[1\] are not in it"),
        (
            text(index_source_layer_ids=[0, 1, 3]),
            "layer 0 has compression ratio 0 and nothing to select from",
        ),
        (
            text(candidate_source_layer_id=2),
            "candidate_source_layer_id is 2; must be one of kv_source_layer_ids",
        ),
        (text(candidate_source_layer_id=1), "its blocks mean nothing to index source 3"),
        (
            text(engram_num_embeddings=[1, 2]),
            r"engram_num_embeddings is \[1, 2\]; must give a positive row count",
        ),
        (text(engram_max_ngram_size=1), "engram_max_ngram_size is 1; must be at least 2"),
        (text(o_groups=3), "text_config.o_groups is 3; must divide the 2 heads"),
        (text(num_experts_per_tok=3), "num_experts_per_tok is 3; n_routed_experts is only 2"),
        (text(dspark_target_layer_ids=[]), r"dspark_target_layer_ids is \[\]; needs at least one layer"),
        (text(rope_scaling={"rope_type": "yarn"}), "text_config.rope_scaling.factor is missing"),
        (text(num_hash_layers=3), "text_config.num_hash_layers = 3 is not supported"),
        (text(index_topkk=3), r"Did you mean text_config\.index_topk\?"),
        (changed(tie_word_embeddings=True), "tie_word_embeddings = True is not supported"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(config, message):
    with pytest.raises(ConfigError, match=message) as caught:
        DeepseekV41Config.from_json(config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"), [("{", "cannot be read as JSON"), ("[1]", "holds a JSON list, not an object")]
)
def test_a_damaged_file(tmp_path, content, message):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        DeepseekV41Config.from_json(tmp_path)
