"""Which tensor is cut where, and which numbers of ranks a model allows.

Tensor parallel, as the released code does it unless said otherwise in docs/shard-weights.md: query heads, output
groups, the inner width of experts and the vocabulary are divided; what is small is replicated. A matrix and its scales
are cut in the same place, always between two of the 32 wide blocks that share a scale.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from specdecode.core.checkpoint.sharding.layout import (
    COLUMNS,
    HOST,
    REPLICATED,
    ROWS,
    Layout,
    Placement,
    Strategy,
)
from specdecode.core.errors import UsageError
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config, TextConfig

_BLOCK = 32
_EXPERT = re.compile(r"(?P<part>layers|mtp)\.\d+\.ffn\.experts\.(?P<expert>\d+)\.")
_ENGRAM_TABLE = re.compile(r"layers\.\d+\.engram\.embed\.(weight|scale)")
_TENSOR_PARALLEL = (
    (re.compile(r"(embed|head)\.weight"), ROWS),
    (re.compile(r"mtp\.\d+\.markov_head\.(embed|head)\.weight"), ROWS),
    (re.compile(r"(layers|mtp)\.\d+\.attn\.(wq_b|wo_a)\.(weight|scale)"), ROWS),
    (re.compile(r"(layers|mtp)\.\d+\.attn\.attn_sink"), ROWS),
    (re.compile(r"(layers|mtp)\.\d+\.attn\.wo_b\.(weight|scale)"), COLUMNS),
    (re.compile(r"(layers|mtp)\.\d+\.ffn\.(experts\.\d+|shared_experts)\.w[13]\.(weight|scale)"), ROWS),
    (re.compile(r"(layers|mtp)\.\d+\.ffn\.(experts\.\d+|shared_experts)\.w2\.(weight|scale)"), COLUMNS),
)


def place(name: str, config: DeepseekV41Config, layout: Layout) -> Placement:
    """Where a tensor goes; the layout must have passed `check_layout`."""
    if _ENGRAM_TABLE.fullmatch(name):
        return HOST
    if layout.strategy is Strategy.EXPERT:
        match = _EXPERT.match(name)
        if match is None:
            return REPLICATED
        text = config.text_config
        experts = text.n_routed_experts if match["part"] == "layers" else text.dspark_n_routed_experts
        return Placement(rank=int(match["expert"]) // (experts // layout.ranks))
    return next((placement for pattern, placement in _TENSOR_PARALLEL if pattern.fullmatch(name)), REPLICATED)


def check_layout(config: DeepseekV41Config, layout: Layout) -> None:
    """Refuse a number of ranks that the model cannot be divided by.

    Raises:
        UsageError: naming the tensors, the size and the numbers that work.
    """
    needs = list(_needs(config.text_config, layout.strategy))
    for need in needs:
        if need.units % layout.ranks:
            fit = [
                ranks for ranks in range(1, max(n.units for n in needs) + 1) if all(n.units % ranks == 0 for n in needs)
            ]
            raise UsageError(
                f"{layout} does not divide this model: {need.what}, and {need.units} is not a multiple of "
                f"{layout.ranks}. Numbers that work for --{layout.strategy.value}: {', '.join(map(str, fit))}."
            )


@dataclass(frozen=True, kw_only=True)
class _Need:
    """A number of units that the ranks share equally."""

    what: str
    units: int


def _needs(t: TextConfig, strategy: Strategy) -> Iterator[_Need]:
    if strategy is Strategy.EXPERT:
        yield _Need(what=f"text_config.n_routed_experts is {t.n_routed_experts}", units=t.n_routed_experts)
        experts = t.dspark_n_routed_experts
        yield _Need(what=f"text_config.dspark_n_routed_experts is {experts}", units=experts)
        return
    heads, groups, inner = t.num_attention_heads, t.o_groups, t.moe_intermediate_size
    yield _Need(what=f"attn.wq_b and attn_sink have text_config.num_attention_heads = {heads} heads", units=heads)
    yield _Need(what=f"attn.wo_a has text_config.o_groups = {groups} groups", units=groups)
    width = groups * t.o_lora_rank
    yield _Need(
        what=f"attn.wo_b has o_groups × o_lora_rank = {width} input columns, which are {width // _BLOCK} blocks of 32",
        units=width // _BLOCK,
    )
    yield _Need(
        what=f"experts have text_config.moe_intermediate_size = {inner}, which is {inner // _BLOCK} blocks of 32",
        units=inner // _BLOCK,
    )
    yield _Need(what=f"embed and head have text_config.vocab_size = {t.vocab_size} rows", units=t.vocab_size)
