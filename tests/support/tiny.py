"""Tiny checkpoints in the released layout, written from a configuration with fixed random weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from specdecode.core.checkpoint.inventory import TensorSpec, expected_tensors
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from tests.support.byte_tokenizer import IMAGE, write_tokenizer

CONFIG: dict[str, object] = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "image_token_id": IMAGE,
    "transformers_version": "5.0.0",
    "quantization_config": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [32, 32],
        "scale_fmt": "ue8m0",
        "expert_dtype": "fp4",
    },
    "text_config": {
        "model_type": "deepseek_v41_text",
        "vocab_size": 266,
        "hidden_size": 32,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 5,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "qk_rope_head_dim": 16,
        "q_lora_rank": 32,
        "o_lora_rank": 32,
        "o_groups": 2,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "rms_norm_eps": 1e-20,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_cache": True,
        "tie_word_embeddings": False,
        "max_position_embeddings": 128,
        "rope_theta": 10000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 32,
        },
        "n_routed_experts": 2,
        "n_shared_experts": 1,
        "num_experts_per_tok": 1,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "sliding_window": 8,
        "compress_ratios": [0, 2, 2, 1, 1, 0, 0],
        "compress_rope_theta": 4000,
        "kv_source_layer_ids": [1, 3],
        "index_source_layer_ids": [1, 3, 4],
        "index_n_heads": 2,
        "index_head_dim": 32,
        "index_topk": 4,
        "candidate_source_layer_id": 3,
        "candidate_topk_blocks": 2,
        "candidate_block_size": 2,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "engram_layer_ids": [1],
        "engram_num_embeddings": [220],
        "engram_max_ngram_size": 3,
        "engram_vocab_size": 47,
        "engram_n_heads": 2,
        "engram_head_dim": 32,
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": 235,
        "num_nextn_predict_layers": 2,
        "dspark_block_size": 3,
        "dspark_noise_token_id": 263,
        "dspark_target_layer_ids": [2, 4],
        "dspark_markov_rank": 32,
        "dspark_n_routed_experts": 2,
        "dspark_num_experts_per_tok": 1,
    },
    "vision_config": {
        "model_type": "deepseek_v41_vision",
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "num_attention_heads": 1,
        "intermediate_size": 16,
        "patch_size": 2,
        "rope_theta": 10000,
        "downsample_ratio": 3,
        "max_image_tokens": 16,
        "min_pixels": 64,
        "max_wh_ratio": None,
    },
}
INDEX = "model.safetensors.index.json"


def write_checkpoint(
    folder: Path,
    *,
    shards: int = 2,
    vision: bool = False,
    seed: int = 0,
    content: dict[str, object] = CONFIG,
) -> Path:
    """Write a configuration with random weights, a tokenizer, shards and their index into an empty folder."""
    (folder / "config.json").write_text(json.dumps(content))
    write_tokenizer(folder)
    config = DeepseekV41Config.from_json(content)
    tensors = {n: s for n, s in expected_tensors(config).items() if vision or not is_vision_name(n)}
    rng = np.random.default_rng(seed)
    names = list(tensors)
    weight_map, total = {}, 0
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: (tensors[name], values(tensors[name], rng)) for name in names[shard::shards]}
        write_shard(folder / file, part)
        weight_map.update(dict.fromkeys(part, file))
        total += sum(len(data) for _, data in part.values())
    write_index(folder, weight_map, total)
    return folder


def is_vision_name(name: str) -> bool:
    """Spelt out again on purpose, so that the tests do not lean on what they test."""
    return name.split(".")[0] in {"vision", "aligner", "image_start", "image_end", "image_newline"}


def values(spec: TensorSpec, rng: np.random.Generator) -> bytes:
    """Finite random bytes of a tensor."""
    count = int(np.prod(spec.shape))
    if spec.dtype == "BF16":
        return (rng.normal(size=count).astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    if spec.dtype == "F32":
        return rng.normal(size=count).astype("<f4").tobytes()
    low, high = (120, 130) if spec.dtype == "F8_E8M0" else (0, 120)
    return rng.integers(low, high, count, dtype=np.uint8).tobytes()


def write_shard(path: Path, tensors: dict[str, tuple[TensorSpec, bytes]]) -> None:
    """Write a safetensors file by the book."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (spec, data) in tensors.items():
        header[name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + len(data)],
        }
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(data for _, data in tensors.values())


def write_index(folder: Path, weight_map: dict[str, str], total: int) -> None:
    """Write the index of a set of shards."""
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
