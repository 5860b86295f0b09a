"""Running the probe graph: the model's own step with every inner value among its outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from max.driver import Buffer
from max.dtype import DType
from max.graph import Graph
from numpy.typing import NDArray

from specdecode.core.cache.leaves import LEAVES, allocate_leaves
from specdecode.core.checkpoint.reader import Checkpoint
from specdecode.core.device_layout import DeviceLayout
from specdecode.core.engine.device import Place, open_place
from specdecode.core.engine.graph_store import GraphInfo, GraphKey, GraphStore
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.models.deepseek_v41 import probe
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.load import derived_weights
from specdecode.core.models.deepseek_v41.registry import engram_host_buffers, load_weights
from specdecode.core.models.deepseek_v41.unified.digest import graph_digest
from specdecode.core.models.deepseek_v41.unified.driver import build_graph
from specdecode.core.progress import Silent

PAGE_SIZE = 16
Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One sequence of a call: cache slot, everything run so far, the new tokens and the drafts to verify."""

    slot: int
    before: tuple[int, ...]
    tokens: tuple[int, ...]
    drafts: tuple[int, ...] = ()


class ProbeGraph:
    """The probe graph of a configuration on a device; both modes run it."""

    def __init__(self, config: DeepseekV41Config, place: Place) -> None:
        self.pages, self.place = PageLayout.of(config.text_config, PAGE_SIZE), place
        self.graph: Graph
        self.graph, self.names = build_graph(
            config, self.pages, DeviceLayout.single(place.ref), probe=True, structured_output=True
        )
        own = Path(str(probe.__file__)).read_bytes()
        known = graph_digest(config, self.pages, structured_output=True, gpu=not place.is_host)
        digest = hashlib.sha256(known.encode() + own).hexdigest()
        self.key = GraphKey.here("golden-probe", digest, place.device)

    def make(self, store: GraphStore) -> GraphInfo:
        """Compile it into a cache, for a device that may be absent."""
        return store.make(self.place.session(), self.key, lambda: self.graph, Silent())


