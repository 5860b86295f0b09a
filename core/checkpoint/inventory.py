"""Which tensors a configuration asks for, and the comparison with what a checkpoint has.

Names, types and shapes are those of the released checkpoint; for its configuration this gives exactly
the 96,085 tensors and 510,286,023,000 bytes of the released index.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from specdecode.core.checkpoint.shard import TensorInfo
from specdecode.core.errors import CheckpointError
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config, LayerKind, TextConfig, VisionConfig
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig

_GROUP = 32


@dataclass(frozen=True)
class TensorSpec:
    """On-disk type and shape of one tensor."""

    dtype: str
    shape: tuple[int, ...]


Specs = Iterator[tuple[str, TensorSpec]]


def is_vision(name: str) -> bool:
    """Whether a tensor belongs to the vision tower, its aligner or the image markers."""
    return name.startswith(("vision.", "aligner.", "image_"))


def expected_tensors(config: DeepseekV41Config) -> dict[str, TensorSpec]:
    """Every tensor of a checkpoint with this configuration, vision tower included."""
    text = config.text_config
    tensors = dict(_ends(text))
    for layer in range(text.num_hidden_layers):
        tensors.update(_backbone_layer(text, layer))
    for stage in range(text.num_stages):
        tensors.update(_draft_stage(text, stage))
    if config.vision_config is not None and config.vision_config.num_hidden_layers:
        tensors.update(_vision(config.vision_config, text.hidden_size))
    return tensors


def check_tensors(config: DeepseekV41Config, found: Mapping[str, TensorInfo], folder: Path) -> None:
    """Compare a checkpoint's tensors with its configuration. Vision tensors may be absent.

    Raises:
        CheckpointError: naming the first missing or unexpected tensor, or the first wrong type or shape.
    """
    expected = {name: spec for name, spec in expected_tensors(config).items() if not is_vision(name)}
    compare_tensors(expected, found, folder)


def compare_tensors(expected: Mapping[str, TensorSpec], found: Mapping[str, TensorInfo], folder: Path) -> None:
    """Compare tensors with what a configuration asks for; vision tensors are allowed.

    Raises:
        CheckpointError: as `check_tensors`.
    """
    missing = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected and not is_vision(name)]
    if missing:
        near = f" The nearest name in the files is {_nearest(missing[0], extra or found)}."
        raise CheckpointError(f"{folder} lacks tensor {missing[0]}{_more(missing)}.{near}")
    if extra:
        near = f" The nearest name that config.json asks for is {_nearest(extra[0], expected)}."
        raise CheckpointError(f"{folder} holds the unexpected tensor {extra[0]}{_more(extra)}.{near}")
    for name, spec in expected.items():
        info = found[name]
        if (info.dtype, info.shape) != (spec.dtype, spec.shape):
            raise CheckpointError(
                f"{info.file}: {name} is {info.dtype} {list(info.shape)}, but config.json asks for "
                f"{spec.dtype} {list(spec.shape)}."
            )


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _nearest(name: str, candidates: Mapping[str, object] | list[str]) -> str:
    """The most similar name; the search is narrowed to equal layer and expert numbers where there are any."""
    numbers = re.findall(r"\d+", name)
    alike = [other for other in candidates if re.findall(r"\d+", other) == numbers] or list(candidates)[:2000]
    return max(alike, key=lambda other: difflib.SequenceMatcher(None, name, other).ratio(), default="none")


def _ceil(size: int) -> int:
    return -(-size // _GROUP)


def _bf16(name: str, *shape: int) -> Specs:
    yield name, TensorSpec("BF16", shape)


def _f32(name: str, *shape: int) -> Specs:
    yield name, TensorSpec("F32", shape)


def _fp8(name: str, rows: int, columns: int) -> Specs:
    yield f"{name}.weight", TensorSpec("F8_E4M3", (rows, columns))
    yield f"{name}.scale", TensorSpec("F8_E8M0", (_ceil(rows), _ceil(columns)))


def _fp4(name: str, rows: int, columns: int) -> Specs:
    yield f"{name}.weight", TensorSpec("I8", (rows, columns // 2))
    yield f"{name}.scale", TensorSpec("F8_E8M0", (rows, columns // _GROUP))


def _ends(t: TextConfig) -> Specs:
    yield from _bf16("embed.weight", t.vocab_size, t.hidden_size)
    yield from _bf16("norm.weight", t.hidden_size)
    yield from _bf16("head.weight", t.vocab_size, t.hidden_size)


def _backbone_layer(t: TextConfig, layer: int) -> Specs:
    name = f"layers.{layer}"
    yield from _block(t, name, t.n_routed_experts)
    kind = t.layer_kind(layer)
    if kind is LayerKind.FULL:
        yield from _bf16(f"{name}.attn.compressor.wkv.weight", t.head_dim, t.hidden_size)
        yield from _bf16(f"{name}.attn.compressor.norm.weight", t.head_dim)
        if t.compress_ratio(layer) > 1:  # one token to a group needs no gate
            yield from _bf16(f"{name}.attn.compressor.wgate.weight", t.head_dim, t.hidden_size)
    if kind in (LayerKind.FULL, LayerKind.REINDEX):
        yield from _fp8(f"{name}.attn.indexer.wq_b", t.index_n_heads * t.index_head_dim, t.q_lora_rank)
        yield from _bf16(f"{name}.attn.indexer.weights_proj.weight", t.index_n_heads, t.hidden_size)
    if t.owns_index_keys(layer):
        yield from _bf16(f"{name}.attn.indexer.wk.weight", t.index_head_dim, t.head_dim)
        yield from _bf16(f"{name}.attn.indexer.k_norm.weight", t.index_head_dim)
    if layer in t.engram_layer_ids:
        yield from _engram(t, f"{name}.engram", t.engram_num_embeddings[t.engram_layer_ids.index(layer)])


def _block(t: TextConfig, name: str, experts: int) -> Specs:
    """What a backbone layer and a draft stage have in common: 30 tensors and 6 per routed expert."""
    streams = t.hc_mult
    mixes = (2 + streams) * streams  # pre, post and the comb matrix
    for part in ("attn", "ffn"):
        yield from _f32(f"{name}.hc_{part}_fn", mixes, streams * t.hidden_size)
        yield from _f32(f"{name}.hc_{part}_base", mixes)
        yield from _f32(f"{name}.hc_{part}_scale", 3)
        yield from _bf16(f"{name}.{part}_norm.weight", t.hidden_size)
    heads = t.num_attention_heads * t.head_dim
    yield from _fp8(f"{name}.attn.wq_a", t.q_lora_rank, t.hidden_size)
    yield from _bf16(f"{name}.attn.q_norm.weight", t.q_lora_rank)
    yield from _fp8(f"{name}.attn.wq_b", heads, t.q_lora_rank)
    yield from _fp8(f"{name}.attn.wkv", t.head_dim, t.hidden_size)
    yield from _bf16(f"{name}.attn.kv_norm.weight", t.head_dim)
    yield from _f32(f"{name}.attn.attn_sink", t.num_attention_heads)
    yield from _fp8(f"{name}.attn.wo_a", t.o_groups * t.o_lora_rank, heads // t.o_groups)
    yield from _fp8(f"{name}.attn.wo_b", t.hidden_size, t.o_groups * t.o_lora_rank)
    yield from _bf16(f"{name}.ffn.gate.weight", experts, t.hidden_size)
    yield from _f32(f"{name}.ffn.gate.bias", experts)
    yield from _f32(f"{name}.ffn.gate.bias_vl", experts)
    yield from _swiglu(t, f"{name}.ffn.shared_experts", _fp8)
    for expert in range(experts):
        yield from _swiglu(t, f"{name}.ffn.experts.{expert}", _fp4)


def _swiglu(t: TextConfig, name: str, store: Callable[[str, int, int], Specs]) -> Specs:
    yield from store(f"{name}.w1", t.moe_intermediate_size, t.hidden_size)
    yield from store(f"{name}.w2", t.hidden_size, t.moe_intermediate_size)
    yield from store(f"{name}.w3", t.moe_intermediate_size, t.hidden_size)


def _engram(t: TextConfig, name: str, rows: int) -> Specs:
    yield f"{name}.embed.weight", TensorSpec("F8_E4M3", (rows, t.engram_head_dim))
    yield f"{name}.embed.scale", TensorSpec("F8_E8M0", (rows, t.engram_head_dim // _GROUP))
    width = t.engram_rows_per_token * t.engram_head_dim
    yield from _fp8(f"{name}.wkv", (t.hc_mult + 1) * t.hidden_size, width)  # one key per stream, one value
    yield from _bf16(f"{name}.q_weight", t.hc_mult, t.hidden_size)
    yield from _bf16(f"{name}.k_weight", t.hc_mult, t.hidden_size)


def _draft_stage(t: TextConfig, stage: int) -> Specs:
    name = f"mtp.{stage}"
    yield from _block(t, name, t.dspark_n_routed_experts)
    if stage == 0:
        yield from _fp8(f"{name}.main_proj", t.hidden_size, len(t.dspark_target_layer_ids) * t.hidden_size)
        yield from _bf16(f"{name}.main_norm.weight", t.hidden_size)
    if stage == t.num_stages - 1:
        yield from _bf16(f"{name}.norm.weight", t.hidden_size)
        yield from _bf16(f"{name}.markov_head.embed.weight", t.vocab_size, t.dspark_markov_rank)
        yield from _bf16(f"{name}.markov_head.head.weight", t.vocab_size, t.dspark_markov_rank)
        yield from _bf16(f"{name}.confidence_head.proj.weight", 1, t.hidden_size + t.dspark_markov_rank)


def eagle_tensors(t: TextConfig, drafter: EagleConfig) -> dict[str, TensorSpec]:
    """Every tensor of an EAGLE drafter for a target; embedding and head are the target's."""
    return dict(_eagle(t, drafter, t.hidden_size))


