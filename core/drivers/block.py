"""Block speculation: one draft pass proposes a whole block.

merge -> verify -> accept -> materialise -> block -> head, in one graph, with nothing read back in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from max.graph import TensorValue

from specdecode.core.batch import Accepted, BlockBatch, Proposal, StepOutputs, Verified
from specdecode.core.drivers.phases import accept

HiddenT = TypeVar("HiddenT")
MergedT = TypeVar("MergedT")
HiddenT_in = TypeVar("HiddenT_in", contravariant=True)


class BlockTarget(Protocol[MergedT, HiddenT]):
    """The target's role in a step."""

    def merge(self, batch: BlockBatch) -> MergedT:
        """Each request's tokens, then its drafts, where the target runs them."""
        ...

    def verify(self, batch: BlockBatch, merged: MergedT) -> Verified[HiddenT]:
        """Run the merged rows through the target; every row's caches are written."""
        ...

    def finish(self, batch: BlockBatch, hidden: HiddenT, accepted: Accepted) -> Sequence[TensorValue]:
        """The model's own outputs of the step, once it is known how far it got."""
        ...


class BlockProposer(Protocol[HiddenT_in]):
    """The drafter's role in a step."""

    def materialize(self, batch: BlockBatch, hidden: HiddenT_in) -> None:
        """Store the drafter's context rows, one per merged row; a draft reads only committed ones."""
        ...

    def forward_block(self, batch: BlockBatch, hidden: HiddenT_in, accepted: Accepted) -> Proposal:
        """Draft the block after each request's next token, for the requests that `draft_slot_ids` names."""
        ...


class BlockDriver(Generic[MergedT, HiddenT]):
    """Builds the step's graph from a target and a block drafter."""

    def __init__(self, target: BlockTarget[MergedT, HiddenT], draft: BlockProposer[HiddenT]) -> None:
        self.target, self.draft = target, draft

    def __call__(self, batch: BlockBatch) -> StepOutputs:
        """The whole step: merge, verify, accept, materialise, draft."""
        verified = self.target.verify(batch, self.target.merge(batch))
        accepted = accept(batch, verified.logits)
        extra = self.target.finish(batch, verified.hidden, accepted)
        self.draft.materialize(batch, verified.hidden)
        proposal = self.draft.forward_block(batch, verified.hidden, accepted)
        return StepOutputs.of(accepted, verified.logits, proposal, extra)
