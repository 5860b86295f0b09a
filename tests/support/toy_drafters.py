"""An order-1 target and two table drafters for the sequential driver: acceptance is exactly what a test wants.

Each token of a text is one more than the token before it. A drafter knows that, except after the tokens that its own
table is wrong about. Caches hold tokens plus one, so what is in them can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from max.driver import CPU, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import DeviceRef, Graph, TensorType, TensorValue, ops

from specdecode.core.batch import Accepted, SequentialBatch, Verified
from specdecode.core.device_layout import DeviceLayout
from specdecode.core.drivers.decode import decode
from specdecode.core.drivers.input_types import NamedInput, SpecDecodeInputTypeSpec
from specdecode.core.drivers.phases import Selection
from specdecode.core.drivers.sequential import DraftCache, DraftCall, Drafted, SequentialDriver
from specdecode.core.kernels import kernel_package
from specdecode.core.kernels.ops import F, call
from specdecode.core.kernels.sequential_ops import Shifted
from specdecode.core.kernels.step_ops import Merged
from specdecode.core.models.deepseek_v41.unified.signature import drafter_inputs

KERNELS = Path(__file__).parent / "toy_kernels"
VOCABULARY, LENGTH, DRAFTS = 512, 256, 3
CPU_REF = DeviceRef.CPU()
SEEN = ("draft_lengths", "collection_lengths", "query_offsets", "swapped_lengths", "kept_lengths", "merged_offsets")


@dataclass(kw_only=True)
class ToyTarget:
    """Writes what it runs into its cache; the likeliest token after t is the one its table says."""

    table: TensorValue
    selection: Selection = field(default_factory=lambda: Selection(chosen=1, blocks=1))

    def verify(self, batch: SequentialBatch, merged: Merged) -> Verified[None]:
        assert batch.num_accepted is None
        rows = merged.logit_rows
        cache = batch.kv_collections[0].leaves["window"]
        values = [cache, merged.tokens, merged.seq, merged.pos, rows, self.table]
        (logits,) = call("toy_verify", values, (F, [rows.shape[0], VOCABULARY]))
        return Verified(logits=logits, hidden=None)

    def finish(self, batch: SequentialBatch, hidden: None, accepted: Accepted) -> list[TensorValue]:
        return []


@dataclass(kw_only=True)
class _Recording:
    """What a draft call was told, value by value."""

    table: TensorValue
    passthrough_decode_swaps: Sequence[str] = ("paired",)
    num_draft_tokens: int = DRAFTS
    seen: list[TensorValue] = field(default_factory=list)

    def record(self, batch: SequentialBatch) -> None:
        assert batch.num_accepted is not None
        self.seen += [
            batch.draft_cache_lengths[0],
            batch.draft_kv_collections[0].cache_lengths,
            batch.query_offsets_per_dev[0],
            batch.passthrough_kv["paired"][0].cache_lengths,
            batch.passthrough_kv["other"][0].cache_lengths,
            batch.merged_offsets_per_dev[0],
        ]


@dataclass(kw_only=True)
class OwnCacheDrafter(_Recording):
    """Stores the shifted text in a cache of its own, and reads the token that it continues from there."""

    draft_cache = DraftCache.OWN

    def prefill(self, batch: SequentialBatch, hidden: None, shifted: Shifted, call_: DraftCall) -> Drafted[None]:
        return self._run(batch, shifted.tokens, shifted.seq, shifted.pos, call_)

    def decode(self, batch: SequentialBatch, state: None, call_: DraftCall) -> Drafted[None]:
        rows = call_.rows
        return self._run(batch, rows.ids, rows.seq, rows.pos, call_)

    def _run(
        self, batch: SequentialBatch, tokens: TensorValue, seq: TensorValue, pos: TensorValue, call_: DraftCall
    ) -> Drafted[None]:
        self.record(batch)
        cache = batch.draft_kv_collections[0].leaves["compressed"]
        (stored,) = call("toy_store", [cache, tokens, seq, pos], (DType.int32, [1]))
        return _drafted("toy_draft", [cache, call_.slots, call_.rows.pos, self.table, stored], batch, call_)


@dataclass(kw_only=True)
class TargetCacheDrafter(_Recording):
    """Owns no cache: reads the target's at the last committed row, and never past it."""

    draft_cache = DraftCache.TARGET
    calls: int = 0

    def prefill(self, batch: SequentialBatch, hidden: None, shifted: Shifted, call_: DraftCall) -> Drafted[None]:
        return self._run(batch, call_)

    def decode(self, batch: SequentialBatch, state: None, call_: DraftCall) -> Drafted[None]:
        return self._run(batch, call_)

    def _run(self, batch: SequentialBatch, call_: DraftCall) -> Drafted[None]:
        self.record(batch)
        step = ops.constant([self.calls], DType.int32, CPU_REF)
        self.calls += 1
        cache, rows = batch.kv_collections[0].leaves["window"], call_.rows
        return _drafted("toy_cross", [cache, call_.slots, rows.ids, rows.pos, step, self.table], batch, call_)


