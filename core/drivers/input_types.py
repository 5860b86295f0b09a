"""The step graph's signature: one list of named inputs that builds the graph, decodes its values and can be shown.

Order (brackets: only when the graph has it): tokens, vision rows, row offsets [host copy], logit count, [replica
splits], [signal buffers], cache leaves, cache lengths, lookup table, [context lengths], [expert-parallel buffers],
draft tokens, sampling, draft slots, [grammar masks], then the model's own, and last the placeholder that carries the
merged row count. What every device has comes device after device, its name followed by the rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from max.dtype import DType
from max.graph import BufferType, DeviceRef, TensorType

from specdecode.core.cache.leaves import LEAVES
from specdecode.core.device_layout import DeviceLayout

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
        layout: the devices; the first has the batch-wide tensors.
        hidden_size: width of an image row.
        vocab_size: bits of a grammar mask row.
        leaves: cache leaf name -> shape behind the page dimension.
    """

    layout: DeviceLayout
    hidden_size: int
    vocab_size: int
    leaves: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def device(self) -> DeviceRef:
        """Where batch-wide tensors live."""
        return self.layout.first

    def each(self, name: str, meaning: str, kind: Callable[[DeviceRef, int], GraphInput]) -> list[NamedInput]:
        """One input per device; `kind` makes its type from the device and its rank."""
        return [
            _in(self.layout.named(name, rank), kind(device, rank), meaning)
            for rank, device in enumerate(self.layout.devices)
        ]

    def replica(self, dim: str, rank: int) -> str:
        """A dimension that counts what a replica has: the whole batch's, or under data parallelism the rank's own."""
        return f"{dim}_{rank}" if self.layout.data_parallel else dim

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
        d, d_model, host = self.device, self.hidden_size, self.layout.data_parallel
        offsets = ["input_row_offsets_len"]
        splits = TensorType(DType.int64, [self.layout.replicas + 1], CPU)
        return [
            _in("tokens", TensorType(DType.int64, ["total_tokens"], d), "new token ids of all requests"),
            *self.each(
                "vision_embeddings",
                "image rows (none: text only)",
                lambda device, rank: TensorType(DType.bfloat16, [self.image_rows(rank), d_model], device),
            ),
            *self.each(
                "vision_scatter_indices",
                "their rows in tokens",
                lambda device, rank: TensorType(DType.int32, [self.image_rows(rank)], device),
            ),
            _in(
                "input_row_offsets",
                TensorType(DType.uint32, offsets, d),
                "where each request's tokens begin, and the end",
            ),
            *([_in("host_input_row_offsets", TensorType(DType.uint32, offsets, CPU), "the same")] if host else []),
            _in("return_n_logits", TensorType(DType.int64, [1], CPU), "logits wanted per request"),
            *([_in("data_parallel_splits", splits, "first request of each replica, and the end")] if host else []),
            *self._signals(),
        ]

    def image_rows(self, rank: int) -> str:
        """The dimension of a device's image rows."""
        return self.layout.named("image_rows", rank).replace(".", "_")

    def _signals(self) -> list[NamedInput]:
        if not self.layout.signals:
            return []
        from max.nn.comm import Signals  # pulls in much that nobody else needs

        return self.each(
            "signal_buffer",
            "where the devices wait for each other",
            lambda device, _: BufferType(DType.uint8, [Signals.NUM_BYTES], device),
        )

    def _caches(self) -> list[NamedInput]:
        leaves = [leaf for name in LEAVES for leaf in self._leaf(name)]
        lengths = self.each(
            "cache_lengths",
            "tokens in the caches before this step",
            lambda device, rank: TensorType(DType.uint32, [self.replica("batch", rank)], device),
        )
        tables = self.each(
            "lookup_table",
            "physical page of each logical page",
            lambda device, rank: TensorType(
                DType.uint32, [self.replica("batch", rank), self.replica("request_pages", rank)], device
            ),
        )
        return [*leaves, *lengths, *tables, *self._expert_parallel()]

    def _leaf(self, name: str) -> list[NamedInput]:
        shape = ["num_pages", *self.leaves[name]]
        return self.each(f"kv_{name}", f"{name} cache leaf", lambda device, _: BufferType(DType.float32, shape, device))

    def _expert_parallel(self) -> list[NamedInput]:
        if not self.layout.data_parallel:
            return []
        contexts = self.each(
            "batch_context_length",
            "summed context of the replica",
            lambda _, __: TensorType(DType.int32, [1], CPU),
        )
        buffers = self.each(
            "ep_buffer",
            "results of this device's experts, a row for each choice of an expert",
            lambda device, _: BufferType(DType.float32, ["ep_rows", self.hidden_size], device),
        )
        return [*contexts, *buffers]

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
