"""The blocks of the target and the drafter, as subgraph bodies over the kernels.

Every body takes plain values in a fixed order, so that all layers of a kind share one compiled subgraph. A layer is
two bodies: `enter` (hyper-connection gates, queries, window row) and `leave` (attention, output projection, experts).
Between them a source compresses and an index source selects. What only writes a cache (compress, context rows) is
called directly: MAX 26.7 does not compile a subgraph call whose results nobody reads ("'mgp.model' op Expected the
number of arguments to the 'init' body to match the number of devices"), and one that writes several caches beside
results that are read gives other bits from run to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from max.dtype import DType
from max.graph import BufferValue, DeviceRef, TensorValue, ops

from specdecode.core.kernels import ops as kernels
from specdecode.core.kernels.ops import Common, Rows
from specdecode.core.kernels.settings import LayerSettings, PageLayout, layer_settings
from specdecode.core.models.deepseek_v41.bodies import attending, index, row_values, unpack
from specdecode.core.models.deepseek_v41.config import LayerKind, TextConfig
from specdecode.core.models.deepseek_v41.subgraphs import Subgraphs
from specdecode.core.models.deepseek_v41.weights import MODE, MODEL, WeightTable


@dataclass(frozen=True, kw_only=True)
class Leaves:
    """The cache leaves [pages, 1, layers, slots, 1, dim], float32."""

    window: BufferValue
    compressed: BufferValue
    keys: BufferValue
    open_groups: BufferValue


@dataclass(frozen=True, kw_only=True)
class LayerState:
    """What one layer hands to the next.

    Attributes:
        h: [M, C, D] residual copies.
        mix: [M, C(C+2)] of the last sublayer; its first C values are the pre of the next collapse.
        chosen: int32 [M, N] selection last published by an index source.
        blocks: int32 [M, NB] candidate blocks last published.
    """

    h: TensorValue
    mix: TensorValue
    chosen: TensorValue
    blocks: TensorValue


@dataclass(frozen=True, kw_only=True)
class LayerTrace:
    """A layer's inner values, for comparison with a reference; latent only in a kv source."""

    attn_out: TensorValue
    ffn_out: TensorValue
    expert_ids: TensorValue
    expert_weights: TensorValue
    latent: TensorValue | None