def _drafted(name: str, values: list[Any], batch: SequentialBatch, call_: DraftCall) -> Drafted[None]:
    b = batch.draft_tokens.shape[0]
    drafts, confidence, logits = call(
        name, values, (DType.int64, [b, 1]), (F, [b, 1]), (F, [call_.slots.shape[0], VOCABULARY])
    )
    return Drafted(tokens=drafts, confidence=confidence, logits=logits, state=None)


class ToyGraph:
    """Both drivers in one compiled graph, on the same inputs; each has the same target cache written twice."""

    def __init__(self) -> None:
        specs = SpecDecodeInputTypeSpec(
            layout=DeviceLayout.single(CPU_REF),
            hidden_size=1,
            vocab_size=VOCABULARY,
            leaves=dict.fromkeys(("window", "compressed", "keys", "open_groups"), (LENGTH,)),
        )
        tables = [
            NamedInput(name=name, type=TensorType(F, [VOCABULARY, VOCABULARY], CPU_REF), meaning="")
            for name in ("target_table", "drafter_table")
        ]
        self.inputs = specs.inputs(structured_output=False, trailing=[*drafter_inputs(CPU_REF), *tables])
        with Graph(
            "toy", input_types=[known.type for known in self.inputs], custom_extensions=[kernel_package(), KERNELS]
        ) as graph:
            batch = decode(self.inputs, graph.inputs, DeviceLayout.single(CPU_REF))
            own = OwnCacheDrafter(table=batch.extra["drafter_table"])
            cross = TargetCacheDrafter(table=batch.extra["drafter_table"])
            results = []
            for drafter in (own, cross):
                driver = SequentialDriver(ToyTarget(table=batch.extra["target_table"]), drafter)
                caches = batch.kv_collections
                outputs = driver(batch, passthrough_kv={"paired": caches, "other": caches})
                results += [*outputs.values(), *drafter.seen]
            graph.output(*results)
        self.model = InferenceSession(devices=[CPU()]).load(graph)

    def run(self, values: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """One step; outputs by name, of the driver with the own-cache drafter and of the other."""
        images = Buffer.from_numpy(np.zeros((0, 2), np.uint8)).view(DType.bfloat16, [0, 1])
        buffers = [
            images if known.name == "vision_embeddings" else Buffer.from_numpy(values[known.name])
            for known in self.inputs
        ]
        found = [out.to_numpy().copy() for out in self.model.execute(*buffers)]
        half = len(found) // 2
        return [_named(found[:half]), _named(found[half:])]


def _named(values: list[np.ndarray]) -> dict[str, Any]:
    names = ("num_accepted", "next_tokens", "next_draft_tokens", "confidence", "finite", "logits", "draft_logits")
    outputs: dict[str, Any] = dict(zip(names, values, strict=False))
    calls = values[len(names) :]
    outputs["calls"] = [
        dict(zip(SEEN, calls[start : start + len(SEEN)], strict=True)) for start in range(0, len(calls), len(SEEN))
    ]
    return outputs
