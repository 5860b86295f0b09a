"""Autoregressive speculation: a drafter proposes token after token (EAGLE, MTP).

merge -> verify -> accept (with the mask) -> shift -> propose -> pack, in one graph. Proposing is one call over the
whole corrected sequence, which brings the draft cache up to the last committed row and gives the first draft, then
K - 1 calls of one row a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, Protocol, TypeVar

from max.dtype import DType
from max.graph import TensorValue, ops

from specdecode.core.batch import (
    Accepted,
    BlockBatch,
    KVCacheInputsPerDevice,
    Proposal,
    SequentialBatch,
    StepOutputs,
    Verified,
)
from specdecode.core.drivers.input_types import FOLLOWING, SHIFTED_ROWS
from specdecode.core.drivers.phases import Selection, accept, merge
from specdecode.core.kernels import sequential_ops
from specdecode.core.kernels.sequential_ops import DraftRows, Shifted
from specdecode.core.kernels.step_ops import Merged

HiddenT = TypeVar("HiddenT")
StateT = TypeVar("StateT")
HiddenT_in = TypeVar("HiddenT_in", contravariant=True)


class DraftCache(Enum):
    """Whose cache a drafter reads."""

    OWN = "own"
    """Its own: its lengths advance with its calls."""
    TARGET = "target"
    """The target's, which it never writes: lengths are RoPE positions, and the collections keep theirs."""


@dataclass(frozen=True, kw_only=True)
class DraftCall:
    """One draft call's rows and draws.

    Attributes:
        rows: the drafting requests' rows of this call.
        slots: int32 [N], the requests that draft.
        temperature: float32 [B].
    """

    rows: DraftRows
    slots: TensorValue
    temperature: TensorValue


@dataclass(frozen=True, kw_only=True)
class Drafted(Generic[StateT]):
    """What a call drafted: tokens int64, confidence float32 [B, 1], logits float32 [N, V]; and what the next reads."""

    tokens: TensorValue
    confidence: TensorValue
    logits: TensorValue
    state: StateT


class SequentialTarget(Protocol[HiddenT]):
    """The target's role in a step.

    Attributes:
        selection: what its layers pass on.
    """

    selection: Selection

    def verify(self, batch: SequentialBatch, merged: Merged) -> Verified[HiddenT]:
        """Run the merged rows through the target; every row's caches are written."""
        ...

    def finish(self, batch: SequentialBatch, hidden: HiddenT, accepted: Accepted) -> Sequence[TensorValue]:
        """The model's own outputs of the step, once it is known how far it got."""
        ...


class SequentialProposer(Protocol[HiddenT_in, StateT]):
    """The drafter's role in a step.

    Attributes:
        num_draft_tokens: drafts a round, K.
        draft_cache: whose cache it reads.
        passthrough_decode_swaps: names in `passthrough_kv` whose lengths follow the one-row calls.
    """

    num_draft_tokens: int
    draft_cache: DraftCache
    passthrough_decode_swaps: Sequence[str]

    def prefill(self, batch: SequentialBatch, hidden: HiddenT_in, shifted: Shifted, call: DraftCall) -> Drafted[StateT]:
        """Run every committed row beside the token after it; draft behind each request's last one."""
        ...

    def decode(self, batch: SequentialBatch, state: StateT, call: DraftCall) -> Drafted[StateT]:
        """Run the draft token of the call before; draft the one behind it."""
        ...


