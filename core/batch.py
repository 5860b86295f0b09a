"""The vocabulary of a speculative step: what the phases of a driver hand to each other.

Everything here is graph values. Shapes: S tokens, B requests, K draft tokens per request, M = S + B K merged rows,
N draft-block rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from max.graph import BufferValue, DeviceRef, Dim, TensorValue, Value

HiddenT = TypeVar("HiddenT")


@dataclass(frozen=True, kw_only=True)
class DistributedInputs:
    """Inputs that only a graph whose devices have requests of their own has.

    Attributes:
        host_input_row_offsets: uint32 [B + 1] on the CPU.
        data_parallel_splits: int64 [replicas + 1] on the CPU, request boundaries of the replicas.
    """

    host_input_row_offsets: TensorValue
    data_parallel_splits: TensorValue


@dataclass(frozen=True, kw_only=True)
class BlockCaches:
    """The paged cache of one device: leaves that share one lookup table.

    Attributes:
        leaves: name -> buffer [pages, 1, layers, slots, 1, dim].
        cache_lengths: uint32 [B], tokens of each request that the caches held before this step.
        lookup_table: uint32 [B, pages] physical page of each logical page.
    """

    leaves: Mapping[str, BufferValue]
    cache_lengths: TensorValue
    lookup_table: TensorValue


KVCacheInputsPerDevice: TypeAlias = BlockCaches
"""The name that MAX's page of `SequentialBatch` gives it."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Per-request sampling inputs.

    Attributes:
        seed, temperature, top_k, top_p, min_p: uint64, float32, int64 (<= 0: all), float32, float32 (0: all); [B].
        max_k, min_top_p: int64 [] and float32 [] on the CPU, extremes of the batch for kernels that size themselves
            by them.
        acceptance: int32 [B], 0 sample-and-match, 1 rejection, 2 block verification.
        penalties: float32 [B, 3]: repetition, frequency, presence.
        free_from: uint32 [B], the position from which banned tokens are allowed.
        edit_offsets: uint32 [B + 1] into edit_tokens, edit_marks int32 and edit_bias float32 [E]; a request that
            penalises has at least one edit, its prompt's tokens being seen.
    """

    seed: TensorValue
    temperature: TensorValue
    top_k: TensorValue
    max_k: TensorValue
    top_p: TensorValue
    min_top_p: TensorValue
    min_p: TensorValue
    acceptance: TensorValue
    penalties: TensorValue
    free_from: TensorValue
    edit_offsets: TensorValue
    edit_tokens: TensorValue
    edit_marks: TensorValue
    edit_bias: TensorValue

    def law(self) -> list[TensorValue]:
        """What verification takes behind the drafters' probabilities, in its order."""
        return [
            self.seed,
            self.temperature,
            self.top_k,
            self.top_p,
            self.min_p,
            self.acceptance,
            self.penalties,
            self.free_from,
            self.edit_offsets,
            self.edit_tokens,
            self.edit_marks,
            self.edit_bias,
        ]


@dataclass(frozen=True, kw_only=True)
class StructuredOutput:
    """Grammar masks: pinned_bitmask int32 [B, P, V/32] (row i: after i drafts; P = 0: none), and its buffers."""

    pinned_bitmask: TensorValue
    wait_payload: BufferValue
    device_bitmask_scratch: BufferValue


