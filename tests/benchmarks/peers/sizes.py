"""The sizes of both models, and where they cannot be the same.

Everything that both configurations have is set from one place. What only one of them has is listed in `DIFFERENCES`,
which is printed under the figures.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from tests.support.tiny import CONFIG


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What both models share; the widths per head are those of both releases, the rest is small.

    One draft stage and four experts: with three and eight MAX's compiler was not done after 575 s on 16 cores.

    Attributes:
        ours_ratios, v4_ratios: tokens per compressed row of the three layers, as far as each model knows them: window
            only, the smaller ratio, the larger one.
        block: drafts a step, verified and drafted anew.
        max_length: positions that the rotary tables have.
    """

    vocab_size: int = 4096
    hidden_size: int = 1024
    num_attention_heads: int = 16
    head_dim: int = 512
    qk_rope_head_dim: int = 64
    q_lora_rank: int = 512
    o_lora_rank: int = 256
    o_groups: int = 4
    sliding_window: int = 128
    index_n_heads: int = 16
    index_head_dim: int = 128
    index_topk: int = 128
    moe_intermediate_size: int = 512
    n_routed_experts: int = 4
    num_experts_per_tok: int = 2
    hc_mult: int = 4
    dspark_markov_rank: int = 64
    dspark_noise_token_id: int = 4090
    block: int = 5
    stages: int = 1
    max_length: int = 4096
    ours_ratios: tuple[int, ...] = (0, 2, 1)
    v4_ratios: tuple[int, ...] = (0, 4, 128)

    @property
    def layers(self) -> int:
        return len(self.ours_ratios)


# fmt: off
SHARED = (
    "vocab_size", "hidden_size", "num_attention_heads", "head_dim", "qk_rope_head_dim", "q_lora_rank", "o_lora_rank",
    "o_groups", "sliding_window", "index_n_heads", "index_head_dim", "index_topk", "moe_intermediate_size",
    "n_routed_experts", "num_experts_per_tok", "hc_mult", "dspark_markov_rank", "dspark_noise_token_id",
)
# fmt: on
"""Fields of both configurations under the same name."""

DIFFERENCES = (
    "V4.1 compresses 2 or 1 tokens into a row, V4 4 or 128: at the same context our layers hold more rows (at 1024 "
    "tokens 512 and 1024, against 256 and 8), and both of ours score them to select, of MAX's only the first.",
    "Weights: ours stay stored in FP8 and FP4 and are decoded in the kernels; MAX's are bf16, as its FP4 expert kernel "
    "needs Blackwell.",
    "On the bf16 route MAX lets every expert run on every row and weights most results with zero (4 experts, 2 chosen: "
    "twice the routed work); ours run the chosen ones.",
    "Caches: ours are float32, MAX's bf16 with float32 compressor states; pages have 16 tokens here, 128 there.",
    "V4 has no Engram memories, so ours are left out; V4's routing by token table is switched off, as V4.1 has none.",
    "Ours also scores how likely each draft is accepted, and returns logits; MAX's does neither.",
    "Acceptance: MAX's rule is the stochastic ratio test with argmax drafts, ours compares position-keyed draws. "
    "Both run at temperature 1 without limits.",
    "MAX declares its speculator unfit for device graph capture (supports_device_graph_capture=False), so only its "
    "eager step is timed; ours is timed both ways.",
    "Tracing: ours includes parsing the project's Mojo kernels, so tracing and compiling are compared together; MAX's "
    "kernels come parsed with its package.",
    "Three layers of different kinds and one draft stage leave subgraphs little to share: deeper models cost both "
    "compilers less per layer than these figures say.",
)


def rope_scaling(sizes: Sizes) -> dict[str, Any]:
    """YaRN, in V4.1's spelling."""
    return {
        "rope_type": "yarn",
        "factor": 4,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": sizes.max_length // 4,
    }


def our_content(sizes: Sizes) -> dict[str, Any]:
    """The content of a V4.1 `config.json`: one window layer and two that compress, index and select."""
    content: dict[str, Any] = copy.deepcopy(CONFIG)
    text = content["text_config"]
    del content["vision_config"]
    sources = [layer for layer, ratio in enumerate(sizes.ours_ratios) if ratio]
    text.update({name: getattr(sizes, name) for name in SHARED})
    text.update(
        num_hidden_layers=sizes.layers,
        max_position_embeddings=sizes.max_length,
        rope_scaling=rope_scaling(sizes),
        compress_ratios=[*sizes.ours_ratios, *[0] * sizes.stages],
        kv_source_layer_ids=sources,
        index_source_layer_ids=sources,
        candidate_source_layer_id=-1,
        engram_layer_ids=[],
        engram_num_embeddings=[],
        num_nextn_predict_layers=sizes.stages,
        dspark_block_size=sizes.block,
        dspark_target_layer_ids=list(range(sizes.stages)),
        dspark_n_routed_experts=sizes.n_routed_experts,
        dspark_num_experts_per_tok=sizes.num_experts_per_tok,
    )
    return content


def v4_fields(sizes: Sizes) -> dict[str, Any]:
    """The fields of MAX's `DeepseekV4Config` that have no better default."""
    scaling = rope_scaling(sizes)
    return {name: getattr(sizes, name) for name in SHARED} | {
        "num_hidden_layers": sizes.layers,
        "max_seq_len": sizes.max_length,
        "max_position_embeddings": sizes.max_length,
        "rope_scaling": scaling | {"type": scaling["rope_type"]},
        "compress_ratios": [*sizes.v4_ratios, *[0] * sizes.stages],
        "num_hash_layers": 0,
        "dspark_block_size": sizes.block,
        "dspark_target_layer_ids": list(range(sizes.stages)),
        "expert_dtype": None,
    }
