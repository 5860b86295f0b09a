"""The target over one device's graph values: merged rows in, logits and the drafter's food out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorValue, ops

from specdecode.core.batch import Accepted, BlockCaches, Verified
from specdecode.core.drivers.phases import Selection
from specdecode.core.kernels import ops as kernels
from specdecode.core.kernels import step_ops
from specdecode.core.kernels.ops import Rows
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.kernels.step_ops import Merged
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.layers import Blocks, LayerState, Leaves
from specdecode.core.models.deepseek_v41.probe import Probe
from specdecode.core.models.deepseek_v41.subgraphs import Subgraphs
from specdecode.core.models.deepseek_v41.weights import WeightTable

LOOKBACK = ("engram_lookback_ids", "engram_lookback_source", "engram_lookback_history")
ENGRAM_CONSTANTS = tuple(f"derived.engram.{name}" for name in ("token_map", "multipliers", "primes", "offsets", "ids"))


@dataclass(frozen=True, kw_only=True)
class EngramTable:
    """One Engram layer's host table: weight uint8 [R, E] (e4m3) and scale uint8 [R, E / 32] (UE8M0)."""

    weight: TensorValue
    scale: TensorValue


@dataclass(frozen=True, kw_only=True)
class TargetHidden:
    """What the drafter and the next step need of a verify pass.

    Attributes:
        merged: the merged rows.
        rows: their requests, positions and pages.
        taps: [M, taps * D] means of the tap layers' input copies.
        window: int64 [B, n - 1] Engram lookback before each chunk, if the model has Engram.
    """

    merged: Merged
    rows: Rows
    taps: TensorValue
    window: TensorValue | None


class StepBatch(Protocol):
    """What the target reads of a step, whichever driver built it."""

    @property
    def kv_collections(self) -> list[BlockCaches]: ...
    @property
    def extra(self) -> Mapping[str, Any]: ...


class DeepseekV41Target:
    """The backbone in the current graph.

    Args:
        config: the checkpoint's configuration.
        pages: layout of the cache pages.
        engram_tables: one per Engram layer, in order; graph inputs.
        device: where everything runs.
        weights: the graph's weights.
        probe: takes every inner value out of the graph, for tests; None otherwise.
    """

    def __init__(
        self,
        config: DeepseekV41Config,
        pages: PageLayout,
        engram_tables: Sequence[EngramTable],
        device: DeviceRef,
        weights: WeightTable,
        *,
        probe: Probe | None = None,
    ) -> None:
        if len(engram_tables) != len(config.text_config.engram_layer_ids):
            raise ValueError(
                f"{len(engram_tables)} Engram tables for {len(config.text_config.engram_layer_ids)} Engram layers"
            )
        self.config, self.text, self.device, self.probe = config, config.text_config, device, probe
        self.tables, self.weights = engram_tables, weights
        self.blocks = Blocks(self.text, pages, weights, Subgraphs(Graph.current), device)
        self.selection = Selection(chosen=self.text.index_topk, blocks=self.text.candidate_topk_blocks)

    def verify(self, batch: StepBatch, merged: Merged) -> Verified[TargetHidden]:
        """Logits of every request's last token and drafts; caches written for every merged row."""
        text, caches = self.text, batch.kv_collections[0]
        rows = Rows(seq=merged.seq, pos=merged.pos, last=merged.pos, table=caches.lookup_table)
        window = table_rows = None
        if text.engram_layer_ids:
            window = step_ops.lookback(*(batch.extra[name] for name in LOOKBACK))
            table_rows = step_ops.engram_rows(merged, window, [self.weights(name) for name in ENGRAM_CONSTANTS])
        h, mix = step_ops.embed(merged.tokens, self.weights("embed.weight"), copies=text.hc_mult)
        state = LayerState(h=h, mix=mix, chosen=merged.chosen, blocks=merged.blocks)
        state, taps = self._backbone(state, merged, rows, leaves_of(caches), table_rows)
        logits = kernels.head(
            state.h,
            state.mix,
            merged.logit_rows,
            self.weights("norm.weight"),
            self.weights("head.weight"),
            self.blocks.common(),
        )
        if self.probe is not None:
            every = kernels.head(
                state.h,
                state.mix,
                self.probe.every_row,
                self.weights("norm.weight"),
                self.weights("head.weight"),
                self.blocks.common(),
            )
            self.probe.target(taps, table_rows, h, every)
        return Verified(logits=logits, hidden=TargetHidden(merged=merged, rows=rows, taps=taps, window=window))

    def _backbone(
        self, state: LayerState, merged: Merged, rows: Rows, leaves: Leaves, table_rows: TensorValue | None
    ) -> tuple[LayerState, TensorValue]:
        common, taps, width = self.blocks.common(), state.mix, 0
        for i in range(self.text.num_hidden_layers):
            if self.probe is not None:
                state = self.probe.before(i, state)
            if i in self.text.engram_layer_ids:
                assert table_rows is not None
                h = self._engram(i, state.h, table_rows, merged)
                state = LayerState(h=h, mix=state.mix, chosen=state.chosen, blocks=state.blocks)
            if i in self.text.dspark_target_layer_ids:
                taps = kernels.tap(taps, width, state.h, common)
                width += self.text.hidden_size
            entered = state.h
            state, trace = self.blocks.layer(i, state, rows, leaves)
            if self.probe is not None:
                self.probe.after(i, entered, state, trace)
        return state, taps

    def _engram(self, layer: int, h: TensorValue, table_rows: TensorValue, merged: Merged) -> TensorValue:
        which = self.text.engram_layer_ids.index(layer)
        name, w, table = f"layers.{layer}.engram", self.weights, self.tables[which]
        weights = [
            w("derived.engram.ids"),
            ops.constant(np.array([which], np.int32), DType.int32, self.device),
            table.weight,
            table.scale,
            *w.pair(f"{name}.wkv"),
            w(f"{name}.q_weight"),
            w(f"{name}.k_weight"),
        ]
        return kernels.engram(h, table_rows, merged.pos, merged.tokens, weights, self.blocks.common())

    def finish(self, batch: StepBatch, hidden: TargetHidden, accepted: Accepted) -> list[TensorValue]:
        """The Engram lookback history int64 [B, n - 1] that the next step may read, if there is Engram."""
        if hidden.window is None:
            return []
        return [step_ops.history(hidden.window, hidden.merged, accepted.num_accepted)]


def leaves_of(caches: BlockCaches) -> Leaves:
    """One device's cache leaves as the layers take them."""
    return Leaves(**caches.leaves)
