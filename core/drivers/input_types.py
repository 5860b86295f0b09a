"""The step graph's signature: one list of named inputs that builds the graph, decodes its values and can be shown.

Order (brackets: only when the graph has it): tokens, vision rows, row offsets [host copy], logit count, [replica
splits], [signal buffers], cache leaves, cache lengths, lookup table, draft tokens, sampling, draft slots, [grammar
masks], then the model's own, and last the placeholder that carries the merged row count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from max.dtype import DType
from max.graph import BufferType, DeviceRef, TensorType, TensorValue, Value

from specdecode.core.batch import BlockBatch, BlockCaches, Sampling, StructuredOutput
from specdecode.core.cache.leaves import LEAVES

MERGED_ROWS_DIM = "merged_rows"
FOLLOWING = "draft_next_tokens"
"""Input int64 [B]: the token behind a prompt chunk that is not its last, -1 otherwise."""
SHIFTED_ROWS = "shifted_rows"
"""Input int8 [E]: its length is the merged rows, or 0 where nobody drafts."""
GraphInput: TypeAlias = TensorType | BufferType
CPU = DeviceRef.CPU()


@dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """How to speculate: draft tokens per step (at most the checkpoint's block), by which method."""

    num_speculative_tokens: int
    method: str = "dspark"


@dataclass(frozen=True, kw_only=True)
class NamedInput:
    """One graph input: its name, its type, and what it means to a reader."""

    name: str
    type: GraphInput
    meaning: str


@dataclass(frozen=True, kw_only=True)
class SpecDecodeInputTypeSpec:
    """What the canonical inputs look like for a model.

    Attributes:
        device: where batch-wide tensors live.
        hidden_size: width of an image row.
        vocab_size: bits of a grammar mask row.
        leaves: cache leaf name -> shape behind the page dimension.
    """

    device: DeviceRef
    hidden_size: int
    vocab_size: int
    leaves: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def inputs(self, *, structured_output: bool, trailing: Iterable[NamedInput] = ()) -> list[NamedInput]:
        """Every input in graph order."""
        return [
            *self._tokens(),
            *self._caches(),
            *self._speculation(),
            *self._masks(structured_output),
            *trailing,
            _in(
                MERGED_ROWS_DIM,
                TensorType(DType.int8, [MERGED_ROWS_DIM], CPU),
                "its length is the merged rows",
            ),
        ]

    def _tokens(self) -> list[NamedInput]:
        d = self.device
        return [
            _in("tokens", TensorType(DType.int64, ["total_tokens"], d), "new token ids of all requests"),
            _in(
                "vision_embeddings",
                TensorType(DType.bfloat16, ["image_rows", self.hidden_size], d),
                "image rows (none: text only)",
            ),
            _in("vision_scatter_indices", TensorType(DType.int32, ["image_rows"], d), "their rows in tokens"),
            _in(
                "input_row_offsets",
                TensorType(DType.uint32, ["input_row_offsets_len"], d),
                "where each request's tokens begin, and the end",
            ),
            _in("return_n_logits", TensorType(DType.int64, [1], CPU), "logits wanted per request"),
        ]

    def _caches(self) -> list[NamedInput]:
        d = self.device
        leaves = [
            _in(
                f"kv_{name}",
                BufferType(DType.float32, ["num_pages", *self.leaves[name]], d),
                f"{name} cache leaf",
            )
            for name in LEAVES
        ]
        return [
            *leaves,
            _in(
                "cache_lengths",
                TensorType(DType.uint32, ["batch"], d),
                "tokens in the caches before this step",
            ),
            _in(
                "lookup_table",
                TensorType(DType.uint32, ["batch", "request_pages"], d),
                "physical page of each logical page",
            ),
        ]

    def _speculation(self) -> list[NamedInput]:
        d = self.device

        def row(name: str, dtype: DType, meaning: str) -> NamedInput:
            return _in(name, TensorType(dtype, ["batch"], d), meaning)

        return [
            _in(
                "draft_tokens",
                TensorType(DType.int64, ["batch", "num_draft_tokens"], d),
                "proposals to verify; -1: none here and after",
            ),
            _in(
                "draft_probs_full",
                TensorType(DType.float32, ["batch", "draft_probs_rows", self.vocab_size], d),
                "the drafter's probabilities, for ratio tests; no rows: none",
            ),
            row("seed", DType.uint64, "key of the request's draws"),
            row("temperature", DType.float32, "below 1e-5: argmax"),
            row("top_k", DType.int64, "0 or less: all"),
            _in("max_k", TensorType(DType.int64, [], CPU), "largest top_k, -1 if any is unlimited"),
            row("top_p", DType.float32, "1: all"),
            _in("min_top_p", TensorType(DType.float32, [], CPU), "smallest top_p"),
            row("min_p", DType.float32, "share of the best token's probability; 0: all"),
            row("acceptance", DType.int32, "0 sample-and-match, 1 rejection, 2 block verification"),
            _in(
                "penalties",
                TensorType(DType.float32, ["batch", 3], d),
                "repetition (1: none), frequency, presence (0: none)",
            ),
            row("free_from", DType.uint32, "position from which banned tokens are allowed"),
            *self._edits(),
            _in(
                "draft_slot_ids",
                TensorType(DType.int32, ["draft_rows"], d),
                "rows of the next draft block; none skips the drafter",
            ),
            _in(
                "draft_block_offsets",
                TensorType(DType.uint32, ["draft_block_offsets_len"], d),
                "where each drafting request's block begins, and the end",
            ),
        ]

    def _edits(self) -> list[NamedInput]:
        d = self.device
        entries = (
            ("edit_tokens", DType.int32, "tokens whose logits are edited, each once a request"),
            ("edit_marks", DType.int32, "1 banned, 2 seen, 4 each time in the output"),
            ("edit_bias", DType.float32, "added to the logit"),
        )
        ends = TensorType(DType.uint32, ["edit_offsets_len"], d)
        return [
            _in("edit_offsets", ends, "where each request's edits begin, and the end"),
            *(_in(name, TensorType(dtype, ["edits"], d), meaning) for name, dtype, meaning in entries),
        ]

    def _masks(self, structured_output: bool) -> list[NamedInput]:
        if not structured_output:
            return []
        shape = ["batch", "mask_rows", -(-self.vocab_size // 32)]
        return [
            _in("pinned_bitmask", TensorType(DType.int32, shape, CPU), "allowed tokens after each draft"),
            _in("wait_payload", BufferType(DType.int64, [2], CPU), "tells a device that the mask is filled"),
            _in(
                "device_bitmask_scratch",
                BufferType(DType.int32, shape, self.device),
                "room for a device's copy of the mask",
            ),
        ]


def _in(name: str, kind: GraphInput, meaning: str) -> NamedInput:
    return NamedInput(name=name, type=kind, meaning=meaning)


def decode(inputs: Sequence[NamedInput], values: Sequence[Value[Any]], device: DeviceRef) -> BlockBatch:
    """The values of a graph's inputs as a batch; names that no phase knows go to `extra`."""
    named: dict[str, Any] = {
        known.name: value.buffer if isinstance(known.type, BufferType) else value.tensor
        for known, value in zip(inputs, values, strict=True)
    }

    def take(name: str) -> TensorValue:
        value: TensorValue = named.pop(name)
        return value

    caches = BlockCaches(
        leaves={name: named.pop(f"kv_{name}") for name in LEAVES},
        cache_lengths=take("cache_lengths"),
        lookup_table=take("lookup_table"),
    )
    masks = None
    if "pinned_bitmask" in named:
        masks = StructuredOutput(
            pinned_bitmask=take("pinned_bitmask"),
            wait_payload=named.pop("wait_payload"),
            device_bitmask_scratch=named.pop("device_bitmask_scratch"),
        )
    names = (
        "tokens",
        "input_row_offsets",
        "draft_tokens",
        "draft_probs_full",
        "return_n_logits",
        "draft_slot_ids",
        "draft_block_offsets",
        MERGED_ROWS_DIM,
    )
    sampling = Sampling(**{name: take(name) for name in Sampling.__dataclass_fields__})
    return BlockBatch(
        **{name: take(name) for name in names},
        kv_collections=[caches],
        sampling=sampling,
        structured_output=masks,
        devices=[device],
        vision_embeddings=[take("vision_embeddings")],
        vision_scatter_indices=[take("vision_scatter_indices")],
        extra=named,
    )
