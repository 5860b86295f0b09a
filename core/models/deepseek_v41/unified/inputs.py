"""The buffers of one step, in the graph's order.

Field names, order and defaults are those of MAX's page `unified_dspark_deepseekV41`. Shapes: S tokens, B
requests, K draft tokens a request, n the longest Engram n-gram. Every buffer lies on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import TypeVar, cast

import numpy as np
from max.driver import Buffer
from max.dtype import DType

from specdecode.core.cache.leaves import DeviceCaches, KVCacheInputs

_T = TypeVar("_T")


@dataclass(kw_only=True)
class UnifiedSpecDecodeInputs:
    """What every unified speculative step takes, whatever the model.

    Attributes:
        kv_cache_inputs: cache leaves, cached lengths and page table.
        lora_buffers: adapters; not supported.
        vision_embeddings: one bfloat16 [image rows, D] per device; zero rows for text.
        vision_scatter_indices: one int32 [image rows] per device, the token rows that the image rows replace.
        hidden_states: hidden states handed from step to step; this graph keeps them inside.
        draft_tokens: int64 [B, K] proposals to verify; -1 where there is none, and after it.
        draft_probs_full: float32 [B, K, V] for ratio tests; [B, 0, V] where acceptance compares draws.
        seed: uint64 [B].
        temperature: float32 [B]; below 1e-5 argmax.
        top_k: int64 [B]; 0 or less: all.
        max_k: int64 [], the largest top_k, -1 if any is unlimited.
        top_p: float32 [B]; 1: all.
        min_top_p: float32 [], the smallest top_p.
        in_thinking_phase: bool [B], for acceptance that is relaxed while thinking; not supported.
        draft_slot_ids: int32 [N], request * block + place of each row of the next draft block; none: skip it.
        draft_block_offsets: uint32 [B + 1], where each request's block begins in them, and the end.
        pinned_bitmask: int32 [B, at least K + 1, V / 32], the tokens that a grammar allows after each draft; no rows
            where no request has a grammar.
        wait_payload: int64 [2], tells the device that the mask is filled.
        device_bitmask_scratch: int32, room for a device's copy of the mask.
        structured_output: whether the graph takes the three mask buffers.
    """

    kv_cache_inputs: KVCacheInputs | DeviceCaches | None = None
    lora_buffers: Sequence[Buffer] = ()
    vision_embeddings: list[Buffer] = field(default_factory=list)
    vision_scatter_indices: list[Buffer] = field(default_factory=list)
    hidden_states: Buffer | None = None
    draft_tokens: Buffer | None = None
    draft_probs_full: Buffer | None = None
    seed: Buffer | None = None
    temperature: Buffer | None = None
    top_k: Buffer | None = None
    max_k: Buffer | None = None
    top_p: Buffer | None = None
    min_top_p: Buffer | None = None
    in_thinking_phase: Buffer | None = None
    draft_slot_ids: Buffer | None = None
    draft_block_offsets: Buffer | None = None
    pinned_bitmask: Buffer | None = None
    wait_payload: Buffer | None = None
    device_bitmask_scratch: Buffer | None = None
    structured_output: bool = False


@dataclass(frozen=True, kw_only=True)
class LawInputs:
    """What else the target's law depends on, beyond the reference page's inputs; B requests, E edits.

    Attributes:
        min_p: float32 [B], the share of the best token's probability that a token needs; 0: all.
        acceptance: int32 [B], 0 sample-and-match, 1 rejection, 2 block verification.
        penalties: float32 [B, 3]: repetition (1: none), frequency, presence (0: none).
        free_from: uint32 [B], the position from which banned tokens are allowed.
        edit_offsets: uint32 [B + 1], where each request's edits begin, and the end.
        edit_tokens, edit_marks, edit_bias: int32, int32, float32 [E]: tokens, each once a request; 1 banned, 2 seen,
            4 each time in the output; what is added to the logit.
    """

    min_p: Buffer
    acceptance: Buffer
    penalties: Buffer
    free_from: Buffer
    edit_offsets: Buffer
    edit_tokens: Buffer
    edit_marks: Buffer
    edit_bias: Buffer

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """In graph order."""
        return tuple(getattr(self, known.name) for known in fields(self))


@dataclass(frozen=True, kw_only=True)
class SequentialInputs:
    """What an autoregressive drafter's graph takes besides.

    Attributes:
        draft_next_tokens: int64 [B], the token behind a prompt chunk that is not the last; -1: none.
        draft: whether the drafter runs.
    """

    draft_next_tokens: Buffer
    draft: bool


@dataclass
class UnifiedDSparkDeepseekV41Inputs(UnifiedSpecDecodeInputs):
    """Graph inputs for one step of target-plus-drafter decoding.

    Fields that only adapters, images, or other devices than those of this step need exist and are refused when set:
    nothing that is given is ignored. There are as many devices as `vision_embeddings` has buffers.

    Attributes:
        tokens: int64 [S] new token ids of all requests.
        input_row_offsets: uint32 [B + 1], where each request's tokens begin, and the end.
        return_n_logits: int64 [1]; 1, the logits of each request's last token and of its drafts.
        signal_buffers: one per device, where devices wait for each other; none on one device or its logical shards.
        host_input_row_offsets: the row offsets again, in the host's memory; only under data parallelism.
        data_parallel_splits: int64 [replicas + 1] request boundaries of each replica; only under data parallelism.
        batch_context_lengths: int32 [1] per device, its replica's summed context; only under data parallelism.
        ep_buffers: float32 [rows, D] per device, its experts' results; only under data parallelism.
        engram_lookback_ids: int64 [B, n - 1] raw ids just before each chunk, -1 before the sequence's start.
        engram_lookback_source: int64 [B] row of the history to read instead; -1 reads the ids.
        engram_lookback_history: int64 [rows, n - 1] windows that the previous step recorded, one a request.
        engram_host_buffers: per Engram layer its table uint8 [R, E] and scales uint8 [R, E / 32].
        law, sequential: set by the batch processor after the rest; the latter for an autoregressive drafter's graph.
    """

    tokens: Buffer
    input_row_offsets: Buffer
    return_n_logits: Buffer
    signal_buffers: list[Buffer]
    host_input_row_offsets: Buffer | None = None
    data_parallel_splits: Buffer | None = None
    batch_context_lengths: list[Buffer] = field(default_factory=list)
    ep_buffers: Sequence[Buffer] = ()
    engram_lookback_ids: Buffer | None = None
    engram_lookback_source: Buffer | None = None
    engram_lookback_history: Buffer | None = None
    engram_host_buffers: Sequence[Buffer] = ()
    law: LawInputs | None = field(default=None, init=False)
    sequential: SequentialInputs | None = field(default=None, init=False)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Every input in graph order.

        Raises:
            ValueError: an input that this graph takes is not set, or one that it does not take is.
        """
        self._refuse_unsupported()
        caches = cast("KVCacheInputs | DeviceCaches", _given("kv_cache_inputs", self.kv_cache_inputs))
        drafts = _given("draft_tokens", self.draft_tokens)
        blocks = ("draft_slot_ids", "draft_block_offsets")
        masks = _MASKS if self.structured_output else ()
        merged = self.tokens.shape[0] + drafts.shape[0] * drafts.shape[1]
        return (
            self.tokens,
            *self.vision_embeddings,
            *self.vision_scatter_indices,
            self.input_row_offsets,
            *self._optional("host_input_row_offsets"),
            self.return_n_logits,
            *self._optional("data_parallel_splits"),
            *self.signal_buffers,
            *caches.buffers,
            *self.batch_context_lengths,
            *self.ep_buffers,
            drafts,
            *(_given(name, getattr(self, name)) for name in ("draft_probs_full", *_SAMPLING)),
            *_given("law", self.law).buffers,
            *(_given(name, getattr(self, name)) for name in (*blocks, *masks)),
            *self._drafter(merged),
            *self._engram(),
            _placeholder(merged),
        )

    def _optional(self, name: str) -> tuple[Buffer, ...]:
        value = getattr(self, name)
        return () if value is None else (value,)

    def _drafter(self, merged: int) -> tuple[Buffer, ...]:
        if self.sequential is None:
            return ()
        return self.sequential.draft_next_tokens, _placeholder(merged if self.sequential.draft else 0)

    def _engram(self) -> tuple[Buffer, ...]:
        if not self.engram_host_buffers:
            if any(getattr(self, name) is not None for name in _LOOKBACK):
                raise ValueError(
                    "the Engram lookback is set, but engram_host_buffers is empty, so no graph input takes it"
                )
            return ()
        lookback = (_given(name, getattr(self, name)) for name in _LOOKBACK)
        return (*lookback, *self.engram_host_buffers)

    def _refuse_unsupported(self) -> None:
        for name, why in _REFUSED.items():
            if _set(getattr(self, name)):
                raise ValueError(f"{name} is set, but {why}; leave it out")
        images, scatter = len(self.vision_embeddings), len(self.vision_scatter_indices)
        if images != scatter or not images:
            raise ValueError(
                f"vision_embeddings and vision_scatter_indices hold {images} and {scatter} buffers; they need one per "
                "device, of zero rows without images: no_images(hidden_size) makes them"
            )
        rows = max(buffer.shape[0] for buffer in (*self.vision_embeddings, *self.vision_scatter_indices))
        if rows:
            raise ValueError(f"{rows} image rows are set, but images are not supported; give zero rows")
        self._refuse_other_devices(images)
        if not self.structured_output:
            for name in _MASKS:
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is set, but structured_output is False: no graph input takes it")

    def _refuse_other_devices(self, count: int) -> None:
        """Signal buffers for all devices or none; what data parallelism needs, whole or not at all."""
        if len(self.signal_buffers) not in (0, count) or (count == 1 and self.signal_buffers):
            raise ValueError(
                f"signal_buffers is set to {len(self.signal_buffers)} buffers, but this graph has {count} device(s)"
            )
        given = [name for name in _DATA_PARALLEL if _set(getattr(self, name))]
        if not given:
            return
        if count == 1:
            raise ValueError(f"{given[0]} is set, but this graph runs on one device; leave it out")
        for name in _DATA_PARALLEL:
            value = _given(name, getattr(self, name))
            if not isinstance(value, Buffer) and len(value) != count:
                raise ValueError(f"{name} has {len(value)} buffers, but this graph has {count} devices")


