"""What a configuration must satisfy before anything is built from it.

The released value is the only supported one for the fields in `_FIXED`; everything else is free as long
as the parts fit together. Every refusal names the field, its value and what would be accepted.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from specdecode.core.errors import ConfigError

if TYPE_CHECKING:
    from specdecode.core.models.deepseek_v41.config import DeepseekV41Config, TextConfig

_FIXED: dict[str, object] = {
    "architectures": ("DeepseekV41ForCausalLM",),
    "model_type": "deepseek_v41",
    "dtype": "bfloat16",
    "quantization_config.quant_method": "fp8",
    "quantization_config.activation_scheme": "dynamic",
    "quantization_config.weight_block_size": (32, 32),
    "quantization_config.scale_fmt": "ue8m0",
    "quantization_config.expert_dtype": "fp4",
    "text_config.model_type": "deepseek_v41_text",
    "text_config.num_key_value_heads": 1,
    "text_config.hidden_act": "silu",
    "text_config.attention_bias": False,
    "text_config.tie_word_embeddings": False,
    "text_config.rope_scaling.rope_type": "yarn",
    "text_config.n_shared_experts": 1,
    "text_config.scoring_func": "sqrtsoftplus",
    "text_config.topk_method": "noaux_tc",
    "text_config.norm_topk_prob": True,
}
# fmt: off
_POSITIVE = (
    "vocab_size", "hidden_size", "moe_intermediate_size", "num_hidden_layers", "num_attention_heads",
    "head_dim", "qk_rope_head_dim", "q_lora_rank", "o_lora_rank", "o_groups", "swiglu_limit",
    "rms_norm_eps", "max_position_embeddings", "rope_theta", "n_routed_experts", "num_experts_per_tok",
    "routed_scaling_factor", "sliding_window", "compress_rope_theta", "index_n_heads", "index_head_dim",
    "index_topk", "hc_mult", "hc_sinkhorn_iters", "hc_eps", "num_nextn_predict_layers",
    "dspark_block_size", "dspark_markov_rank", "dspark_n_routed_experts", "dspark_num_experts_per_tok",
    "rope_scaling.factor", "rope_scaling.beta_fast", "rope_scaling.beta_slow",
    "rope_scaling.original_max_position_embeddings",
)
# fmt: on
_QUANT_GROUP = 32


def check_config(config: DeepseekV41Config, origin: str) -> None:
    """Refuse what is not supported or does not fit together, with one message.

    Raises:
        ConfigError: naming the field, its value and what would be accepted.
    """
    try:
        for key, supported in _FIXED.items():
            _require(_value(config, key) == supported, key, _value(config, key), f"supported: {supported!r}")
        for name in _POSITIVE:
            value = _value(config.text_config, name)
            good = isinstance(value, (int, float)) and 0 < value < math.inf
            _require(good, f"text_config.{name}", value, "must be positive")
        _check_shapes(config.text_config)
        _check_token_ids(config)
        _check_layers(config.text_config)
        _check_engram(config.text_config)
        _check_drafter(config.text_config)
    except _Refusal as refusal:
        raise ConfigError(f"{origin}: {refusal}") from None


class _Refusal(Exception):
    """A message without its origin."""


def _value(holder: object, dotted: str) -> object:
    for name in dotted.split("."):
        holder = getattr(holder, name)
    return holder


def _require(condition: bool, key: str, value: object, why: str) -> None:
    if not condition:
        raise _Refusal(f"{key} is {value!r}; {why}.")


def _check_shapes(text: TextConfig) -> None:
    for name in ("hidden_size", "moe_intermediate_size", "head_dim", "index_head_dim", "q_lora_rank"):
        value = getattr(text, name)
        _require(
            value % _QUANT_GROUP == 0,
            f"text_config.{name}",
            value,
            "must be a multiple of 32, the quantisation group",
        )
    _require(
        text.o_groups * text.o_lora_rank % _QUANT_GROUP == 0,
        "text_config.o_lora_rank",
        text.o_lora_rank,
        "times o_groups it must be a multiple of 32, the quantisation group",
    )
    rope, limit = text.qk_rope_head_dim, min(text.head_dim, text.index_head_dim)
    _require(
        rope % 2 == 0 and rope <= limit,
        "text_config.qk_rope_head_dim",
        rope,
        f"must be even and at most {limit}",
    )
    heads = text.num_attention_heads
    _require(heads % text.o_groups == 0, "text_config.o_groups", text.o_groups, f"must divide the {heads} heads")
    for experts, chosen in (
        ("n_routed_experts", "num_experts_per_tok"),
        ("dspark_n_routed_experts", "dspark_num_experts_per_tok"),
    ):
        most = getattr(text, experts)
        _require(
            getattr(text, chosen) <= most,
            f"text_config.{chosen}",
            getattr(text, chosen),
            f"{experts} is only {most}",
        )


def _check_token_ids(config: DeepseekV41Config) -> None:
    size = config.text_config.vocab_size
    for key in (
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "image_token_id",
        "text_config.engram_pad_token_id",
        "text_config.dspark_noise_token_id",
    ):
        value = _value(config, key)
        _require(isinstance(value, int) and 0 <= value < size, key, value, f"must be an id below vocab_size {size}")


def _check_layers(text: TextConfig) -> None:
    layers, ratios = text.num_hidden_layers, text.compress_ratios
    total = layers + text.num_stages
    _require(
        len(ratios) == total,
        "text_config.compress_ratios",
        f"{len(ratios)} entries",
        f"must have one entry for each of {layers} layers and {text.num_stages} draft stages",
    )
    for layer, ratio in enumerate(ratios):
        allowed = (0, 1, 2) if layer < layers else (0,)
        _require(ratio in allowed, f"text_config.compress_ratios[{layer}]", ratio, f"supported here: {allowed}")
    for name in (
        "kv_source_layer_ids",
        "index_source_layer_ids",
        "engram_layer_ids",
        "dspark_target_layer_ids",
    ):
        _check_layer_list(f"text_config.{name}", getattr(text, name), layers)
    _check_sources(text)
    _check_candidates(text)


def _check_layer_list(key: str, ids: tuple[int, ...], layers: int) -> None:
    ascending = all(a < b for a, b in itertools.pairwise(ids))
    in_range = all(0 <= i < layers for i in ids)
    _require(ascending and in_range, key, list(ids), f"must be ascending layer numbers below {layers}")


def _check_sources(text: TextConfig) -> None:
    kv, index = text.kv_source_layer_ids, text.index_source_layer_ids
    missing = [layer for layer in kv if layer not in index]
    _require(
        not missing,
        "text_config.index_source_layer_ids",
        list(index),
        f"must contain every KV source, and {missing} are not in it",
    )
    for layer in index:
        _require(
            text.compress_ratio(layer) > 0,
            "text_config.index_source_layer_ids",
            list(index),
            f"layer {layer} has compression ratio 0 and nothing to select from",
        )
    for layer in range(text.num_hidden_layers):
        ratio = text.compress_ratio(layer)
        if ratio == 0:
            continue
        source = max((s for s in kv if s <= layer), default=None)
        _require(
            source is not None and text.compress_ratio(source) == ratio,
            f"text_config.compress_ratios[{layer}]",
            ratio,
            f"the KV source before layer {layer} must have the same ratio (kv_source_layer_ids: {list(kv)})",
        )


def _check_candidates(text: TextConfig) -> None:
    source = text.candidate_source_layer_id
    key = "text_config.candidate_source_layer_id"
    if source == -1:
        return
    _require(source in text.kv_source_layer_ids, key, source, "must be one of kv_source_layer_ids, or -1 for none")
    for name in ("candidate_topk_blocks", "candidate_block_size"):
        _require(getattr(text, name) > 0, f"text_config.{name}", getattr(text, name), "must be positive")
    for layer in filter(text.uses_candidates, range(text.num_hidden_layers)):
        _require(
            text.compress_ratio(layer) == text.compress_ratio(source),
            key,
            source,
            f"its blocks mean nothing to index source {layer}, which has another compression ratio",
        )


def _check_engram(text: TextConfig) -> None:
    rows, layers = text.engram_num_embeddings, text.engram_layer_ids
    _require(
        len(rows) == len(layers) and all(r > 0 for r in rows),
        "text_config.engram_num_embeddings",
        list(rows),
        f"must give a positive row count for each Engram layer {list(layers)}",
    )
    if not layers:
        return
    for name, least in (
        ("engram_max_ngram_size", 2),
        ("engram_vocab_size", 2),
        ("engram_n_heads", 1),
        ("engram_head_dim", 1),
        ("engram_compressed_vocab_size", 1),
    ):
        value = getattr(text, name)
        _require(value >= least, f"text_config.{name}", value, f"must be at least {least}")
    _require(
        text.engram_head_dim % _QUANT_GROUP == 0,
        "text_config.engram_head_dim",
        text.engram_head_dim,
        "must be a multiple of 32, the quantisation group",
    )


def _check_drafter(text: TextConfig) -> None:
    _require(
        bool(text.dspark_target_layer_ids),
        "text_config.dspark_target_layer_ids",
        [],
        "needs at least one layer",
    )
