"""Which part of every graph weight a rank has.

Matrices are cut by output rows (the embedding by columns) and results are gathered, so every element is computed whole
by one device, in the order of one device alone. A size that the number of ranks does not divide is cut into as many
parts as divide both; then several ranks hold the same part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd

from specdecode.core.checkpoint.sharding.layout import Layout, Strategy
from specdecode.core.checkpoint.sharding.splits import place
from specdecode.core.checkpoint.slices import Axis
from specdecode.core.device_layout import DeviceLayout
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config, TextConfig
from specdecode.core.models.deepseek_v41.weights import WHOLE, GraphWeight, Part, graph_weights

_BLOCK = 32  # rows and columns that share a scale


def attention_parts(text: TextConfig, ranks: int) -> int:
    """Parts of the heads and of the output groups that belong to them."""
    groups = text.o_groups
    return gcd(ranks, text.num_attention_heads, groups, groups * text.o_lora_rank // _BLOCK)


def inner_parts(text: TextConfig, ranks: int) -> int:
    """Parts of the experts' inner width."""
    return gcd(ranks, text.moe_intermediate_size // _BLOCK)


def hidden_parts(text: TextConfig, ranks: int) -> int:
    """Parts of the hidden size: of wo_b, w2 and the embedding."""
    return gcd(ranks, text.hidden_size // _BLOCK)


def vocabulary_parts(text: TextConfig, ranks: int) -> int:
    """Parts of the head."""
    return gcd(ranks, text.vocab_size)


def expert_parts(experts: int, ranks: int) -> int:
    """Parts of a layer's routed experts under expert parallelism."""
    return gcd(ranks, experts)


def index_of(rank: int, parts: int, ranks: int) -> int:
    """Which part a rank has; neighbours share one where there are fewer parts than ranks."""
    return rank * parts // ranks


def rank_weights(config: DeepseekV41Config, layout: DeviceLayout, rank: int) -> dict[str, GraphWeight]:
    """Every weight of a rank by the checkpoint's name, as `graph_weights` for one device.

    The graph calls a part by its place; ranks on devices of their own have copies of their own.
    """
    return _rank_weights(graph_weights(config), config, layout, rank)


def _rank_weights(
    whole: Mapping[str, GraphWeight], config: DeepseekV41Config, layout: DeviceLayout, rank: int
) -> dict[str, GraphWeight]:
    weights = {}
    for name, weight in whole.items():
        part = _part(name, weight, config, layout, rank)
        called = name if part == WHOLE else f"{name}.{part.index}-of-{part.count}"
        if not layout.logical and rank:
            called = f"{called}@{rank}"
        shape = list(weight.shape)
        shape[part.axis] //= part.count
        weights[name] = replace(weight, shape=tuple(shape), part=part, name=called)
    return weights


def all_weights(config: DeepseekV41Config, layout: DeviceLayout) -> Iterator[tuple[int, str, GraphWeight]]:
    """Rank, the checkpoint's name and weight of everything that a layout holds, each graph weight once."""
    seen, whole = set(), graph_weights(config)
    for rank in range(layout.count):
        for name, weight in _rank_weights(whole, config, layout, rank).items():
            if weight.name not in seen:
                seen.add(weight.name)
                yield rank, name, weight


def _part(name: str, weight: GraphWeight, config: DeepseekV41Config, layout: DeviceLayout, rank: int) -> Part:
    text, ranks = config.text_config, layout.count
    stacked = weight.stacked
    if not weight.sources or ranks == 1:
        return WHOLE
    if layout.data_parallel:
        parts = expert_parts(len(weight.sources), ranks) if stacked else 1
        return _of(0, parts, rank, ranks)
    axis = place(weight.sources[0], config, Layout(strategy=Strategy.TENSOR, ranks=ranks)).axis
    if axis is None:
        return WHOLE
    return _of((axis is Axis.COLUMNS) + stacked, _parts(name, text, ranks), rank, ranks)


def _of(axis: int, parts: int, rank: int, ranks: int) -> Part:
    return WHOLE if parts == 1 else Part(axis=axis, index=index_of(rank, parts, ranks), count=parts)


def _parts(name: str, text: TextConfig, ranks: int) -> int:
    if name == "head.weight":
        return vocabulary_parts(text, ranks)
    if any(part in name for part in (".attn.wq_b.", ".attn.attn_sink", ".attn.wo_a.")):
        return attention_parts(text, ranks)
    if any(part in name for part in (".w1.", ".w3.")):
        return inner_parts(text, ranks)
    return hidden_parts(text, ranks)
