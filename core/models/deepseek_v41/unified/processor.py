"""From step rows to graph inputs, in buffers that are reused from step to step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import numpy as np
from max.driver import Buffer
from max.graph import DeviceRef

from specdecode.core.cache.leaves import DeviceCaches, KVCacheInputs
from specdecode.core.device_layout import DeviceLayout
from specdecode.core.engine.step import StepRow
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig
from specdecode.core.models.deepseek_v41.unified.arrays import KeptArrays
from specdecode.core.models.deepseek_v41.unified.inputs import (
    LawInputs,
    SequentialInputs,
    UnifiedDSparkDeepseekV41Inputs,
    no_images,
)
from specdecode.core.models.deepseek_v41.unified.limits import (
    UNLIMITED,
    edits_size,
    fill_edits,
    limits,
    mask_rows,
    probs_rows,
)
from specdecode.core.models.deepseek_v41.unified.replicas import (
    context_lengths,
    expert_rows,
    splits_of,
    spread_caches,
)

if TYPE_CHECKING:
    from max.driver import Device

_SEEDS = 1 << 64


@dataclass(kw_only=True)
class BatchRuntime:
    """What a batch needs beside its rows.

    Attributes:
        leaves: the first device's cache leaves [pages, …].
        peers: the leaves of the other devices; on logical shards too, each has its own.
        layout: the devices.
        signal_buffers: one per device, where the layout needs them.
        page_size: tokens per page.
        engram_host_buffers: the Engram tables and scales in graph order; bound by the model when empty.
        num_draft_tokens: draft positions K of `prepare_initial_token_inputs`.
        draft: whether its steps draft the next block.
        structured_output: whether the graph takes grammar masks.
        drafter: the autoregressive drafter whose graph it is; None for the checkpoint's own block drafter.
        device: where the inputs are staged to; None on the CPU.
    """

    leaves: Mapping[str, Buffer]
    page_size: int
    engram_host_buffers: Sequence[Buffer] = ()
    num_draft_tokens: int = 0
    draft: bool = True
    structured_output: bool = False
    drafter: EagleConfig | None = None
    device: Device | None = None
    peers: Sequence[Mapping[str, Buffer]] = ()
    layout: DeviceLayout = field(default_factory=lambda: DeviceLayout.single(DeviceRef.CPU()))
    signal_buffers: Sequence[Buffer] = ()

    def __post_init__(self) -> None:
        counts = (1 + len(self.peers), len(self.signal_buffers))
        if counts != (self.layout.count, self.layout.signals):
            raise ValueError(
                f"{counts[0]} sets of leaves and {counts[1]} signal buffers, but {self.layout.count} devices need "
                f"{self.layout.count} and {self.layout.signals}"
            )


class UnifiedDSparkDeepseekV41BatchProcessor(KeptArrays):
    """Ragged batching with the sampling seeds and the Engram lookback window.

    The inputs of a call stay valid until the next one, which fills the same buffers in place. A step on the
    CPU has ended when `execute` returns, so nothing is overwritten that is still read.

    Args:
        config: the checkpoint's configuration.
        runtime: caches, tables and the draft width.
    """

    def __init__(self, config: DeepseekV41Config, runtime: BatchRuntime) -> None:
        super().__init__()
        self.config, self.runtime = config, runtime
        text = config.text_config
        self._block = text.dspark_block_size if runtime.drafter is None else runtime.drafter.num_draft_tokens
        # Rows of a drafting request's first call: its block, or the one token that an autoregressive drafter runs.
        self._slots = self._block if runtime.drafter is None else 1
        self._depth = text.engram_max_ngram_size - 1 if text.engram_layer_ids else 0
        self._all_leaves = (runtime.leaves, *runtime.peers)
        self._own_pages = min(leaf.shape[0] for leaves in self._all_leaves for leaf in leaves.values())
        self._pages = self._own_pages * runtime.layout.replicas
        self._no_images = no_images(text.hidden_size, runtime.layout.count)
        self._ep_buffers: tuple[Buffer, ...] = ()
        self._limited: set[tuple[str, tuple[int, ...]]] = set()
        self._vocab = text.vocab_size

    def bind_ep_buffers(self, buffers: Sequence[Buffer]) -> None:
        """Bind the expert-parallel buffers made at model load, float32 [rows, D], one per device.

        Raises:
            ValueError: another number of them than the layout needs, which is none without data parallelism.
        """
        layout = self.runtime.layout
        need = layout.count if layout.data_parallel else 0
        if len(buffers) != need:
            raise ValueError(f"{len(buffers)} expert-parallel buffers, but {layout} needs {need}")
        self._ep_buffers = tuple(buffers)

    def prepare_initial_token_inputs(
        self,
        replica_batches: Sequence[Sequence[StepRow]],
        kv_cache_inputs: KVCacheInputs | DeviceCaches | None = None,
        return_n_logits: int = 1,
    ) -> UnifiedDSparkDeepseekV41Inputs:
        """The inputs of one step at the runtime's draft width.

        Args:
            replica_batches: the requests of each replica; one batch without data parallelism.
            kv_cache_inputs: caches of the batch; None makes them from the rows and the runtime's leaves.
            return_n_logits: 1, the logits of each request's last token (and of its drafts).

        Raises:
            ValueError: another number of replicas or logits, a row among those of another replica, or a row that
                `prepare` refuses.
        """
        replicas = self.runtime.layout.replicas
        if len(replica_batches) != replicas:
            raise ValueError(f"{len(replica_batches)} replica batches, but this model has {replicas} replica(s)")
        if return_n_logits != 1:
            raise ValueError(f"return_n_logits is {return_n_logits}; the graph returns the last token's, so only 1")
        for replica, batch in enumerate(replica_batches):
            for row in batch:
                if row.pages and row.pages[0] // self._own_pages != replica:
                    raise ValueError(f"a row of replica {replica} has pages of another one: {row.pages}")
        return self.prepare(
            [row for batch in replica_batches for row in batch],
            width=self.runtime.num_draft_tokens,
            draft=self.runtime.draft,
            kv_cache_inputs=kv_cache_inputs,
        )

    def prepare(
        self,
        rows: Sequence[StepRow],
        *,
        width: int,
        draft: bool,
        kv_cache_inputs: KVCacheInputs | DeviceCaches | None = None,
        history: Buffer | None = None,
        sources: Sequence[int] | None = None,
    ) -> UnifiedDSparkDeepseekV41Inputs:
        """The inputs of one step.

        Args:
            rows: the requests, at least one.
            width: draft positions K; shorter rows are padded with -1.
            draft: whether to draft the next block.
            kv_cache_inputs: caches of the batch; None makes them from the rows and the runtime's leaves.
            history: int64 [rows, n - 1] `engram_lookback_history` of the previous step, still on the device.
            sources: row of the history that holds each request's lookback; -1 reads `StepRow.lookback`.

        Raises:
            ValueError: a row that does not fit the width, its pages or its lookback, a source that the history lacks,
                or under data parallelism rows that are not replica-major or too many for the experts' buffers.
        """
        if not rows or not 0 <= width <= self._block:
            raise ValueError(f"a step needs rows and a width of 0 to {self._block}: {len(rows)} rows, {width=}")
        for place, row in enumerate(rows):
            self._check(place, row, width)
        if self._drop_too_many():
            self._limited.clear()
        b = len(rows)
        fill = self._filled
        self._check_experts(rows, width, draft)
        caches = kv_cache_inputs if kv_cache_inputs is not None else self._caches(rows)
        ends = [0, *accumulate(len(row.tokens) for row in rows)]
        limited = self._limits(rows)
        law = LawInputs(min_p=limited.pop("min_p"), acceptance=limited.pop("acceptance"), **self._edits(rows))
        inputs = UnifiedDSparkDeepseekV41Inputs(
            tokens=fill("tokens", np.int64, (ends[-1],), list(chain.from_iterable(r.tokens for r in rows))),
            input_row_offsets=fill("input_row_offsets", np.uint32, (b + 1,), ends),
            return_n_logits=self._constant("return_n_logits", np.int64, (1,), 1),
            signal_buffers=list(self.runtime.signal_buffers),
            **self._distributed(rows, ends),
            **(self._lookback(rows, history, sources) if self._depth else {}),
            engram_host_buffers=self.runtime.engram_host_buffers,
            kv_cache_inputs=caches,
            vision_embeddings=self._no_images[0],
            vision_scatter_indices=self._no_images[1],
            draft_tokens=self._ragged("draft_tokens", np.int64, [r.draft_tokens for r in rows], width, -1),
            seed=fill("seed", np.uint64, (b,), [row.seed % _SEEDS for row in rows]),
            temperature=fill("temperature", np.float32, (b,), [row.temperature for row in rows]),
            draft_probs_full=self._draft_probs(rows, width),
            **limited,
            **self._masks(rows, width),
            draft_slot_ids=self._steps("draft_slot_ids", np.int32, b * self._slots if draft else 0, 1),
            draft_block_offsets=self._steps("draft_block_offsets", np.uint32, b + 1, self._slots if draft else 0),
        )
        inputs.law = law
        if self.runtime.drafter is not None:
            following = fill("draft_next_tokens", np.int64, (b,), [row.following for row in rows])
            inputs.sequential = SequentialInputs(draft_next_tokens=following, draft=draft)
        return inputs

    def _check(self, place: int, row: StepRow, width: int) -> None:
        """Refuse what a kernel would read or write past its end for."""
        if not row.tokens or len(row.draft_tokens) > width:
            raise ValueError(
                f"row {place} has {len(row.tokens)} tokens and {len(row.draft_tokens)} drafts; it needs "
                f"a token or more, and at most {width} drafts"
            )
        positions = row.cache_length + len(row.tokens) + width
        if len(row.pages) * self.runtime.page_size < positions:
            raise ValueError(f"row {place} has {len(row.pages)} pages of {self.runtime.page_size} for {positions} rows")
        self._check_pages(place, row)

    def _check_pages(self, place: int, row: StepRow) -> None:
        if not 0 <= min(row.pages) <= max(row.pages) < self._pages:
            raise ValueError(f"row {place} names a page outside the {self._pages} of the caches: {row.pages}")

    def _check_experts(self, rows: Sequence[StepRow], width: int, draft: bool) -> None:
        """Refuse more rows than the experts' buffers hold results of."""
        if not self.runtime.layout.data_parallel:
            return
        if not self._ep_buffers:
            raise ValueError("the expert-parallel buffers are not bound: bind_ep_buffers() binds them")
        merged = sum(len(row.tokens) + width for row in rows)
        most = expert_rows(self.config, max(merged, len(rows) * self._block if draft else 0))
        if most > self._ep_buffers[0].shape[0]:
            raise ValueError(
                f"a step of {merged} rows needs {most} rows in the expert-parallel buffers, which have "
                f"{self._ep_buffers[0].shape[0]}"
            )

    def _distributed(self, rows: Sequence[StepRow], ends: Sequence[int]) -> dict[str, Any]:
        """Data parallelism's own inputs."""
        if not self.runtime.layout.data_parallel:
            return {}
        splits = self._splits(rows)
        return {
            "host_input_row_offsets": self._filled("host_input_row_offsets", np.uint32, (len(ends),), ends),
            "data_parallel_splits": self._filled("data_parallel_splits", np.int64, (len(splits),), splits),
            "batch_context_lengths": [
                self._filled(f"batch_context_length.{rank}", np.int32, (1,), [length])
                for rank, length in enumerate(context_lengths(rows, splits))
            ],
            "ep_buffers": self._ep_buffers,
        }

    def _splits(self, rows: Sequence[StepRow]) -> list[int]:
        return splits_of(rows, self.runtime.layout.replicas, self._own_pages)

    def _caches(self, rows: Sequence[StepRow]) -> KVCacheInputs | DeviceCaches:
        if self.runtime.layout.data_parallel:
            return spread_caches(
                rows, self._all_leaves, self._splits(rows), self._own_pages, self._filled, self._ragged
            )
        pages = max(len(row.pages) for row in rows)
        lengths = self._filled("cache_lengths", np.uint32, (len(rows),), [r.cache_length for r in rows])
        table = self._ragged("lookup_table", np.uint32, [r.pages for r in rows], pages, 0)
        caches = [KVCacheInputs(leaves=own, cache_lengths=lengths, lookup_table=table) for own in self._all_leaves]
        return caches[0] if len(caches) == 1 else DeviceCaches(devices=tuple(caches))

    def _lookback(
        self, rows: Sequence[StepRow], history: Buffer | None, sources: Sequence[int] | None
    ) -> dict[str, Buffer]:
        b, depth = len(rows), self._depth
        ids, buffer = self._array("engram_lookback_ids", np.int64, (b, depth))
        ids.fill(-1)
        source = [-1] * b if sources is None else list(sources)
        known = 0 if history is None else history.shape[0]
        for place, row in enumerate(rows):
            if not -1 <= source[place] < known:
                raise ValueError(f"row {place} reads its lookback from row {source[place]} of {known} in the history")
            if source[place] >= 0:
                continue
            if len(row.lookback) != min(depth, row.cache_length):
                raise ValueError(
                    f"row {place} has {len(row.lookback)} ids before its tokens, but at "
                    f"cache_length {row.cache_length} the model needs {min(depth, row.cache_length)}"
                )
            if row.lookback:
                ids[place, depth - len(row.lookback) :] = row.lookback
        return {
            "engram_lookback_ids": buffer,
            "engram_lookback_source": self._filled("engram_lookback_source", np.int64, (b,), source),
            "engram_lookback_history": history
            if history is not None
            else self._constant("engram_lookback_history", np.int64, (1, depth), -1),
        }

    def _limits(self, rows: Sequence[StepRow]) -> dict[str, Buffer]:
        """What the target's draws are limited to; a batch without limits finds its constants as they are."""
        given = limits(rows, self.config.text_config.vocab_size)
        inputs = {}
        for name, (dtype, per_row, neutral) in UNLIMITED.items():
            shape = (len(rows),) if per_row else ()
            if given or (name, shape) in self._limited:
                (self._limited.add if given else self._limited.discard)((name, shape))
                inputs[name] = self._filled(name, dtype, shape, given.get(name, neutral))
            else:
                inputs[name] = self._constant(name, dtype, shape, neutral)
        return inputs

    def _edits(self, rows: Sequence[StepRow]) -> dict[str, Buffer]:
        b, size = len(rows), edits_size(rows)
        shapes = {
            "penalties": (np.float32, (b, 3)),
            "free_from": (np.uint32, (b,)),
            "edit_offsets": (np.uint32, (b + 1,)),
            "edit_tokens": (np.int32, (size,)),
            "edit_marks": (np.int32, (size,)),
            "edit_bias": (np.float32, (size,)),
        }
        key = ("edit_offsets", (b + 1,))
        stale = key not in self._kept or key in self._limited
        pairs = {name: self._array(name, dtype, shape) for name, (dtype, shape) in shapes.items()}
        if size or stale:
            fill_edits(rows, {name: array for name, (array, _) in pairs.items()})
            (self._limited.add if size else self._limited.discard)(key)
        return {name: buffer for name, (_, buffer) in pairs.items()}

    def _draft_probs(self, rows: Sequence[StepRow], width: int) -> Buffer:
        tested = probs_rows(rows, width)
        array, buffer = self._array("draft_probs_full", np.float32, (len(rows), tested, self._vocab))
        if tested:
            for place, row in enumerate(rows):
                if row.draft_probs is not None:
                    array[place, : len(row.draft_probs)] = row.draft_probs
        return buffer

    def _masks(self, rows: Sequence[StepRow], width: int) -> dict[str, Any]:
        if not self.runtime.structured_output:
            return {}
        shape = (len(rows), mask_rows(rows, width), -(-self._vocab // 32))
        array, buffer = self._array("pinned_bitmask", np.int32, shape)
        if shape[1]:
            for place, row in enumerate(rows):
                array[place] = -1
                if row.mask is not None:
                    array[place, : len(row.mask)] = row.mask
        return {
            "structured_output": True,
            "pinned_bitmask": buffer,
            "wait_payload": self._constant("wait_payload", np.int64, (2,), 0),
            "device_bitmask_scratch": self._constant("device_bitmask_scratch", np.int32, shape, 0),
        }