def _eagle(t: TextConfig, drafter: EagleConfig, d: int) -> Specs:
    for name, columns in (("fc", len(drafter.target_layer_ids) * d), ("back", d), ("proj", 2 * d)):
        yield from _fp8(f"eagle.{name}", d, columns)
        yield from _bf16(f"eagle.{name}_norm.weight", d)
    yield from _block(t, "eagle.layer", drafter.n_routed_experts)
    yield from _bf16("eagle.norm.weight", d)
    for part in ("embed", "head"):
        yield from _bf16(f"eagle.markov_head.{part}.weight", t.vocab_size, drafter.markov_rank)
    yield from _bf16("eagle.confidence_head.proj.weight", 1, d + drafter.markov_rank)


def _vision(v: VisionConfig, text_width: int) -> Specs:
    width, inner = v.hidden_size, v.intermediate_size
    yield from _linear("vision.patch_embed.proj", width, 3 * v.patch_size**2)
    yield from _bf16("vision.norm.weight", width)
    for block in range(v.num_hidden_layers):
        name = f"vision.blocks.{block}"
        yield from _bf16(f"{name}.norm1.weight", width)
        yield from _linear(f"{name}.attn.wqkv", 3 * width, width)
        yield from _linear(f"{name}.attn.wo", width, width)
        yield from _bf16(f"{name}.norm2.weight", width)
        yield from _bf16(f"{name}.mlp.w1.weight", 2 * inner, width)
        yield from _bf16(f"{name}.mlp.w2.weight", width, inner)
    yield from _linear("aligner.w1", text_width, v.downsample_ratio**2 * width)
    yield from _linear("aligner.w2", text_width, text_width)
    for marker in ("image_start", "image_end", "image_newline"):
        yield from _bf16(marker, text_width)


def _linear(name: str, rows: int, columns: int) -> Specs:
    yield from _bf16(f"{name}.weight", rows, columns)
    yield from _bf16(f"{name}.bias", rows)