@dataclass(frozen=True, kw_only=True)
class BlockBatch:
    """One step's graph inputs, decoded.

    Attributes:
        tokens: int64 [S] each request's new tokens, ragged by input_row_offsets uint32 [B + 1].
        draft_tokens: int64 [B, K] the previous step's proposals; -1 where there is none, and after it.
        draft_probs_full: float32 [B, K or 0, V], what they were drawn from, for ratio tests.
        return_n_logits: int64 [1] on the CPU.
        kv_collections: the caches, one entry per device.
        sampling: per-request sampling inputs.
        draft_slot_ids: int32 [N] rows of the next draft block, request * block + place; none skips the drafter.
        draft_block_offsets: uint32 [drafting requests + 1], 0, block, 2 block …
        merged_rows: int8 [M], a placeholder whose length is the merged row count.
        structured_output: grammar masks, when the graph has them.
        data_parallel_degree: replicas that the requests are divided into, in order.
        distributed, batch_context_lengths, ep_inputs: under data parallelism only; the last are the devices' buffers
            [ep_rows, D] of experts' results.
        signal_buffers: several real devices only.
        vision_embeddings, vision_scatter_indices: image rows per device; a text step has zero rows.
        extra: the model's own inputs by name, carried unread.
    """

    tokens: TensorValue
    input_row_offsets: TensorValue
    draft_tokens: TensorValue
    draft_probs_full: TensorValue
    return_n_logits: TensorValue
    kv_collections: list[BlockCaches]
    sampling: Sampling
    draft_slot_ids: TensorValue
    draft_block_offsets: TensorValue
    merged_rows: TensorValue
    devices: Sequence[DeviceRef]
    structured_output: StructuredOutput | None = None
    data_parallel_degree: int = 1
    distributed: DistributedInputs | None = None
    signal_buffers: list[BufferValue] = field(default_factory=list)
    batch_context_lengths: list[TensorValue] = field(default_factory=list)
    ep_inputs: list[Value[Any]] | None = None
    vision_embeddings: list[TensorValue] = field(default_factory=list)
    vision_scatter_indices: list[TensorValue] = field(default_factory=list)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_draft_tokens(self) -> Dim:
        """How many tokens the previous step proposed per request, K."""
        return self.draft_tokens.shape[1]

    @property
    def device0(self) -> DeviceRef:
        """The device that owns the batch-wide tensors."""
        return self.devices[0]

    @property
    def dist(self) -> DistributedInputs:
        """`distributed`, for a model that cannot run without it.

        Raises:
            ValueError: on a single-device graph: the model was wired for several devices.
        """
        return _wired(self.distributed)


@dataclass(frozen=True)
class SequentialBatch:
    """One iteration's graph inputs, merged and broadcast: what a sequential driver hands to target and drafter.

    Built by the driver in its first phase, so that the target, the drafter and the loop over draft calls read the same
    merged offsets. Fields and meanings are those of MAX's page `max.pipelines.speculative.driver.SequentialBatch`.

    Attributes:
        tokens: int64 [S]; input_row_offsets: uint32 [B + 1]; draft_tokens: int64 [B, K].
        signal_buffers: several devices only.
        kv_collections: the target's caches, one entry per device.
        draft_kv_collections: the drafter's; their cache_lengths advance with the draft calls.
        passthrough_kv: further cache leaves by the model's name; only those that the drafter lists in
            `passthrough_decode_swaps` follow the draft calls.
        draft_cache_lengths: uint32 [B] per device, rows that the draft cache held before this call: always the
            cache_lengths of draft_kv_collections, except for a drafter that reads a cache it does not own, where it
            is a RoPE position and the collections keep the lengths they came in with.
        return_n_logits: int64 [1] on the CPU.
        distributed: inputs of several devices; None on one.
        batch_context_lengths, ep_inputs: several devices only.
        vision_embeddings, vision_scatter_indices: image rows per device; the target's, no phase reads them.
        merged_tokens: int64 [M], each request's tokens and drafts.
        merged_offsets: uint32 [B + 1] of them; merged_offsets_per_dev: the same on every device, stable across the
            loop.
        query_offsets_per_dev: offsets over this draft call's rows: the merged ones in call 0, one row a request after.
        extra: inputs that the driver carries and never reads, by the model's names.
        num_accepted: int64 [B] drafts accepted; None before the accept, set for the whole propose phase.
    """

    tokens: TensorValue
    input_row_offsets: TensorValue
    draft_tokens: TensorValue
    signal_buffers: list[BufferValue]
    kv_collections: list[KVCacheInputsPerDevice]
    draft_kv_collections: list[KVCacheInputsPerDevice]
    passthrough_kv: Mapping[str, list[KVCacheInputsPerDevice]]
    draft_cache_lengths: list[TensorValue]
    return_n_logits: TensorValue
    distributed: DistributedInputs | None
    batch_context_lengths: list[TensorValue]
    ep_inputs: list[Value[Any]] | None
    devices: Sequence[DeviceRef]
    data_parallel_degree: int
    vision_embeddings: list[TensorValue]
    vision_scatter_indices: list[TensorValue]
    merged_tokens: TensorValue
    merged_offsets: TensorValue
    merged_offsets_per_dev: list[TensorValue]
    query_offsets_per_dev: list[TensorValue]
    extra: Mapping[str, Any]
    num_accepted: TensorValue | None

    @property
    def device0(self) -> DeviceRef:
        """The device that owns the batch-wide tensors."""
        return self.devices[0]

    @property
    def n_devs(self) -> int:
        """Number of devices that target and drafter are sharded across."""
        return len(self.devices)

    @property
    def num_draft_tokens(self) -> Dim:
        """How many tokens the previous iteration proposed, K."""
        return self.draft_tokens.shape[1]

    @property
    def dist(self) -> DistributedInputs:
        """`distributed`, for a model that cannot run without it.

        Raises:
            ValueError: on a single-device graph: the model was wired for several devices.
        """
        return _wired(self.distributed)


