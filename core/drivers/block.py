"""Block speculation: one draft pass proposes a whole block.

merge -> verify -> accept -> materialise -> block -> head, in one graph, with nothing read back in between. Merging
belongs to the target here, since its kernels take merged rows; the driver owns the order and the acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from max.graph import TensorValue

from specdecode.core.batch import Accepted, BlockBatch, Proposal, StepOutputs, Verified
from specdecode.core.kernels import step_ops

HiddenT = TypeVar("HiddenT")
HiddenT_in = TypeVar("HiddenT_in", contravariant=True)


class BlockTarget(Protocol[HiddenT]):
    """The target's role in a step."""

    def verify(self, batch: BlockBatch) -> Verified[HiddenT]:
        """Run tokens and drafts through the target; every row's caches are written."""
        ...

    def finish(self, batch: BlockBatch, hidden: HiddenT, accepted: Accepted) -> Sequence[TensorValue]:
        """The model's own outputs of the step, once it is known how far it got."""
        ...


class BlockProposer(Protocol[HiddenT_in]):
    """The drafter's role in a step."""

    def materialize(self, batch: BlockBatch, hidden: HiddenT_in) -> None:
        """Store the drafter's context rows, one per merged row; a draft reads only committed ones."""
        ...

    def forward_block(self, batch: BlockBatch, accepted: Accepted) -> Proposal:
        """Draft the block after each request's next token, for the requests that `draft_slot_ids` names."""
        ...


class BlockDriver(Generic[HiddenT]):
    """Builds the step's graph from a target and a block drafter."""

    def __init__(self, target: BlockTarget[HiddenT], draft: BlockProposer[HiddenT]) -> None:
        self.target, self.draft = target, draft

    def __call__(self, batch: BlockBatch) -> StepOutputs:
        """The whole step: verify, accept, materialise, draft."""
        verified = self.target.verify(batch)
        accepted = self.accept(batch, verified.logits)
        extra = self.target.finish(batch, verified.hidden, accepted)
        self.draft.materialize(batch, verified.hidden)
        proposal = self.draft.forward_block(batch, accepted)
        return StepOutputs(
            num_accepted=accepted.num_accepted,
            next_tokens=accepted.next_tokens,
            next_draft_tokens=proposal.draft_tokens,
            confidence=proposal.confidence,
            finite=accepted.finite,
            logits=verified.logits,
            draft_logits=proposal.logits,
            extra=extra,
        )

    def accept(self, batch: BlockBatch, logits: TensorValue) -> Accepted:
        """Verify the drafts under the target's law, which edits, grammar and limits belong to.

        Sample and match draws the target's token at every verified row and accepts drafts while they equal it. It is
        exact for any drafter, because the mismatching draw itself is committed; the draws are keyed by
        (seed, position), so the committed tokens are those of plain decoding. Requests may ask for a ratio test
        against the drafter's probabilities instead.
        """
        masks = batch.structured_output
        accepted, tokens, finite = step_ops.verify(
            logits,
            batch.draft_tokens,
            batch.input_row_offsets,
            batch.kv_collections[0].cache_lengths,
            batch.draft_probs_full,
            batch.sampling.law(),
            bitmask=None if masks is None else masks.pinned_bitmask,
        )
        return Accepted(num_accepted=accepted, next_tokens=tokens, finite=finite)
