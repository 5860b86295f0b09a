"""The target and its DSpark drafter over one device's graph values.

`DeepseekV41WithDSpark` plays both roles of the block driver: it verifies (`target.py`) and proposes (features, context
rows, draft stages, draft head). Its Engram tables are graph inputs, so it is built inside a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from max.graph import DeviceRef, TensorValue

from specdecode.core.batch import Accepted, BlockBatch, Proposal
from specdecode.core.drivers.phases import merge
from specdecode.core.kernels import ops as kernels
from specdecode.core.kernels import step_ops
from specdecode.core.kernels.ops import Rows
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.kernels.step_ops import Merged
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.layers import LayerState, Leaves
from specdecode.core.models.deepseek_v41.probe import Probe
from specdecode.core.models.deepseek_v41.subgraphs import Subgraphs
from specdecode.core.models.deepseek_v41.target import DeepseekV41Target, EngramTable, TargetHidden, leaves_of
from specdecode.core.models.deepseek_v41.weights import WeightTable, graph_weights


@dataclass(frozen=True, kw_only=True)
class Block:
    """A draft block's rows: their tokens int64 [N], requests, positions and caches, and what the first stage reads."""

    ids: TensorValue
    rows: Rows
    leaves: Leaves
    state: LayerState


class DeepseekV41WithDSpark(DeepseekV41Target):
    """Target and drafter in the current graph.

    Args:
        config, pages, engram_tables, device, probe: as for the target.
        weights: what it has of the weights, on one device of several; None: all of them.
        subgraphs: the bodies that it shares with its copies on other devices.
    """

    def __init__(
        self,
        config: DeepseekV41Config,
        pages: PageLayout,
        engram_tables: Sequence[EngramTable],
        device: DeviceRef,
        *,
        weights: WeightTable | None = None,
        subgraphs: Subgraphs | None = None,
        probe: Probe | None = None,
    ) -> None:
        weights = weights or WeightTable(graph_weights(config), device)
        super().__init__(config, pages, engram_tables, device, weights, subgraphs=subgraphs, probe=probe)

    def on_device(
        self, device: DeviceRef, weights: WeightTable, engram_tables: Sequence[EngramTable]
    ) -> DeepseekV41WithDSpark:
        """The same model on a device that has these weights and tables."""
        return DeepseekV41WithDSpark(
            self.config, self.blocks.pages, engram_tables, device, weights=weights, subgraphs=self.blocks.sub
        )

    def merge(self, batch: BlockBatch) -> Merged:
        """Each request's tokens, then its drafts, as one ragged batch."""
        return merge(batch, self.selection)

    def materialize(self, batch: BlockBatch, hidden: TargetHidden) -> None:
        """Context rows of every merged row, in the window leaf's layers after the backbone's.

        A step in which nobody drafts stores none: plain decoding must not pay for a drafter. A request that drafts
        later for the first time then lacks context, which costs acceptance and never changes a token.
        """
        w, slots = self.weights, batch.draft_slot_ids
        weights = [*w.pair("mtp.0.main_proj"), w("mtp.0.main_norm.weight")]
        m = kernels.features(hidden.taps, slots, weights, self.blocks.common())
        for k in range(self.text.num_stages):
            self.blocks.context(k, m, slots, hidden.rows, leaves_of(batch.kv_collections[0]))

    def forward_block(self, batch: BlockBatch, hidden: TargetHidden, accepted: Accepted) -> Proposal:
        """Anchor and noise through the draft stages, then the Markov and confidence heads."""
        block = self.block(batch, accepted)
        state = block.state
        for k in range(self.text.num_stages):
            state = self.blocks.stage(k, state, block.rows, block.leaves)
        norm, *rest = self.head_weights()
        drafts, confidence, logits = step_ops.draft_head(
            state.h,
            state.mix,
            batch.draft_slot_ids,
            block.ids,
            block.rows.pos,
            batch.sampling.seed,
            batch.sampling.temperature,
            batch.sampling.acceptance,
            [norm, self.weights("head.weight"), *rest],
            self.blocks.common(),
            block=self.text.dspark_block_size,
        )
        if self.probe is not None:
            self.probe.draft(logits)
        return Proposal(draft_tokens=drafts, confidence=confidence, logits=logits)

    def block(self, batch: BlockBatch, accepted: Accepted) -> Block:
        """The draft block's rows before the first stage."""
        w, caches = self.weights, batch.kv_collections[0]
        ids, seq, pos, last, h, mix = self.blocks.sub.call(
            "block",
            self._block,
            batch.draft_slot_ids,
            batch.input_row_offsets,
            caches.cache_lengths,
            accepted.num_accepted,
            accepted.next_tokens,
            w("derived.block"),
            w("embed.weight"),
        )
        # A stage selects nothing: RATIO 0 keeps its kernels from reading the selection, any [N, 1] int32 will do.
        unread = pos.reshape([pos.shape[0], 1])
        return Block(
            ids=ids,
            rows=Rows(seq=seq, pos=pos, last=last, table=caches.lookup_table),
            leaves=leaves_of(caches),
            state=LayerState(h=h, mix=mix, chosen=unread, blocks=unread),
        )

    def _block(self, slots: TensorValue, *rest: TensorValue) -> Sequence[TensorValue]:
        *given, embedding = rest
        ids, seq, pos, last = step_ops.block_inputs(slots, *given)
        return [ids, seq, pos, last, *self._embed(ids, embedding)]

    def draft_logits(self, state: LayerState, block: Block) -> TensorValue:
        """The head's part of a block's logits [N, V], without the Markov part; of the tokens that this device has."""

        def body(h: TensorValue, mix: TensorValue, seq: TensorValue, *rest: TensorValue) -> Sequence[TensorValue]:
            norm, weight, model, mode = rest
            common = kernels.Common(model=model, mode=mode)
            return [kernels.head(h, mix, step_ops.every_row(seq), norm, weight, common)]

        common, weights = self.blocks.common(), (self.head_weights()[0], self.weights("head.weight"))
        values = (state.h, state.mix, block.rows.seq, *weights, common.model, common.mode)
        (logits,) = self.blocks.sub.call("draft_logits", body, *values)
        return logits

    def head_weights(self) -> list[TensorValue]:
        """The drafter's norm, Markov embedding, Markov head and confidence projection."""
        final = f"mtp.{self.text.num_stages - 1}"
        names = ("norm", "markov_head.embed", "markov_head.head", "confidence_head.proj")
        return [self.weights(f"{final}.{name}.weight") for name in names]
