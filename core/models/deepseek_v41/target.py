"""The target over one device's graph values: merged rows in, logits and the drafter's food out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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


@dataclass(kw_only=True)
class Run:
    """The merged rows on their way through the layers of one device.

    Attributes:
        merged, rows, leaves, window, table_rows: as they were before the first layer.
        state: what the next layer reads.
        taps: [M, taps so far * D].
    """

    merged: Merged
    rows: Rows
    leaves: Leaves
    window: TensorValue | None
    table_rows: TensorValue | None
    state: LayerState
    taps: TensorValue

    @property
    def hidden(self) -> TargetHidden:
        """What is kept of it."""
        return TargetHidden(merged=self.merged, rows=self.rows, taps=self.taps, window=self.window)


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
        subgraphs: the bodies that it shares with its copies on other devices.
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
        subgraphs: Subgraphs | None = None,
        probe: Probe | None = None,
    ) -> None:
        if len(engram_tables) != len(config.text_config.engram_layer_ids):
            raise ValueError(
                f"{len(engram_tables)} Engram tables for {len(config.text_config.engram_layer_ids)} Engram layers"
            )
        self.config, self.text, self.device, self.probe = config, config.text_config, device, probe
        self.tables, self.weights = engram_tables, weights
        self.blocks = Blocks(self.text, pages, weights, subgraphs or Subgraphs(Graph.current), device)
        self.selection = Selection(chosen=self.text.index_topk, blocks=self.text.candidate_topk_blocks)

    def verify(self, batch: StepBatch, merged: Merged) -> Verified[TargetHidden]:
        """Logits of every request's last token and drafts; caches written for every merged row."""
        run = self.start(batch, merged)
        embedded = run.state.h
        for i in range(self.text.num_hidden_layers):
            if self.probe is not None:
                run.state = self.probe.before(i, run.state)
            self.approach(i, run)
            entered = run.state.h
            run.state, trace = self.blocks.layer(i, run.state, run.rows, run.leaves)
            if self.probe is not None:
                self.probe.after(i, entered, run.state, trace)
        logits = self.logits(run.state, run.merged.logit_rows)
        if self.probe is not None:
            every = self.logits(run.state, self.probe.every_row)
            self.probe.target(run.taps, run.table_rows, embedded, every)
        return Verified(logits=logits, hidden=run.hidden)

    def start(self, batch: StepBatch, merged: Merged) -> Run:
        """The merged rows before the first layer."""
        caches = batch.kv_collections[0]
        embedding = self.weights("embed.weight")
        window = table_rows = None
        if self.text.engram_layer_ids:
            lookback = [batch.extra[name] for name in LOOKBACK]
            constants = [self.weights(name) for name in ENGRAM_CONSTANTS]
            given = (merged.tokens, merged.seq, merged.pos, *lookback, *constants, embedding)
            window, table_rows, h, mix = self.blocks.sub.call("start", self._start, *given)
        else:
            h, mix = self.blocks.sub.call("embed", self._embed, merged.tokens, embedding)
        return Run(
            merged=merged,
            rows=Rows(seq=merged.seq, pos=merged.pos, last=merged.pos, table=caches.lookup_table),
            leaves=leaves_of(caches),
            window=window,
            table_rows=table_rows,
            state=LayerState(h=h, mix=mix, chosen=merged.chosen, blocks=merged.blocks),
            taps=mix,
        )

    def _start(
        self, tokens: TensorValue, seq: TensorValue, pos: TensorValue, *rest: TensorValue
    ) -> Sequence[TensorValue]:
        *lookback, embedding = rest[:3] + rest[-1:]
        window = step_ops.lookback(*lookback)
        return [
            window,
            step_ops.engram_rows(tokens, seq, pos, window, rest[3:-1]),
            *self._embed(tokens, embedding),
        ]

    def _embed(self, tokens: TensorValue, embedding: TensorValue) -> Sequence[TensorValue]:
        return step_ops.embed(tokens, embedding, copies=self.text.hc_mult)

    def approach(self, i: int, run: Run) -> None:
        """What comes before layer i: its Engram, and its tap for the drafter."""
        if i in self.text.engram_layer_ids:
            assert run.table_rows is not None
            h = self._engram(i, run.state.h, run.table_rows, run.merged)
            run.state = replace(run.state, h=h)
        if i in self.text.dspark_target_layer_ids:
            width = self.text.dspark_target_layer_ids.index(i) * self.text.hidden_size
            run.taps = self._tap(run.taps, width, run.state.h)

    def logits(self, state: LayerState, rows: TensorValue) -> TensorValue:
        """Logits float32 [R, V] of rows int32 [R]; of the tokens that this device's head has."""
        w = self.weights
        return kernels.head(state.h, state.mix, rows, w("norm.weight"), w("head.weight"), self.blocks.common())

    def _tap(self, before: TensorValue, width: int, h: TensorValue) -> TensorValue:
        def body(before: TensorValue, h: TensorValue, model: TensorValue, mode: TensorValue) -> Sequence[TensorValue]:
            return [kernels.tap(before, width, h, kernels.Common(model=model, mode=mode))]

        common = self.blocks.common()
        (taps,) = self.blocks.sub.call(f"tap_{width}", body, before, h, common.model, common.mode)
        return taps

    def _engram(self, layer: int, h: TensorValue, table_rows: TensorValue, merged: Merged) -> TensorValue:
        which = self.text.engram_layer_ids.index(layer)
        name, w, table, common = f"layers.{layer}.engram", self.weights, self.tables[which], self.blocks.common()

        def body(
            h: TensorValue, rows: TensorValue, pos: TensorValue, tokens: TensorValue, *rest: TensorValue
        ) -> Sequence[TensorValue]:
            *weights, model, mode = rest
            return [kernels.engram(h, rows, pos, tokens, weights, kernels.Common(model=model, mode=mode))]

        (out,) = self.blocks.sub.call(
            "engram",
            body,
            h,
            table_rows,
            merged.pos,
            merged.tokens,
            w("derived.engram.ids"),
            ops.constant(np.array([which], np.int32), DType.int32, self.device),
            table.weight,
            table.scale,
            *w.pair(f"{name}.wkv"),
            w(f"{name}.q_weight"),
            w(f"{name}.k_weight"),
            common.model,
            common.mode,
        )
        return out

    def finish(self, batch: StepBatch, hidden: TargetHidden, accepted: Accepted) -> list[TensorValue]:
        """The Engram lookback history int64 [B, n - 1] that the next step may read, if there is Engram."""
        if hidden.window is None:
            return []
        return [step_ops.history(hidden.window, hidden.merged, accepted.num_accepted)]


def leaves_of(caches: BlockCaches) -> Leaves:
    """One device's cache leaves as the layers take them."""
    return Leaves(**caches.leaves)
