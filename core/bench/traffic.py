"""Bytes that a step must move: each weight that it needs once, each cache row once. Less cannot be had.

Kernels move more: activations, and rows that they read again. Not counted either are Engram's rows, which come over
the bus; they are given apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from specdecode.core.models.deepseek_v41.config import DeepseekV41Config, LayerKind, TextConfig
from specdecode.core.models.deepseek_v41.eagle_checkpoint import PREFIX as EAGLE
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig
from specdecode.core.models.deepseek_v41.weights import graph_weights

FLOAT = 4


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step: requests, draft positions, cached tokens of each request, and whether the next block is drafted."""

    batch: int
    width: int
    context: int
    draft: bool

    @property
    def rows(self) -> int:
        """Rows that the target runs."""
        return self.batch * (self.width + 1)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes of one step.

    Attributes:
        weights: of the target and, in a drafting step, of the drafter.
        caches: rows read and written.
        bus: Engram rows from host memory.
    """

    weights: int
    caches: int
    bus: int

    @property
    def total(self) -> int:
        """Bytes in the device's own memory."""
        return self.weights + self.caches


def traffic(config: DeepseekV41Config, step: Step, drafter: EagleConfig | None = None) -> Traffic:
    """What a step must move; `drafter`: an EAGLE drafter in place of the checkpoint's own."""
    text = config.text_config
    caches = sum(layer_cache(text, layer, step) for layer in range(text.num_hidden_layers))
    if step.draft and drafter is None:
        caches += text.num_stages * stage_cache(text, step)
    elif step.draft and drafter is not None:
        rows = min(drafter.sliding_window, step.context) + step.width + 1
        caches += step.batch * rows * text.head_dim * FLOAT
    per_row = text.engram_rows_per_token * (text.engram_head_dim + text.engram_head_dim // 32)
    return Traffic(
        weights=weight_traffic(config, step, drafter),
        caches=caches,
        bus=step.rows * per_row * len(text.engram_layer_ids),
    )


def weight_traffic(config: DeepseekV41Config, step: Step, drafter: EagleConfig | None = None) -> int:
    """Bytes of weights; of a layer's routed experts those that the rows are expected to choose."""
    text, total = config.text_config, 0.0
    drafted = step.batch * (text.dspark_block_size if drafter is None else drafter.num_draft_tokens)
    draft_choice = text.dspark_num_experts_per_tok if drafter is None else drafter.num_experts_per_tok
    for name, weight in graph_weights(config, drafter).items():
        size = math.prod(weight.shape) * int(weight.dtype.size_in_bytes)
        stage = name.startswith(("mtp.", EAGLE))
        if stage and not step.draft:
            continue
        if name == "embed.weight":
            rows = step.rows + (drafted if step.draft else 0)
            total += min(rows, text.vocab_size) * size // text.vocab_size
        elif name.endswith("markov_head.embed.weight"):
            total += min(drafted, text.vocab_size) * size // text.vocab_size
        elif name == "head.weight":
            total += size * (2 if step.draft else 1)  # the drafter comes after, when it has left the cache
        elif name.startswith("derived."):
            continue
        elif ".ffn.experts." in name:
            chosen = draft_choice if stage else text.num_experts_per_tok
            experts = weight.shape[0]
            total += size / experts * distinct_experts(experts, chosen, drafted if stage else step.rows)
        else:
            total += size
    return round(total)


def distinct_experts(experts: int, chosen: int, rows: int) -> float:
    """Expected number of different experts when each row chooses some evenly."""
    return experts * (1 - (1 - chosen / experts) ** rows)


def layer_cache(text: TextConfig, layer: int, step: Step) -> int:
    """Cache bytes of a backbone layer: its window, what it compresses, the keys it scores, the rows it chooses.

    The rows of one request are taken to choose the same compressed rows, the least that they can read.
    """
    ratio, kind, per = text.compress_ratio(layer), text.layer_kind(layer), text.head_dim * FLOAT
    each = (min(text.sliding_window, step.context) + step.width + 1) * per
    if ratio:
        compressed = step.context // ratio
        each += min(text.index_topk, compressed) * per
        key = text.index_head_dim * FLOAT
        if kind is LayerKind.FULL:
            each += compressed * key + -(-(step.width + 1) // ratio) * (per + key)
        elif kind is LayerKind.REINDEX:
            most = text.candidate_topk_blocks * text.candidate_block_size
            each += min(most, compressed) * key if text.uses_candidates(layer) else compressed * key
    return step.batch * each


def stage_cache(text: TextConfig, step: Step) -> int:
    """Cache bytes of a draft stage: its window, and the context rows that the step stores."""
    rows = min(text.sliding_window, step.context) + step.width + 1
    return step.batch * rows * text.head_dim * FLOAT
