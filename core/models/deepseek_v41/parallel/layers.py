"""Layers in lockstep on several devices: everything behind a layer's attention, cut where the devices have to talk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from max.dtype import DType
from max.graph import BufferValue, TensorValue, Value, ops

from specdecode.core.kernels import ops as kernels
from specdecode.core.kernels import parallel_ops
from specdecode.core.kernels.ops import Rows
from specdecode.core.models.deepseek_v41.bodies import attending
from specdecode.core.models.deepseek_v41.config import TextConfig
from specdecode.core.models.deepseek_v41.layers import Blocks, Entered, LayerState, Leaves, Place
from specdecode.core.models.deepseek_v41.parallel import shares
from specdecode.core.models.deepseek_v41.parallel.collectives import Collectives


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One device in the middle of a layer: its layers, where this one's weights are, and its rows up to here."""

    blocks: Blocks
    place: Place
    entered: Entered
    rows: Rows
    leaves: Leaves

    def attention(self) -> tuple[TensorValue | BufferValue, ...]:
        """The arguments of an `attending` body before its own weights."""
        return self.blocks.attention(self.place, self.entered, self.rows, self.leaves)

    def pairs(self, where: str, *parts: str) -> list[TensorValue]:
        """Experts' matrices, each with its scale."""
        return [w for part in parts for w in self.blocks.w.pair(f"{self.place.name}.ffn.{where}.{part}")]

    def router(self) -> list[TensorValue]:
        """The gates before the experts, and their router."""
        name, w = self.place.name, self.blocks.w
        return [*self.blocks.hyper(name, "ffn"), w(f"{name}.ffn.gate.weight"), w(f"{name}.ffn.gate.bias")]

    def run(self, name: str, kernel: Callable[..., TensorValue], *values: Value[Any]) -> TensorValue:
        """A kernel that ends with the common arguments, as a body of its own: every call site costs compile time."""

        def body(*args: Any) -> Sequence[TensorValue]:
            *rest, model, mode = args
            return [kernel(*rest, common=kernels.Common(model=model, mode=mode))]

        common = self.blocks.common()
        (out,) = self.blocks.sub.call(name, body, *values, common.model, common.mode)
        return out

    def number(self, value: int) -> TensorValue:
        """int32 [1] on the device."""
        return ops.constant(np.array([value], np.int32), DType.int32, self.blocks.device)


class Lockstep(Protocol):
    """Runs a layer's second half on all devices."""

    def leave(self, visits: Sequence[Visit]) -> list[LayerState]:
        """The states after the layer, one per device."""
        ...


class TensorParallel:
    """Every device has its heads, and its output rows of every other large matrix.

    Args:
        text: the model's sizes.
        collectives: how the devices gather.
    """

    def __init__(self, text: TextConfig, collectives: Collectives) -> None:
        self._collectives = collectives
        ranks = collectives.layout.count
        self._attention = shares.attention_parts(text, ranks)
        self._hidden, self._inner = shares.hidden_parts(text, ranks), shares.inner_parts(text, ranks)

    def leave(self, visits: Sequence[Visit]) -> list[LayerState]:
        """Attention, gather, wo_b, gather, experts' first matrices, gather, their second, gather."""
        gather = self._collectives.columns
        lower = gather([self._groups(visit) for visit in visits], self._attention)
        y = gather([self._output(*each) for each in zip(visits, lower, strict=True)], self._hidden)
        middle = [self._experts(*each) for each in zip(visits, y, strict=True)]
        hidden = gather([one.hidden for one in middle], self._inner)
        z = gather([self._sum(*each) for each in zip(visits, middle, hidden, strict=True)], self._hidden)
        return [
            replace(
                visit.entered.state,
                h=visit.run("expand", parallel_ops.expand, whole, one.h, one.mix),
                mix=one.mix,
            )
            for visit, one, whole in zip(visits, middle, z, strict=True)
        ]

    def _groups(self, visit: Visit) -> TensorValue:
        """The lower projection of a device's heads [T, N]."""

        def after(
            o: TensorValue,
            _h: TensorValue,
            _mix: TensorValue,
            _settings: TensorValue,
            common: kernels.Common,
            weights: Sequence[TensorValue],
        ) -> Sequence[TensorValue]:
            return [parallel_ops.output_groups(o, *weights, common=common)]

        wo_a = visit.blocks.w.pair(f"{visit.place.name}.attn.wo_a")
        (a,) = visit.blocks.sub.call("groups", attending(after), *visit.attention(), *wo_a)
        return a

    def _output(self, visit: Visit, a: TensorValue) -> TensorValue:
        wo_b = visit.blocks.w.pair(f"{visit.place.name}.attn.wo_b")
        return visit.run("output", parallel_ops.output_rows, a, *wo_b)

    def _experts(self, visit: Visit, y: TensorValue) -> Middle:
        """From the attention's output to the experts' hidden rows."""

        def body(
            y: TensorValue,
            h: TensorValue,
            mix: TensorValue,
            settings: TensorValue,
            model: TensorValue,
            mode: TensorValue,
            *weights: TensorValue,
        ) -> Sequence[TensorValue]:
            common = kernels.Common(model=model, mode=mode)
            h = parallel_ops.expand(y, h, mix, common=common)
            mix, x = kernels.sublayer_in(h, mix, weights[:4], settings, common)
            ids, w = parallel_ops.route(x, weights[4:6], common, top_k=visit.place.top_k)
            return h, mix, ids, parallel_ops.experts_hidden(x, ids, w, weights[6:], common)

        state, common = visit.entered.state, visit.blocks.common()
        h, mix, ids, hidden = visit.blocks.sub.call(
            f"{visit.place.kind}_experts",
            body,
            y,
            state.h,
            state.mix,
            visit.place.settings,
            common.model,
            common.mode,
            *visit.router(),
            *visit.pairs("experts", "w1", "w3"),
            *visit.pairs("shared_experts", "w1", "w3"),
        )
        return Middle(h=h, mix=mix, ids=ids, hidden=hidden)

    def _sum(self, visit: Visit, middle: Middle, hidden: TensorValue) -> TensorValue:
        second = [*visit.pairs("experts", "w2"), *visit.pairs("shared_experts", "w2")]
        return visit.run("experts_rows", parallel_ops.experts_rows, hidden, middle.ids, *second)


@dataclass(frozen=True, kw_only=True)
class Middle:
    """A layer between its attention and its experts' output: hidden [T, k + 1, N]."""

    h: TensorValue
    mix: TensorValue
    ids: TensorValue
    hidden: TensorValue