class SequentialDriver(Generic[HiddenT, StateT]):
    """Builds the step's graph from a target and an autoregressive drafter."""

    def __init__(self, target: SequentialTarget[HiddenT], draft: SequentialProposer[HiddenT, StateT]) -> None:
        self.target, self.draft = target, draft

    def __call__(
        self,
        inputs: BlockBatch,
        *,
        draft_kv_collections: list[KVCacheInputsPerDevice] | None = None,
        passthrough_kv: Mapping[str, list[KVCacheInputsPerDevice]] | None = None,
    ) -> StepOutputs:
        """The whole step.

        Args:
            inputs: the graph's inputs; its `extra` holds `FOLLOWING` and `SHIFTED_ROWS`.
            draft_kv_collections: the drafter's caches; None where its leaves are among the target's.
            passthrough_kv: further caches by the model's name.
        """
        merged = merge(inputs, self.target.selection)
        batch = self.batch(inputs, merged, draft_kv_collections, passthrough_kv or {})
        verified = self.target.verify(batch, merged)
        accepted = accept(inputs, verified.logits)
        extra = self.target.finish(batch, verified.hidden, accepted)
        batch = replace(batch, num_accepted=accepted.num_accepted)
        shifted = sequential_ops.shift(
            merged,
            accepted.num_accepted,
            accepted.next_tokens,
            inputs.extra[FOLLOWING],
            inputs.extra[SHIFTED_ROWS],
        )
        proposal = self.propose(inputs, batch, verified.hidden, merged, accepted, shifted)
        return StepOutputs.of(accepted, verified.logits, proposal, extra)

    def batch(
        self,
        inputs: BlockBatch,
        merged: Merged,
        draft_kv_collections: list[KVCacheInputsPerDevice] | None,
        passthrough_kv: Mapping[str, list[KVCacheInputsPerDevice]],
    ) -> SequentialBatch:
        """Phase 1: the inputs and the merged offsets, once for everybody."""
        drafts = list(draft_kv_collections or inputs.kv_collections)
        offsets = [merged.offsets] * len(inputs.devices)
        return SequentialBatch(
            tokens=inputs.tokens,
            input_row_offsets=inputs.input_row_offsets,
            draft_tokens=inputs.draft_tokens,
            signal_buffers=inputs.signal_buffers,
            kv_collections=inputs.kv_collections,
            draft_kv_collections=drafts,
            passthrough_kv=passthrough_kv,
            draft_cache_lengths=[caches.cache_lengths for caches in drafts],
            return_n_logits=inputs.return_n_logits,
            distributed=inputs.distributed,
            batch_context_lengths=inputs.batch_context_lengths,
            ep_inputs=inputs.ep_inputs,
            devices=inputs.devices,
            data_parallel_degree=1,
            vision_embeddings=inputs.vision_embeddings,
            vision_scatter_indices=inputs.vision_scatter_indices,
            merged_tokens=merged.tokens,
            merged_offsets=merged.offsets,
            merged_offsets_per_dev=offsets,
            query_offsets_per_dev=offsets,
            extra=inputs.extra,
            num_accepted=None,
        )

    def propose(
        self,
        inputs: BlockBatch,
        batch: SequentialBatch,
        hidden: HiddenT,
        merged: Merged,
        accepted: Accepted,
        shifted: Shifted,
    ) -> Proposal:
        """K draft calls, packed into one proposal."""
        tokens = accepted.next_tokens.reshape([accepted.next_tokens.shape[0], 1])
        drafted: list[Drafted[StateT]] = []
        for step in range(self.draft.num_draft_tokens):
            rows = self._rows(inputs, merged, accepted, tokens, step)
            call = DraftCall(rows=rows, slots=inputs.draft_slot_ids, temperature=inputs.sampling.temperature)
            if step == 0:
                made = self.draft.prefill(batch, hidden, shifted, call)
            else:
                made = self.draft.decode(self._advanced(batch, rows), drafted[-1].state, call)
            drafted.append(made)
            tokens = made.tokens
        return _pack(drafted)

    def _rows(
        self, inputs: BlockBatch, merged: Merged, accepted: Accepted, tokens: TensorValue, step: int
    ) -> DraftRows:
        return sequential_ops.draft_rows(
            inputs.draft_slot_ids,
            inputs.input_row_offsets,
            inputs.kv_collections[0].cache_lengths,
            accepted.num_accepted,
            merged.logit_rows,
            tokens,
            inputs.sampling.seed,
            inputs.sampling.acceptance,
            ops.constant([step], DType.int32, inputs.device0),
        )

    def _advanced(self, batch: SequentialBatch, rows: DraftRows) -> SequentialBatch:
        """The batch of a one-row call: the draft cache holds every row before it."""
        lengths = [rows.lengths] * batch.n_devs
        own = self.draft.draft_cache is DraftCache.OWN
        passthrough = dict(batch.passthrough_kv)
        for name in self.draft.passthrough_decode_swaps:
            passthrough[name] = _at(batch.passthrough_kv[name], lengths)
        return replace(
            batch,
            draft_cache_lengths=lengths,
            draft_kv_collections=_at(batch.draft_kv_collections, lengths) if own else batch.draft_kv_collections,
            query_offsets_per_dev=[rows.ramp] * batch.n_devs,
            passthrough_kv=passthrough,
        )


def _at(caches: Sequence[KVCacheInputsPerDevice], lengths: Sequence[TensorValue]) -> list[KVCacheInputsPerDevice]:
    return [replace(one, cache_lengths=length) for one, length in zip(caches, lengths, strict=True)]


def _pack(drafted: Sequence[Drafted[StateT]]) -> Proposal:
    """[B, 1] a call as [B, K], and logits as one row a request and draft."""
    if len(drafted) == 1:
        one = drafted[0]
        return Proposal(draft_tokens=one.tokens, confidence=one.confidence, logits=one.logits)
    n, v = drafted[0].logits.shape
    stacked = ops.concat([made.logits.reshape([n, 1, v]) for made in drafted], axis=1)
    return Proposal(
        draft_tokens=ops.concat([made.tokens for made in drafted], axis=1),
        confidence=ops.concat([made.confidence for made in drafted], axis=1),
        logits=stacked.reshape([n * len(drafted), v]),
    )
