"""Which tensor is cut where, and which numbers of ranks a model allows.

Tensor parallel: every matrix is cut between output rows, so that one device computes an output element whole, in the
order in which a single device adds it up; results are gathered and never summed over devices. Hence the tokens do not
depend on the number of devices (docs/shard-weights.md). Of the embedding each device looks up columns. What is small is
replicated. A matrix and its scales are cut in the same place, always between two of the 32 high blocks that share a
scale.
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

SPLITS = {Strategy.TENSOR: 2, Strategy.EXPERT: 1}
"""Edition of the rules below, which the manifest of a folder keeps. Edition 1 of tensor parallel cut `wo_b` and `w2`
along columns, and embeddings and Markov heads along vocabulary rows."""
_BLOCK = 32
_EXPERT = re.compile(r"(?P<part>layers|mtp)\.\d+\.ffn\.experts\.(?P<expert>\d+)\.")
_ENGRAM_TABLE = re.compile(r"layers\.\d+\.engram\.embed\.(weight|scale)")
_TENSOR_PARALLEL = (
    (re.compile(r"embed\.weight"), COLUMNS),
    (re.compile(r"head\.weight"), ROWS),
    (re.compile(r"(layers|mtp)\.\d+\.attn\.(wq_b|wo_a|wo_b)\.(weight|scale)"), ROWS),
    (re.compile(r"(layers|mtp)\.\d+\.attn\.attn_sink"), ROWS),
    (re.compile(r"(layers|mtp)\.\d+\.ffn\.(experts\.\d+|shared_experts)\.w[123]\.(weight|scale)"), ROWS),
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
    heads, groups = t.num_attention_heads, t.o_groups
    yield _Need(what=f"attn.wq_b and attn_sink have text_config.num_attention_heads = {heads} heads", units=heads)
    yield _Need(what=f"attn.wo_a has text_config.o_groups = {groups} groups", units=groups)
    yield _blocks("attn.wo_a has o_groups × o_lora_rank", groups * t.o_lora_rank)
    yield _blocks("embed, attn.wo_b and w2 of experts have text_config.hidden_size", t.hidden_size)
    yield _blocks("w1 and w3 of experts have text_config.moe_intermediate_size", t.moe_intermediate_size)
    yield _Need(what=f"head has text_config.vocab_size = {t.vocab_size} rows", units=t.vocab_size)


def _blocks(what: str, size: int) -> _Need:
    """A size that is divided between blocks, of which a configuration has whole ones only."""
    return _Need(what=f"{what} = {size}, which is {size // _BLOCK} blocks of {_BLOCK}", units=size // _BLOCK)