def _set(value: object) -> bool:
    return value is not None and (isinstance(value, Buffer) or len(cast("Sequence[Buffer]", value)) > 0)


_DATA_PARALLEL = ("host_input_row_offsets", "data_parallel_splits", "batch_context_lengths", "ep_buffers")
_SAMPLING = ("seed", "temperature", "top_k", "max_k", "top_p", "min_top_p")
_MASKS = ("pinned_bitmask", "wait_payload", "device_bitmask_scratch")
_LOOKBACK = ("engram_lookback_ids", "engram_lookback_source", "engram_lookback_history")
_REFUSED = {
    "lora_buffers": "adapters are not supported",
    "hidden_states": "this graph keeps the drafter's hidden states inside",
    "in_thinking_phase": "acceptance is the same in every phase",
}


def no_images(hidden_size: int, devices: int = 1) -> tuple[list[Buffer], list[Buffer]]:
    """`vision_embeddings` and `vision_scatter_indices` of a step without images."""
    rows = Buffer.from_numpy(np.zeros((0, 2 * hidden_size), np.uint8)).view(DType.bfloat16, [0, hidden_size])
    return [rows] * devices, [Buffer.from_numpy(np.zeros(0, np.int32))] * devices


def _given(name: str, value: _T | None) -> _T:
    if value is None:
        raise ValueError(f"{name} is not set, but the graph takes it")
    return value


@lru_cache(maxsize=1024)
def _placeholder(rows: int) -> Buffer:
    """int8 [rows]; only its length is read."""
    return Buffer.from_numpy(np.zeros(rows, np.int8))
