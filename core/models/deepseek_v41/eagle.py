"""An EAGLE drafter over one device's graph values: one layer of the target's kind, token after token.

The row at position p stands for the target's hidden values there and the token after it, and predicts the token after
that. Where the target has not run yet, the drafter's own output stands for the hidden values. Sources: EAGLE (Li et
al. 2024) and DeepSeek-V3's multi-token prediction; the drafter's layer is V4.1's window layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from max.graph import TensorValue

from specdecode.core.batch import SequentialBatch
from specdecode.core.drivers.sequential import DraftCache, DraftCall, Drafted
from specdecode.core.kernels import ops as kernels
from specdecode.core.kernels import sequential_ops, step_ops
from specdecode.core.kernels.ops import Rows
from specdecode.core.kernels.sequential_ops import Shifted
from specdecode.core.kernels.settings import drafter_settings
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig
from specdecode.core.models.deepseek_v41.layers import LayerState, Place
from specdecode.core.models.deepseek_v41.target import DeepseekV41Target, TargetHidden, leaves_of


@dataclass(frozen=True, kw_only=True)
class EagleState:
    """The layer's output streams [N, C, D] of each drafting request's newest row."""

    h: TensorValue


class EagleDrafter:
    """One drafter layer beside a target in the current graph.

    Its rows lie in the target's window leaf, in the layer behind the backbone's, which draft stages would use.

    Args:
        target: the target, whose embedding, head and weights table it shares.
        config: the drafter's configuration.
    """

    draft_cache = DraftCache.OWN
    passthrough_decode_swaps: Sequence[str] = ()

    def __init__(self, target: DeepseekV41Target, config: EagleConfig) -> None:
        self.target, self.config, self.w = target, config, target.weights
        self.num_draft_tokens = config.num_draft_tokens

    def prefill(
        self, batch: SequentialBatch, hidden: TargetHidden, shifted: Shifted, call: DraftCall
    ) -> Drafted[EagleState]:
        """All committed rows through the layer, the last one of each request through the head."""
        # Where nobody drafts there are no shifted rows, and the projection does nothing.
        u = self._project("fc", hidden.taps, call)
        table = batch.draft_kv_collections[0].lookup_table
        rows = Rows(seq=shifted.seq, pos=shifted.pos, last=shifted.pos, table=table)
        state = self._layer(batch, shifted.tokens, u, rows, call)
        m, c, d = state.h.shape
        h = sequential_ops.take(state.h.reshape([m, int(c) * int(d)]), call.rows.last_rows)
        mix = sequential_ops.take(state.mix, call.rows.last_rows)
        return self._draft(h.reshape([h.shape[0], c, d]), mix, call)

    def decode(self, batch: SequentialBatch, state: EagleState, call: DraftCall) -> Drafted[EagleState]:
        """One row a request, after its own output."""
        rows, table = call.rows, batch.draft_kv_collections[0].lookup_table
        n, c, d = state.h.shape
        mean = kernels.tap(state.h.reshape([n, int(c) * int(d)]), 0, state.h, self.target.blocks.common())
        u = self._project("back", mean, call)
        out = self._layer(batch, rows.ids, u, Rows(seq=rows.seq, pos=rows.pos, last=rows.pos, table=table), call)
        return self._draft(out.h, out.mix, call)

    def _project(self, name: str, x: TensorValue, call: DraftCall) -> TensorValue:
        """A quantised matrix and a norm, if anybody drafts."""
        weights = [*self.w.pair(f"eagle.{name}"), self.w(f"eagle.{name}_norm.weight")]
        return kernels.features(x, call.slots, weights, self.target.blocks.common())

    def _layer(
        self, batch: SequentialBatch, tokens: TensorValue, u: TensorValue, rows: Rows, call: DraftCall
    ) -> LayerState:
        """The rows' streams after the layer; its cache rows are written for every position that is not -1."""
        target = self.target
        joined = sequential_ops.join(tokens, self.w("embed.weight"), u)
        h, mix = sequential_ops.widen(self._project("proj", joined, call), copies=target.text.hc_mult)
        settings = drafter_settings(
            target.text,
            target.blocks.pages,
            window=self.config.sliding_window,
            experts_per_token=self.config.num_experts_per_tok,
        )
        place = Place(
            name="eagle.layer",
            kind="drafter",
            top_k=self.config.num_experts_per_tok,
            frequencies=self.w("derived.inv_freq"),
            settings=target.blocks.constant(settings),
        )
        # A window layer selects nothing: RATIO 0 keeps its kernels from reading the selection.
        unread = rows.pos.reshape([rows.pos.shape[0], 1])
        state = LayerState(h=h, mix=mix, chosen=unread, blocks=unread)
        return target.blocks.window_layer(place, state, rows, leaves_of(batch.draft_kv_collections[0]))

    def _draft(self, h: TensorValue, mix: TensorValue, call: DraftCall) -> Drafted[EagleState]:
        """Logits of each drafting request's row, and its draft token."""
        w = self.w
        weights = [
            w("eagle.norm.weight"),
            w("head.weight"),
            w("eagle.markov_head.embed.weight"),
            w("eagle.markov_head.head.weight"),
            w("eagle.confidence_head.proj.weight"),
        ]
        tokens, confidence, logits = step_ops.draft_head(
            h,
            mix,
            call.slots,
            call.rows.ids,
            call.rows.head_pos,
            call.rows.keys,
            call.temperature,
            call.rows.plain,
            weights,
            self.target.blocks.common(),
            block=1,
        )
        return Drafted(tokens=tokens, confidence=confidence, logits=logits, state=EagleState(h=h))
