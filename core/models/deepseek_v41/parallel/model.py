"""Target and drafter on several devices: the per-device copies of `DeepseekV41WithDSpark` in lockstep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from max.graph import BufferValue, Dim, TensorValue

from specdecode.core.batch import Accepted, BlockBatch, Proposal, Verified
from specdecode.core.device_layout import DeviceLayout
from specdecode.core.drivers.phases import merge
from specdecode.core.drivers.spread import Spread
from specdecode.core.kernels import parallel_ops
from specdecode.core.kernels.step_ops import Merged
from specdecode.core.models.deepseek_v41.layers import LayerState
from specdecode.core.models.deepseek_v41.model import Block, DeepseekV41WithDSpark
from specdecode.core.models.deepseek_v41.parallel import shares
from specdecode.core.models.deepseek_v41.parallel.collectives import Collectives
from specdecode.core.models.deepseek_v41.parallel.experts import ExpertParallel
from specdecode.core.models.deepseek_v41.parallel.layers import Lockstep, TensorParallel, Visit
from specdecode.core.models.deepseek_v41.target import Run, TargetHidden


@dataclass(frozen=True, kw_only=True)
class SpreadRows:
    """A batch spread over the devices, and each device's merged rows."""

    spread: Spread
    merged: list[Merged]


@dataclass(frozen=True, kw_only=True)
class SpreadHidden:
    """What every device keeps of a verify pass."""

    spread: Spread
    hidden: list[TargetHidden]