def _wired(distributed: DistributedInputs | None) -> DistributedInputs:
    if distributed is None:
        raise ValueError(
            "this graph has one device and therefore no distributed inputs, but a sharded model asked for them: "
            "build the graph with the devices that the model was sharded over"
        )
    return distributed


@dataclass(frozen=True, kw_only=True)
class Verified(Generic[HiddenT]):
    """The target's verdict material: logits float32 [B (K + 1), V], and what its drafter wants of the hidden states."""

    logits: TensorValue
    hidden: HiddenT


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The result of acceptance.

    Attributes:
        num_accepted: int64 [B] drafts accepted.
        next_tokens: int64 [B] corrected token at the first mismatch, or the bonus.
        finite: int32 [B], 0 where a row that was read held NaN or infinity.
    """

    num_accepted: TensorValue
    next_tokens: TensorValue
    finite: TensorValue


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The next block: draft_tokens int64 and raw confidence float32 [B, block], logits float32 [N, V].

    Requests that did not draft have -1 and 0.
    """

    draft_tokens: TensorValue
    confidence: TensorValue
    logits: TensorValue


@dataclass(frozen=True, kw_only=True)
class StepOutputs:
    """What a step's graph returns, in order."""

    num_accepted: TensorValue
    next_tokens: TensorValue
    next_draft_tokens: TensorValue
    confidence: TensorValue
    finite: TensorValue
    logits: TensorValue
    draft_logits: TensorValue
    extra: Sequence[TensorValue] = ()

    @classmethod
    def of(
        cls, accepted: Accepted, logits: TensorValue, proposal: Proposal, extra: Sequence[TensorValue]
    ) -> StepOutputs:
        """From what the phases of a step gave."""
        return cls(
            num_accepted=accepted.num_accepted,
            next_tokens=accepted.next_tokens,
            next_draft_tokens=proposal.draft_tokens,
            confidence=proposal.confidence,
            finite=accepted.finite,
            logits=logits,
            draft_logits=proposal.logits,
            extra=extra,
        )

    def values(self) -> tuple[TensorValue, ...]:
        """The graph's outputs, the model's own last."""
        return (
            self.num_accepted,
            self.next_tokens,
            self.next_draft_tokens,
            self.confidence,
            self.finite,
            self.logits,
            self.draft_logits,
            *self.extra,
        )
