"""Checkpoints of any size in the released layout that take no room: true headers over sparse files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from specdecode.core.checkpoint.inventory import TensorSpec, expected_tensors
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from tests.support.byte_tokenizer import write_tokenizer
from tests.support.released import released_config
from tests.support.tiny import write_index

ITEM_BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}


def write_hollow_checkpoint(folder: Path, content: Mapping[str, object], *, files: int) -> Path:
    """Write config.json, tokenizer, index and `files` shards that hold zeros only, all of them holes."""
    (folder / "config.json").write_text(json.dumps(content))
    write_tokenizer(folder)
    tensors = list(expected_tensors(DeepseekV41Config.from_json(content)).items())
    weight_map, total = {}, 0
    for number in range(files):
        first, last = (len(tensors) * end // files for end in (number, number + 1))
        name = f"model-{number + 1:05}-of-{files:05}.safetensors"
        part = dict(tensors[first:last])
        total += _write_hollow(folder / name, part)
        weight_map.update(dict.fromkeys(part, name))
    write_index(folder, weight_map, total)
    return folder


def _write_hollow(path: Path, tensors: Mapping[str, TensorSpec]) -> int:
    header, at = {}, 0
    for name, spec in tensors.items():
        end = at + ITEM_BYTES[spec.dtype] * math.prod(spec.shape)
        header[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    return at


def few_layers(**text: object) -> dict[str, object]:
    """The released configuration with five layers, two draft stages and small tables; `text` changes more."""
    config = released_config()
    few = {
        "vocab_size": 16384,
        "num_hidden_layers": 5,
        "compress_ratios": [0, 2, 2, 1, 1, 0, 0],
        "kv_source_layer_ids": [1, 3],
        "index_source_layer_ids": [1, 3, 4],
        "candidate_source_layer_id": 3,
        "n_routed_experts": 8,
        "engram_layer_ids": [1],
        "engram_num_embeddings": [500000],
        "num_nextn_predict_layers": 2,
        "dspark_noise_token_id": 263,
        "dspark_target_layer_ids": [2, 4],
        "dspark_n_routed_experts": 8,
    }
    config["text_config"].update(few | text)  # type: ignore[attr-defined]
    config["vision_config"]["num_hidden_layers"] = 0  # type: ignore[index]
    return config | {"image_token_id": 264}
