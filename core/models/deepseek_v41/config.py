"""The configuration of a DeepSeek-V4.1 checkpoint, typed and checked.

Field names are those of the released `config.json`, nested as there:

    config = DeepseekV41Config.from_json(Path("checkpoint"))
    config.text_config.hidden_size
    config.text_config.layer_kind(3)          # LayerKind.REUSE

Everything that later code may rely on is checked here once, so that a layer never has to ask again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from specdecode.core.models.deepseek_v41.config_checks import check_config
from specdecode.core.models.deepseek_v41.config_reader import read_config_json, read_fields


class LayerKind(Enum):
    """How a decoder layer attends beyond its own window."""

    WINDOW = "window"
    """Only the sliding window."""
    FULL = "full"
    """Compresses its own KV and index keys and selects from them."""
    REINDEX = "reindex"
    """Reads an earlier layer's compressed KV and index keys with a selection of its own."""
    REUSE = "reuse"
    """Reads an earlier layer's compressed KV through the selection published last."""


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """YaRN parameters; they hold for every layer with a compression ratio above 0."""

    rope_type: str
    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int


@dataclass(frozen=True, kw_only=True)
class QuantizationConfig:
    """How weights are stored: FP8 in 32×32 blocks, routed experts in FP4."""

    quant_method: str
    activation_scheme: str
    weight_block_size: tuple[int, ...]
    scale_fmt: str
    expert_dtype: str


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """The vision tower. Read for the tensor inventory only: images are not supported."""

    model_type: str
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    patch_size: int
    rope_theta: float
    downsample_ratio: int
    max_image_tokens: int
    min_pixels: int
    max_wh_ratio: float | None = None


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """The text model with its Engram memories and DSpark drafter.

    Layer numbers run over the backbone, 0 … num_hidden_layers-1; the draft stages follow as layers
    num_hidden_layers … num_hidden_layers+num_stages-1 in `compress_ratios` and in the caches.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    hidden_act: str
    swiglu_limit: float
    rms_norm_eps: float
    attention_bias: bool
    tie_word_embeddings: bool
    max_position_embeddings: int
    rope_theta: float
    rope_scaling: RopeScaling
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    scoring_func: str
    topk_method: str
    norm_topk_prob: bool
    routed_scaling_factor: float
    sliding_window: int
    compress_ratios: tuple[int, ...]
    compress_rope_theta: float
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    engram_layer_ids: tuple[int, ...]
    engram_num_embeddings: tuple[int, ...]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int
    num_nextn_predict_layers: int
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_target_layer_ids: tuple[int, ...]
    dspark_markov_rank: int
    dspark_n_routed_experts: int
    dspark_num_experts_per_tok: int

    def compress_ratio(self, layer: int) -> int:
        """Tokens per compressed KV row of a layer; 0 = window only. Draft stages are layers past the last."""
        return self.compress_ratios[layer]

    def layer_kind(self, layer: int) -> LayerKind:
        """How backbone layer `layer` attends."""
        if self.compress_ratio(layer) == 0:
            return LayerKind.WINDOW
        if layer in self.kv_source_layer_ids:
            return LayerKind.FULL
        return LayerKind.REINDEX if layer in self.index_source_layer_ids else LayerKind.REUSE

    def kv_source(self, layer: int) -> int:
        """The layer whose compressed KV and index keys `layer` reads; `layer` itself for a source."""
        return self._last_source(self.kv_source_layer_ids, layer)

    def index_source(self, layer: int) -> int:
        """The layer whose published selection `layer` uses; always of the same KV source."""
        return self._last_source(self.index_source_layer_ids, layer)

    def owns_index_keys(self, layer: int) -> bool:
        """Whether `layer` computes index keys: exactly the KV sources do, other index sources read theirs."""
        return layer in self.kv_source_layer_ids

    def is_candidate_source(self, layer: int) -> bool:
        """Whether `layer` publishes the candidate blocks of the two-level selection."""
        return layer == self.candidate_source_layer_id

    def uses_candidates(self, layer: int) -> bool:
        """Whether `layer` selects among the published candidate blocks only."""
        return layer in self.index_source_layer_ids and 0 <= self.candidate_source_layer_id < layer

    @property
    def num_stages(self) -> int:
        """Number of DSpark draft stages (`num_nextn_predict_layers`)."""
        return self.num_nextn_predict_layers

    @property
    def engram_ngrams(self) -> tuple[int, ...]:
        """The n-gram lengths that Engram hashes: 2 … `engram_max_ngram_size`."""
        return tuple(range(2, self.engram_max_ngram_size + 1))

    @property
    def engram_rows_per_token(self) -> int:
        """Table rows that one token looks up in one Engram layer."""
        return len(self.engram_ngrams) * self.engram_n_heads

    def _last_source(self, sources: tuple[int, ...], layer: int) -> int:
        if self.compress_ratio(layer) == 0:
            raise ValueError(f"layer {layer} attends to its window only and has no source layer")
        return max(source for source in sources if source <= layer)


@dataclass(frozen=True, kw_only=True)
class DeepseekV41Config:
    """A whole `config.json` of the family."""

    architectures: tuple[str, ...]
    model_type: str
    dtype: str
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    image_token_id: int
    quantization_config: QuantizationConfig
    text_config: TextConfig
    vision_config: VisionConfig | None = None

    @classmethod
    def from_json(cls, source: Path | str | Mapping[str, object]) -> DeepseekV41Config:
        """Read and check a configuration.

        Args:
            source: a `config.json`, the folder that holds one, or its content as a mapping.

        Raises:
            ConfigError: a field is missing, mistyped, unknown or has a value that is not supported.
        """
        content, origin = read_config_json(source)
        config = read_fields(cls, content, origin=origin)
        check_config(config, origin)
        return config