class Runner:
    """The model of one checkpoint with its inner values; `slots` sequences of `max_length` positions."""

    def __init__(
        self, checkpoint: Checkpoint, *, exact: bool, slots: int, max_length: int, devices: str = "cpu"
    ) -> None:
        self.config, self.text = checkpoint.config, checkpoint.config.text_config
        place = open_place(devices)
        self.device = place.device
        graph = ProbeGraph(self.config, place)
        self.pages, self.names = graph.pages, graph.names
        self.slot_pages = -(-max_length // PAGE_SIZE)
        self.leaves = allocate_leaves(self.text, self.pages, slots * self.slot_pages, self.device)
        self.model, self.info = GraphStore().load(
            place.session(),
            graph.key,
            lambda: graph.graph,
            weights_registry=load_weights(checkpoint, derived_weights(checkpoint, exact=exact), self.device),
        )
        self.engram = engram_host_buffers(checkpoint, self.device)

    def there(self, array: Array) -> Buffer:
        """An array on the device."""
        return Buffer.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def leaf(self, name: str) -> Array:
        """A cache leaf's current content."""
        return self.leaves[name].to_numpy()

    def rows_of(self, leaf: str, slot: int, offset: int, ratio: int, count: int) -> Array:
        """The first `count` compressed rows or keys of a source, in order."""
        data, per_page = self.leaf(leaf), PAGE_SIZE // ratio
        j = np.arange(count)
        return data[slot * self.slot_pages + j // per_page, 0, 0, offset + j % per_page, 0]

    def run(
        self,
        rows: Sequence[Row],
        *,
        draft: bool = True,
        streams: Array | None = None,
        pre: Array | None = None,
        temperature: float = 0.0,
    ) -> dict[str, Array]:
        """One step at the given temperature (seed = slot); `streams`, `pre` feed every layer from outside if given."""
        text, b = self.text, len(rows)
        width = max(len(row.drafts) for row in rows)
        sizes = [len(row.tokens) for row in rows]
        merged = sum(sizes) + b * width
        drafts = np.full((b, width), -1, np.int64)
        for i, row in enumerate(rows):
            drafts[i, : len(row.drafts)] = row.drafts
        block = text.dspark_block_size
        slots = np.arange(b * block if draft else 0, dtype=np.int32)
        ends = np.arange(b + 1, dtype=np.uint32) * (block if draft else 0)
        lengths = np.array([len(row.before) for row in rows], np.uint32)
        table = np.array([np.arange(self.slot_pages) + row.slot * self.slot_pages for row in rows], np.uint32)
        there, here = self.there, Buffer.from_numpy
        values = [
            there(np.cumsum([0, *sizes]).astype(np.uint32)),
            here(np.array([1], np.int64)),
            *(self.leaves[name] for name in LEAVES),
            there(lengths),
            there(table),
            there(drafts),
            there(np.zeros((b, 0, text.vocab_size), np.float32)),
            there(np.array([row.slot for row in rows], np.uint64)),
            there(np.full(b, temperature, np.float32)),
            there(np.full(b, -1, np.int64)),
            here(np.array(-1, np.int64)),
            there(np.ones(b, np.float32)),
            here(np.array(1, np.float32)),
            *map(there, _unchanged(b)),
            there(slots),
            there(ends.astype(np.uint32)),
            here(np.zeros((b, 0, -(-text.vocab_size // 32)), np.int32)),
            here(np.zeros(2, np.int64)),
            there(np.zeros((b, 0, -(-text.vocab_size // 32)), np.int32)),
        ]
        tokens = there(np.concatenate([np.array(row.tokens, np.int64) for row in rows]))
        images = [
            Buffer(DType.bfloat16, [0, text.hidden_size]).to(self.device),
            there(np.zeros(0, np.int32)),
        ]
        inputs = [tokens, *images, *values, *self._engram_inputs(rows), here(np.zeros(merged, np.int8))]
        out = self.model.execute(*inputs, *self._probe_inputs(merged, streams, pre))
        return {name.removeprefix("probe."): value.to_numpy() for name, value in zip(self.names, out, strict=True)}

    def _engram_inputs(self, rows: Sequence[Row]) -> list[Buffer]:
        if not self.text.engram_layer_ids:
            return []
        depth = self.text.engram_max_ngram_size - 1
        window = np.full((len(rows), depth), -1, np.int64)
        for i, row in enumerate(rows):
            tail = row.before[-depth:]
            window[i, depth - len(tail) :] = tail
        source = np.full(len(rows), -1, np.int64)
        history = np.full((1, depth), -1, np.int64)
        return [*(self.there(a) for a in (window, source, history)), *self.engram]

    def _probe_inputs(self, merged: int, streams: Array | None, pre: Array | None) -> list[Buffer]:
        text = self.text
        layers, copies = text.num_hidden_layers, text.hc_mult
        given = streams is not None
        if streams is None or pre is None:
            streams = np.zeros((layers, merged, copies, text.hidden_size), np.float32)
            pre = np.zeros((layers, merged, copies), np.float32)
        flags = np.full(layers, int(given), np.int32)
        arrays = (
            streams.astype(np.float32),
            pre.astype(np.float32),
            flags,
            np.arange(merged, dtype=np.int32),
        )
        return [self.there(a) for a in arrays]


def _unchanged(b: int) -> list[Array]:
    """What leaves the law of b requests as it is: min_p, acceptance, penalties, free_from and no edits."""
    penalties = np.tile(np.array([1, 0, 0], np.float32), (b, 1))
    none = [np.zeros(b, np.float32), np.zeros(b, np.int32), penalties, np.zeros(b, np.uint32)]
    edits = [np.zeros(b + 1, np.uint32), np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32)]
    return none + edits
