"""The model's dimensions, read from a released-form config.json, and the demo's own config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from engram_hash import table_primes


@dataclass(frozen=True)
class Config:
    """Fields of `text_config` that shape the computation; names as released."""

    vocab_size: int
    hidden_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    swiglu_limit: float
    rms_norm_eps: float
    max_position_embeddings: int
    rope_theta: float
    rope_scaling: dict[str, Any]
    n_routed_experts: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    sliding_window: int
    compress_ratios: list[int]
    compress_rope_theta: float
    kv_source_layer_ids: list[int]
    index_source_layer_ids: list[int]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    engram_layer_ids: list[int]
    engram_num_embeddings: list[int]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int
    num_nextn_predict_layers: int
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_target_layer_ids: list[int]
    dspark_markov_rank: int
    dspark_n_routed_experts: int
    dspark_num_experts_per_tok: int

    @classmethod
    def load(cls, folder: Path) -> Config:
        """Read `folder/config.json`."""
        text = json.loads((folder / "config.json").read_text())["text_config"]
        return cls(**{field.name: text[field.name] for field in fields(cls)})

    def kv_source(self, layer: int) -> int | None:
        """Return the layer whose compressed rows `layer` reads, None when it reads a window only."""
        if self.compress_ratios[layer] == 0:
            return None
        return max(source for source in self.kv_source_layer_ids if source <= layer)


def demo_config(compressed_vocab_size: int, vocab_size: int = 2048) -> dict[str, Any]:
    """Return the demo checkpoint's config.json; the two last ids are the image and the noise token."""
    engram_layers, max_ngram, engram_heads, engram_vocab = [1, 6], 4, 4, 1500
    primes = table_primes(len(engram_layers), max_ngram, engram_heads, engram_vocab)
    text = {
        "model_type": "deepseek_v41_text",
        "vocab_size": vocab_size,
        "hidden_size": 192,
        "moe_intermediate_size": 128,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "qk_rope_head_dim": 16,
        "q_lora_rank": 128,
        "o_lora_rank": 64,
        "o_groups": 2,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "rms_norm_eps": 1e-20,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "tie_word_embeddings": False,
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 512,
        },
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "sliding_window": 64,
        "compress_ratios": [0, 0, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 0, 0, 0],
        "compress_rope_theta": 40000.0,
        "kv_source_layer_ids": [2, 5, 7],
        "index_source_layer_ids": [2, 5, 7, 9, 11],
        "index_n_heads": 4,
        "index_head_dim": 32,
        "index_topk": 32,
        "candidate_source_layer_id": 7,
        "candidate_topk_blocks": 8,
        "candidate_block_size": 8,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-06,
        "engram_layer_ids": engram_layers,
        "engram_num_embeddings": [sum(sum(row) for row in layer) for layer in primes],
        "engram_max_ngram_size": max_ngram,
        "engram_vocab_size": engram_vocab,
        "engram_n_heads": engram_heads,
        "engram_head_dim": 32,
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": compressed_vocab_size,
        "num_nextn_predict_layers": 3,
        "dspark_block_size": 5,
        "dspark_noise_token_id": vocab_size - 1,
        "dspark_target_layer_ids": [9, 10, 11],
        "dspark_markov_rank": 64,
        "dspark_n_routed_experts": 8,
        "dspark_num_experts_per_tok": 2,
    }
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "image_token_id": vocab_size - 2,
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [32, 32],
            "scale_fmt": "ue8m0",
            "expert_dtype": "fp4",
        },
        "text_config": text,
        "vision_config": {
            "model_type": "deepseek_v41_vision",
            "num_hidden_layers": 0,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "patch_size": 14,
            "rope_theta": 10000,
            "downsample_ratio": 3,
            "max_image_tokens": 16,
            "min_pixels": 295936,
            "max_wh_ratio": None,
        },
    }
