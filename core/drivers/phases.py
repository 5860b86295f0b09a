"""The phases that block and sequential drivers share: merge and accept."""

from __future__ import annotations

from dataclasses import dataclass

from max.graph import TensorValue, ops

from specdecode.core.batch import Accepted, BlockBatch
from specdecode.core.kernels import step_ops
from specdecode.core.kernels.step_ops import Merged


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Widths of the selections that a target's layers pass on, empty before the first: chosen rows and blocks."""

    chosen: int
    blocks: int


def merge(inputs: BlockBatch, selection: Selection) -> Merged:
    """Each request's tokens, then its drafts, as one ragged batch."""
    return step_ops.merge(
        inputs.tokens,
        inputs.input_row_offsets,
        inputs.draft_tokens,
        inputs.kv_collections[0].cache_lengths,
        inputs.merged_rows,
        chosen=selection.chosen,
        blocks=selection.blocks,
    )


def whole_cache_lengths(inputs: BlockBatch) -> TensorValue:
    """The cache lengths uint32 [B] of all requests, on the first device."""
    lengths = [caches.cache_lengths for caches in inputs.kv_collections]
    if inputs.data_parallel_degree == 1:
        return lengths[0]
    return ops.concat([own.to(inputs.device0) for own in lengths]).rebind(inputs.sampling.seed.shape)


def accept(inputs: BlockBatch, logits: TensorValue) -> Accepted:
    """Verify the drafts under the target's law, which edits, grammar masks and limits belong to.

    Sample and match draws the target's token at every verified row and accepts drafts while they equal it. It is
    exact for any drafter, because the mismatching draw itself is committed; the draws are keyed by (seed, position),
    so the committed tokens are those of plain decoding. Requests may ask for a ratio test against the drafter's
    probabilities instead. The masking of MAX's own driver is in the kernel, where illegal tokens never are drawn.
    """
    masks = inputs.structured_output
    accepted, tokens, finite = step_ops.verify(
        logits,
        inputs.draft_tokens,
        inputs.input_row_offsets,
        whole_cache_lengths(inputs),
        inputs.draft_probs_full,
        inputs.sampling.law(),
        bitmask=None if masks is None else masks.pinned_bitmask,
    )
    return Accepted(num_accepted=accepted, next_tokens=tokens, finite=finite)