class ParallelDeepseekV41:
    """Both roles of the block driver on per-device copies.

    Args:
        copies: the model on each device, with that device's part of the weights.
        layout: the devices.
    """

    def __init__(self, copies: Sequence[DeepseekV41WithDSpark], layout: DeviceLayout) -> None:
        self.copies, self.layout = list(copies), layout
        text = copies[0].text
        tensor_parallel = 1 if layout.data_parallel else layout.count
        self._hidden_parts = shares.hidden_parts(text, tensor_parallel)
        self._vocabulary_parts = shares.vocabulary_parts(text, tensor_parallel)

    def merge(self, batch: BlockBatch) -> SpreadRows:
        """Each request's tokens, then its drafts, on every device that runs them."""
        spread = Spread(batch, block=self.copies[0].text.dspark_block_size)
        selection = self.copies[0].selection
        if spread.replicated and self.layout.logical:  # the very same values
            merged = [merge(spread.parts[0], selection)] * self.layout.count
        else:
            merged = [merge(part, selection) for part in spread.parts]
        return SpreadRows(spread=spread, merged=merged)

    def verify(self, batch: BlockBatch, merged: SpreadRows) -> Verified[SpreadHidden]:
        """Logits of every request's last token and drafts, on the first device; caches written on all."""
        spread, collectives = merged.spread, Collectives(self.layout, batch.signal_buffers)
        runs = [
            copy.start(part, rows) for copy, part, rows in zip(self.copies, spread.parts, merged.merged, strict=True)
        ]
        for run, state in zip(runs, self._embedded([run.state for run in runs], collectives), strict=True):
            run.state = state
        lockstep = self._lockstep(batch, collectives, spread, drafting=False)
        for i in range(self.copies[0].text.num_hidden_layers):
            for run, state in zip(runs, lockstep.leave(self._layer(i, runs)), strict=True):
                run.state = state
        logits = self._logits(
            [copy.logits(run.state, run.merged.logit_rows) for copy, run in zip(self.copies, runs, strict=True)],
            spread,
            collectives,
        )
        return Verified(logits=logits, hidden=SpreadHidden(spread=spread, hidden=[run.hidden for run in runs]))

    def finish(self, batch: BlockBatch, hidden: SpreadHidden, accepted: Accepted) -> list[TensorValue]:
        """The lookback history of all requests, on the first device, if the model has Engram."""
        spread = hidden.spread
        everyone = zip(self.copies, spread.parts, hidden.hidden, spread.accepted(accepted), strict=True)
        histories = [
            history
            for rank, (copy, part, own, verdict) in enumerate(everyone)
            if rank == 0 or not spread.replicated
            for history in copy.finish(part, own, verdict)
        ]
        return [spread.together(histories, _requests(batch))] if histories else []

    def materialize(self, batch: BlockBatch, hidden: SpreadHidden) -> None:
        """Every device's context rows."""
        for copy, part, own in zip(self.copies, hidden.spread.parts, hidden.hidden, strict=True):
            copy.materialize(part, own)

    def forward_block(self, batch: BlockBatch, hidden: SpreadHidden, accepted: Accepted) -> Proposal:
        """The next blocks; where all devices draft the same, the first one draws."""
        spread, collectives = hidden.spread, Collectives(self.layout, batch.signal_buffers)
        blocks = [
            copy.block(part, verdict)
            for copy, part, verdict in zip(self.copies, spread.parts, spread.accepted(accepted), strict=True)
        ]
        states = self._embedded([block.state for block in blocks], collectives)
        lockstep = self._lockstep(batch, collectives, spread, drafting=True)
        for k in range(self.copies[0].text.num_stages):
            states = lockstep.leave(self._stage(k, blocks, states))
        base = []
        for copy, block, state in zip(self.copies, blocks, states, strict=True):
            base.append(copy.draft_logits(state, block))
        if spread.replicated:
            base = [collectives.columns_on_first(base, self._vocabulary_parts)]
        proposals = [
            self._draw(rank, logits, states[rank], blocks[rank].ids, blocks[rank].rows.pos, spread)
            for rank, logits in enumerate(base)
        ]
        return Proposal(
            draft_tokens=spread.together([p.draft_tokens for p in proposals], _requests(batch)),
            confidence=spread.together([p.confidence for p in proposals], _requests(batch)),
            logits=spread.together([p.logits for p in proposals], batch.draft_slot_ids.shape[0]),
        )

    def _layer(self, i: int, runs: Sequence[Run]) -> list[Visit]:
        """Every device up to layer i's attention."""
        visits = []
        for copy, run in zip(self.copies, runs, strict=True):
            copy.approach(i, run)
            layers = copy.blocks
            visits.append(
                Visit(
                    blocks=layers,
                    place=layers.layer_place(i),
                    entered=layers.enter_layer(i, run.state, run.rows, run.leaves),
                    rows=run.rows,
                    leaves=run.leaves,
                )
            )
        return visits

    def _stage(self, k: int, blocks: Sequence[Block], states: Sequence[LayerState]) -> list[Visit]:
        """Every device up to draft stage k's attention."""
        visits = []
        for copy, block, state in zip(self.copies, blocks, states, strict=True):
            place = copy.blocks.stage_place(k)
            visits.append(
                Visit(
                    blocks=copy.blocks,
                    place=place,
                    entered=copy.blocks.enter(place, state, block.rows, block.leaves),
                    rows=block.rows,
                    leaves=block.leaves,
                )
            )
        return visits

    def _draw(
        self, rank: int, base: TensorValue, state: LayerState, ids: TensorValue, pos: TensorValue, spread: Spread
    ) -> Proposal:
        copy, part = self.copies[rank], spread.parts[rank]
        sampling = part.sampling
        drafts, confidence, logits = parallel_ops.draft_tokens(
            base,
            state.h,
            state.mix,
            part.draft_slot_ids,
            ids,
            pos,
            [sampling.seed, sampling.temperature, sampling.acceptance],
            copy.head_weights(),
            copy.blocks.common(),
            block=copy.text.dspark_block_size,
        )
        return Proposal(draft_tokens=drafts, confidence=confidence, logits=logits)

    def _embedded(self, states: Sequence[LayerState], collectives: Collectives) -> list[LayerState]:
        """The states with the embedding's columns of all devices."""
        whole = collectives.columns([state.h for state in states], self._hidden_parts)
        return [replace(state, h=h) for state, h in zip(states, whole, strict=True)]

    def _logits(self, parts: Sequence[TensorValue], spread: Spread, collectives: Collectives) -> TensorValue:
        """Logits of the whole vocabulary and all requests, on the first device."""
        if spread.replicated:
            return collectives.columns_on_first(parts, self._vocabulary_parts)
        return spread.together(parts)

    def _lockstep(self, batch: BlockBatch, collectives: Collectives, spread: Spread, *, drafting: bool) -> Lockstep:
        if not self.layout.data_parallel:
            return TensorParallel(self.copies[0].text, collectives)
        buffers = [value for value in batch.ep_inputs or [] if isinstance(value, BufferValue)]
        starts = spread.slot_starts() if drafting else spread.row_starts()
        rows = (batch.draft_slot_ids if drafting else batch.merged_rows).shape[0]
        return ExpertParallel(collectives, buffers, starts, rows)


def _requests(batch: BlockBatch) -> Dim:
    return batch.sampling.seed.shape[0]
