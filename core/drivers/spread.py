"""One batch on several devices: what each of them runs, and their results together again.

Tensor parallel: every device has the whole batch. Data parallel: the batch is replica-major, and a device has its own
requests; nothing but the two host copies (row offsets and splits) tells where they begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from max.dtype import DType
from max.graph import Dim, TensorValue, ops

from specdecode.core.batch import Accepted, BlockBatch, Sampling

LOOKBACK_PER_REQUEST = ("engram_lookback_ids", "engram_lookback_source")
LOOKBACK_HISTORY = "engram_lookback_history"


class Spread:
    """The parts of a batch.

    Args:
        batch: the whole batch.
        block: rows of a request's draft block.

    Attributes:
        parts: each device's batch, on that device.
    """

    def __init__(self, batch: BlockBatch, *, block: int) -> None:
        self.whole, self._block = batch, block
        self._first = self._tokens = self._rows = self._slots = None
        if batch.data_parallel_degree > 1:
            self._bounds()
        self.parts = [self._part(rank) for rank in range(len(batch.devices))]

    @property
    def replicated(self) -> bool:
        """Whether every device has all requests."""
        return self.whole.data_parallel_degree == 1

    def accepted(self, accepted: Accepted) -> list[Accepted]:
        """The whole batch's verdicts as each device's."""
        return [
            Accepted(
                num_accepted=self.requests(accepted.num_accepted, rank),
                next_tokens=self.requests(accepted.next_tokens, rank),
                finite=self.requests(accepted.finite, rank),
            )
            for rank in range(len(self.parts))
        ]

    def together(self, parts: Sequence[TensorValue], rows: Dim | None = None) -> TensorValue:
        """Values of all replicas on the first device, in order; without replicas the first device's own.

        rows: how many they are, where the graph knows a name for it.
        """
        if self.replicated:
            return parts[0]
        joined = ops.concat([part.to(self.whole.device0) for part in parts])
        return joined if rows is None else joined.rebind([rows, *joined.shape[1:]])

    def requests(self, x: TensorValue, rank: int) -> TensorValue:
        """What a device has of a batch-wide value [B, …]."""
        if self.replicated:
            return x.to(self.whole.devices[rank])
        return _cut(x, self._first, rank, f"batch_{rank}").to(self.whole.devices[rank])

    def row_starts(self) -> list[TensorValue]:
        """int32 [1] on each rank's device, for every replica: its first merged row among those of all."""
        return self._starts(self._rows)

    def slot_starts(self) -> list[TensorValue]:
        """The same of the draft rows."""
        return self._starts(self._slots)

    def _starts(self, bounds: TensorValue | None) -> list[TensorValue]:
        assert bounds is not None
        starts = ops.cast(bounds, DType.int32)
        return [starts[rank].reshape([1]) for rank in range(len(self.parts))]

    def _bounds(self) -> None:
        """Where each replica's requests, tokens, merged rows and draft rows begin, and the ends; int64 on the CPU."""
        splits = self.whole.dist.data_parallel_splits
        offsets = ops.cast(self.whole.dist.host_input_row_offsets, DType.int64)
        width = ops.shape_to_tensor([self.whole.num_draft_tokens]).reshape([1])
        # All requests draft or none, so the draft rows of the first b requests are b blocks or nothing.
        slots = ops.shape_to_tensor([self.whole.draft_slot_ids.shape[0]]).reshape([1])
        self._first = splits
        self._tokens = ops.gather(offsets, splits, axis=0)
        self._rows = self._tokens + splits * width
        self._slots = ops.min(splits * ops.constant([self._block], DType.int64, splits.device), slots)

    def _part(self, rank: int) -> BlockBatch:
        batch, device = self.whole, self.whole.devices[rank]
        per_device = replace(
            batch,
            kv_collections=[batch.kv_collections[rank]],
            devices=[device],
            vision_embeddings=[batch.vision_embeddings[rank]],
            vision_scatter_indices=[batch.vision_scatter_indices[rank]],
            extra=self._extra(rank),
            draft_tokens=self.requests(batch.draft_tokens, rank),
        )
        if self.replicated:
            return replace(
                per_device,
                tokens=batch.tokens.to(device),
                input_row_offsets=batch.input_row_offsets.to(device),
                draft_slot_ids=batch.draft_slot_ids.to(device),
                draft_block_offsets=batch.draft_block_offsets.to(device),
            )
        return replace(
            per_device,
            tokens=_cut(batch.tokens, self._tokens, rank, f"total_tokens_{rank}").to(device),
            input_row_offsets=self._offsets(rank).to(device),
            draft_slot_ids=self._slot_ids(rank).to(device),
            merged_rows=_cut(batch.merged_rows, self._rows, rank, f"merged_rows_{rank}"),
            sampling=self._sampling(rank),
        )

    def _offsets(self, rank: int) -> TensorValue:
        """The row offsets of a replica, from 0."""
        assert self._first is not None
        assert self._tokens is not None
        offsets = self.whole.input_row_offsets
        stop = self._first[rank + 1] + 1
        own = ops.slice_tensor(offsets, [(slice(self._first[rank], stop), f"input_row_offsets_len_{rank}")])
        return own - _on(self._tokens[rank], own)

    def _slot_ids(self, rank: int) -> TensorValue:
        """The draft rows of a replica, its first request being 0."""
        assert self._first is not None
        own = _cut(self.whole.draft_slot_ids, self._slots, rank, f"draft_rows_{rank}")
        return own - _on(self._first[rank] * self._block, own)

    def _sampling(self, rank: int) -> Sampling:
        """What a drafter reads of a replica's sampling inputs; the rest stays the whole batch's."""
        whole = self.whole.sampling
        return replace(
            whole,
            seed=self.requests(whole.seed, rank),
            temperature=self.requests(whole.temperature, rank),
            acceptance=self.requests(whole.acceptance, rank),
        )

    def _extra(self, rank: int) -> dict[str, object]:
        """The model's own inputs by their names on one device."""
        own: dict[str, object] = {}
        for name, value in self.whole.extra.items():
            stem, _, last = name.rpartition(".")
            if name in LOOKBACK_PER_REQUEST:
                own[name] = self.requests(value, rank)
            elif name == LOOKBACK_HISTORY:  # one for all replicas: sources count rows of the whole batch
                own[name] = value.to(self.whole.devices[rank])
            elif last == str(rank):
                own[stem] = value
        return own


def _cut(x: TensorValue, bounds: TensorValue | None, rank: int, dim: str) -> TensorValue:
    """Rows bounds[rank] … bounds[rank + 1] - 1 of x."""
    assert bounds is not None
    return ops.slice_tensor(x, [(slice(bounds[rank], bounds[rank + 1]), dim), *[slice(None)] * (x.rank - 1)])


def _on(scalar: TensorValue, like: TensorValue) -> TensorValue:
    """A number on the CPU as one that can be taken from `like`."""
    return ops.cast(scalar.reshape([1]), like.dtype).to(like.device)
