"""The target and its DSpark drafter over one device's graph values.

`DeepseekV41WithDSpark` plays both roles of the block driver: it verifies (`target.py`) and proposes (features, context
rows, draft stages, draft head). Its Engram tables are graph inputs, so it is built inside a graph.
"""

from __future__ import annotations

from collections.abc import Sequence

from max.graph import DeviceRef

from specdecode.core.batch import Accepted, BlockBatch, Proposal
from specdecode.core.kernels import ops as kernels
from specdecode.core.kernels import step_ops
from specdecode.core.kernels.ops import Rows
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.layers import LayerState
from specdecode.core.models.deepseek_v41.probe import Probe
from specdecode.core.models.deepseek_v41.target import DeepseekV41Target, EngramTable, TargetHidden, leaves_of
from specdecode.core.models.deepseek_v41.weights import WeightTable


class DeepseekV41WithDSpark(DeepseekV41Target):
    """Target and drafter in the current graph.

    Args:
        config, pages, engram_tables, device, probe: as for the target.
    """

    def __init__(
        self,
        config: DeepseekV41Config,
        pages: PageLayout,
        engram_tables: Sequence[EngramTable],
        device: DeviceRef,
        *,
        probe: Probe | None = None,
    ) -> None:
        super().__init__(config, pages, engram_tables, device, WeightTable(config, device), probe=probe)

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

    def forward_block(self, batch: BlockBatch, accepted: Accepted) -> Proposal:
        """Anchor and noise through the draft stages, then the Markov and confidence heads."""
        text, w, caches = self.text, self.weights, batch.kv_collections[0]
        ids, seq, pos, last = step_ops.block_inputs(
            batch.draft_slot_ids,
            batch.input_row_offsets,
            caches.cache_lengths,
            accepted.num_accepted,
            accepted.next_tokens,
            w("derived.block"),
        )
        rows = Rows(seq=seq, pos=pos, last=last, table=caches.lookup_table)
        h, mix = step_ops.embed(ids, w("embed.weight"), copies=text.hc_mult)
        # A stage selects nothing: RATIO 0 keeps its kernels from reading the selection, any [N, 1] int32 will do.
        unread = pos.reshape([pos.shape[0], 1])
        state = LayerState(h=h, mix=mix, chosen=unread, blocks=unread)
        for k in range(text.num_stages):
            state = self.blocks.stage(k, state, rows, leaves_of(caches))
        final = f"mtp.{text.num_stages - 1}"
        weights = [
            w(f"{final}.norm.weight"),
            w("head.weight"),
            w(f"{final}.markov_head.embed.weight"),
            w(f"{final}.markov_head.head.weight"),
            w(f"{final}.confidence_head.proj.weight"),
        ]
        drafts, confidence, logits = step_ops.draft_head(
            state.h,
            state.mix,
            batch.draft_slot_ids,
            ids,
            pos,
            batch.sampling.seed,
            batch.sampling.temperature,
            batch.sampling.acceptance,
            weights,
            self.blocks.common(),
            block=text.dspark_block_size,
        )
        if self.probe is not None:
            self.probe.draft(logits)
        return Proposal(draft_tokens=drafts, confidence=confidence, logits=logits)