@dataclass(frozen=True, kw_only=True)
class Entered:
    """A layer before its attention.

    Attributes:
        state: its input, with the mix of its attention sublayer and the selection that it reads.
        q: queries [M, H K]; kv: its own window rows [M, K].
        latent: group latents [M, K] of a kv source; None elsewhere.
    """

    state: LayerState
    q: TensorValue
    kv: TensorValue
    latent: TensorValue | None


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a layer's weights are, and what its kernels are told.

    Attributes:
        name: prefix of its weights.
        kind: calls of one kind, at the same types, share a compiled body.
        top_k: routed experts of a row.
        frequencies, settings: RoPE frequencies and the int32 layer settings.
    """

    name: str
    kind: str
    top_k: int
    frequencies: TensorValue
    settings: TensorValue


class Blocks:
    """Builds layers and draft stages in the current graph."""

    def __init__(
        self,
        text: TextConfig,
        pages: PageLayout,
        weights: WeightTable,
        subgraphs: Subgraphs,
        device: DeviceRef,
    ) -> None:
        self.text, self.pages, self.w, self.sub, self.device = text, pages, weights, subgraphs, device
        self.heads = weights.heads()

    def common(self) -> Common:
        return Common(model=self.w(MODEL), mode=self.w(MODE))

    def settings(self, layer: int) -> TensorValue:
        return self.constant(layer_settings(self.text, self.pages, layer))

    def constant(self, settings: LayerSettings) -> TensorValue:
        return ops.constant(settings.array(), DType.int32, self.device)

    def frequencies(self, layer: int) -> TensorValue:
        stage = layer >= self.text.num_hidden_layers
        compressed = not stage and self.text.compress_ratio(layer) > 0
        return self.w("derived.inv_freq_compressed" if compressed else "derived.inv_freq")

    def hyper(self, name: str, part: str) -> list[TensorValue]:
        names = [f"{name}.hc_{part}_{what}" for what in ("fn", "scale", "base")]
        return [self.w(n) for n in (*names, f"{name}.{part}_norm.weight")]

    def query_weights(self, name: str) -> list[TensorValue]:
        w = self.w
        return [
            *w.pair(f"{name}.wq_a"),
            w(f"{name}.q_norm.weight"),
            *w.pair(f"{name}.wq_b"),
            *w.pair(f"{name}.wkv"),
            w(f"{name}.kv_norm.weight"),
        ]

    def out_weights(self, name: str) -> list[TensorValue]:
        return [*self.w.pair(f"{name}.wo_a"), *self.w.pair(f"{name}.wo_b")]

    def moe_weights(self, name: str) -> list[TensorValue]:
        out = [self.w(f"{name}.gate.weight"), self.w(f"{name}.gate.bias")]
        for where in ("experts", "shared_experts"):
            for part in ("w1", "w3", "w2"):
                out += self.w.pair(f"{name}.{where}.{part}")
        return out

    def layer(self, i: int, state: LayerState, rows: Rows, leaves: Leaves) -> tuple[LayerState, LayerTrace]:
        """Backbone layer i."""
        return self._leave(self.layer_place(i), self.enter_layer(i, state, rows, leaves), rows, leaves)

    def stage(self, k: int, state: LayerState, rows: Rows, leaves: Leaves) -> LayerState:
        """Draft stage k over the block rows; its context rows are in the window leaf already."""
        return self.window_layer(self.stage_place(k), state, rows, leaves)

    def window_layer(self, place: Place, state: LayerState, rows: Rows, leaves: Leaves) -> LayerState:
        """A layer that attends to the window leaf alone, and to its block where its settings have one."""
        return self._leave(place, self.enter(place, state, rows, leaves), rows, leaves)[0]

    def layer_place(self, i: int) -> Place:
        """Where layer i is."""
        return Place(
            name=f"layers.{i}",
            kind="leave",
            top_k=self.text.num_experts_per_tok,
            frequencies=self.frequencies(i),
            settings=self.settings(i),
        )

    def stage_place(self, k: int) -> Place:
        """Where draft stage k is."""
        i = self.text.num_hidden_layers + k
        return Place(
            name=f"mtp.{k}",
            kind="stage",
            top_k=self.text.dspark_num_experts_per_tok,
            frequencies=self.frequencies(i),
            settings=self.settings(i),
        )

    def enter_layer(self, i: int, state: LayerState, rows: Rows, leaves: Leaves) -> Entered:
        """Layer i up to its attention: queries, window rows, and what it compresses and selects."""
        name, kind = f"layers.{i}", self.text.layer_kind(i)
        settings, freq, common = self.settings(i), self.frequencies(i), self.common()
        shared = (*row_values(rows), freq, settings, common.model, common.mode)
        mix, x, q, latent, kv = self._entered(name, shared, state, leaves)
        group_latent = None
        if kind is LayerKind.FULL:
            group_latent = kernels.compress(
                x,
                [leaves.compressed, leaves.keys, leaves.open_groups],
                rows,
                self._compressor_weights(i),
                freq,
                settings,
                common,
            )
        chosen, blocks = state.chosen, state.blocks
        if kind in (LayerKind.FULL, LayerKind.REINDEX):
            indexer = f"{name}.attn.indexer"
            chosen, blocks = self.sub.call(
                "index",
                index,
                x,
                latent,
                chosen,
                blocks,
                leaves.keys,
                *shared,
                *self.w.pair(f"{indexer}.wq_b"),
                self.w(f"{indexer}.weights_proj.weight"),
            )
        inner = LayerState(h=state.h, mix=mix, chosen=chosen, blocks=blocks)
        return Entered(state=inner, q=q, kv=kv, latent=group_latent)

    def enter(self, place: Place, state: LayerState, rows: Rows, leaves: Leaves) -> Entered:
        """A window layer up to its attention."""
        common = self.common()
        shared = (*row_values(rows), place.frequencies, place.settings, common.model, common.mode)
        mix, _, q, _, kv = self._entered(place.name, shared, state, leaves)
        inner = LayerState(h=state.h, mix=mix, chosen=state.chosen, blocks=state.blocks)
        return Entered(state=inner, q=q, kv=kv, latent=None)

    def _entered(
        self, name: str, shared: Sequence[TensorValue], state: LayerState, leaves: Leaves
    ) -> list[TensorValue]:
        return self.sub.call(
            "enter",
            self._enter,
            state.h,
            state.mix,
            leaves.window,
            *shared,
            *self.hyper(name, "attn"),
            *self.query_weights(f"{name}.attn"),
        )

    def context(self, k: int, m: TensorValue, slots: TensorValue, rows: Rows, leaves: Leaves) -> None:
        """Store stage k's context rows of the drafter's features m [M, D], if any of the slots [N] drafts."""
        name, i, common = f"mtp.{k}.attn", self.text.num_hidden_layers + k, self.common()
        kernels.context_rows(
            m,
            slots,
            leaves.window,
            rows,
            [*self.w.pair(f"{name}.wkv"), self.w(f"{name}.kv_norm.weight")],
            self.frequencies(i),
            self.settings(i),
            common,
        )

    def _compressor_weights(self, i: int) -> list[TensorValue]:
        name, w = f"layers.{i}.attn", self.w
        gate = "wgate" if self.text.compress_ratio(i) > 1 else "wkv"  # ratio 1 has no gate and does not read it
        return [
            w(f"{name}.compressor.wkv.weight"),
            w(f"{name}.compressor.{gate}.weight"),
            w(f"{name}.compressor.norm.weight"),
            w(f"{name}.indexer.wk.weight"),
            w(f"{name}.indexer.k_norm.weight"),
        ]

    def _enter(
        self, h: TensorValue, before: TensorValue, window: BufferValue, *rest: TensorValue
    ) -> Sequence[TensorValue]:
        rows, freq, settings, common, weights = unpack(rest)
        mix, x = kernels.sublayer_in(h, before, weights[:4], settings, common)
        q, latent, kv = kernels.attention_in(x, window, rows, weights[4:], freq, settings, common, heads=self.heads)
        return mix, x, q, latent, kv

    def attention(
        self, place: Place, entered: Entered, rows: Rows, leaves: Leaves
    ) -> tuple[TensorValue | BufferValue, ...]:
        """The arguments of an `attending` body before its own weights."""
        state, common = entered.state, self.common()
        return (
            state.h,
            state.mix,
            entered.q,
            entered.kv,
            state.chosen,
            leaves.window,
            leaves.compressed,
            *row_values(rows),
            place.frequencies,
            place.settings,
            common.model,
            common.mode,
            self.w(f"{place.name}.attn.attn_sink"),
        )

    def _leave(self, place: Place, entered: Entered, rows: Rows, leaves: Leaves) -> tuple[LayerState, LayerTrace]:
        def after(
            o: TensorValue,
            h: TensorValue,
            mix: TensorValue,
            settings: TensorValue,
            common: Common,
            weights: Sequence[TensorValue],
        ) -> Sequence[TensorValue]:
            h, y = kernels.attention_out(o, h, mix, weights[:4], common)
            mix, x = kernels.sublayer_in(h, mix, weights[4:8], settings, common)
            h, z, ids, w = kernels.moe(x, h, mix, weights[8:], common, top_k=place.top_k)
            return h, mix, y, z, ids, w

        name, state = place.name, entered.state
        h, mix, y, z, ids, w = self.sub.call(
            place.kind,
            attending(after),
            *self.attention(place, entered, rows, leaves),
            *self.out_weights(f"{name}.attn"),
            *self.hyper(name, "ffn"),
            *self.moe_weights(f"{name}.ffn"),
        )
        trace = LayerTrace(attn_out=y, ffn_out=z, expert_ids=ids, expert_weights=w, latent=entered.latent)
        return LayerState(h=h, mix=mix, chosen=state.chosen, blocks=state.blocks), trace
