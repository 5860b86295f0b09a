"""Graph inputs of one step of MAX's V4: its paged caches and its batch, in the order of its signature.

What MAX's cache manager and pipeline would bind for such a batch is bound here once, so that a step is timed without
them. Imported only after `v4.stand_in_for_videos`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from max import tree
from max.driver import CPU, Buffer
from max.dtype import DType
from max.nn.kv_cache import MultiKVCacheParams
from max.nn.kv_cache.cache_params import BatchCharacteristics, KVCacheAssignments
from max.nn.kv_cache.utils import build_max_lengths_tensors, padded_lut_cols
from max.pipelines.architectures.deepseekV4.model_config import build_kv_params, kv_leaf_specs
from max.pipelines.kv_cache.config import KVCacheConfig

from tests.benchmarks.peers.ours import anchor, drafts
from tests.benchmarks.peers.sizes import Sizes, v4_fields
from tests.benchmarks.released.weights import RandomMemory

if TYPE_CHECKING:
    from max.driver import Device
    from max.graph import DeviceRef


def cache_params(sizes: Sizes, device: DeviceRef) -> MultiKVCacheParams:
    """The seven leaves of V4's cache, in bf16."""
    fields = v4_fields(sizes)
    specs = kv_leaf_specs(
        compress_ratios=fields["compress_ratios"],
        num_hidden_layers=sizes.layers,
        head_dim=sizes.head_dim,
        index_head_dim=sizes.index_head_dim,
        sliding_window=sizes.sliding_window,
        num_dspark_stages=sizes.stages,
    )
    return build_kv_params(
        specs,
        kv_cache_config=KVCacheConfig(),
        cache_dtype=DType.bfloat16,
        devices=[device],
        num_q_heads=sizes.num_attention_heads,
        speculative_method="dspark",
        num_draft_tokens=sizes.block,
    )


def step_inputs(
    sizes: Sizes, params: MultiKVCacheParams, device: Device, batch: int, context: int
) -> tuple[Buffer, ...]:
    """Every graph input of a step that verifies a block at the end of the context."""

    def put(values: Any, dtype: type) -> Buffer:
        return Buffer.from_numpy(np.array(values, dtype)).to(device)

    places = range(batch)
    return (
        put([anchor(sizes, place) for place in places], np.int64),
        put(range(batch + 1), np.uint32),
        Buffer.from_numpy(np.array([sizes.block + 1], np.int64)),
        *tree.leaves(cache_inputs(sizes, params, device, batch, context)),
        put([drafts(sizes, place) for place in places], np.int64),
        put(list(places), np.uint64),
        put([1.0] * batch, np.float32),  # temperature
        put([-1] * batch, np.int64),  # top_k
        Buffer.from_numpy(np.array(-1, np.int64)),
        put([1.0] * batch, np.float32),  # top_p
        Buffer.from_numpy(np.array(1.0, np.float32)),
    )


def cache_inputs(sizes: Sizes, params: MultiKVCacheParams, device: Device, batch: int, context: int) -> Any:
    """Caches full of random rows, each request with pages of its own, as a tree of graph inputs."""
    length = context - 1 - sizes.block
    longest = length + 1 + 2 * sizes.block  # the verified rows, then the drafted block
    each = -(-longest // params.page_size)
    none = batch * each  # a page that nobody has; the table's unused columns name it
    table = np.full((batch, padded_lut_cols(each)), none, np.uint32)
    table[:, :each] = np.arange(batch * each).reshape(batch, each)
    prompt, valid = build_max_lengths_tensors(1 + sizes.block, longest)
    lookup = Buffer.from_numpy(table).to(device)
    assignment = KVCacheAssignments(
        cache_lengths_by_device=[Buffer.from_numpy(np.full(batch, length, np.uint32)).to(device)],
        staged_by_device=[dict.fromkeys(params.leaves(), lookup)],
        max_prompt_length=prompt,
        max_cache_length=valid,
        batch_characteristics=BatchCharacteristics(
            batch_size=batch, max_prompt_length=1 + sizes.block, max_cache_valid_length=longest
        ),
    )
    pools = params.allocate_buffers(none + 1)
    memory = RandomMemory(CPU(), size=1 << 20)
    for pool in pools:
        for buffer in pool.all_buffers:
            kind = "bf16" if buffer.dtype == DType.bfloat16 else "small"
            buffer.inplace_copy_from(memory.filled(kind, buffer.dtype, tuple(buffer.shape)))
            device.synchronize()
    return params.build_runtime_inputs([assignment], pools)
