"""Layers in lockstep on devices that have rows of their own and share the routed experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from max.graph import BufferValue, Dim, TensorValue, ops

from specdecode.core.kernels import ops as kernels
from specdecode.core.kernels import parallel_ops
from specdecode.core.models.deepseek_v41.bodies import attending
from specdecode.core.models.deepseek_v41.layers import LayerState
from specdecode.core.models.deepseek_v41.parallel import shares
from specdecode.core.models.deepseek_v41.parallel.collectives import Collectives
from specdecode.core.models.deepseek_v41.parallel.layers import Visit


@dataclass(frozen=True, kw_only=True)
class Routed:
    """A device's own rows before their experts: x [M, D], ids and weights [M, k]."""

    h: TensorValue
    mix: TensorValue
    x: TensorValue
    ids: TensorValue
    weights: TensorValue


class ExpertParallel:
    """Every device has rows of its own and some of the routed experts; the rows of all devices visit them.

    Args:
        collectives: how the devices gather.
        buffers: their buffers [rows, D] of experts' results.
        starts: int32 [1], the first row of each device among the rows of all.
        rows: the name of the number of all rows.
    """

    def __init__(
        self,
        collectives: Collectives,
        buffers: Sequence[BufferValue],
        starts: Sequence[TensorValue],
        rows: Dim,
    ) -> None:
        self._collectives, self._buffers, self._starts = collectives, list(buffers), list(starts)
        self._rows = rows

    def leave(self, visits: Sequence[Visit]) -> list[LayerState]:
        """Attention and routing, gather rows, experts, results back home, sum by ascending expert."""
        gather, ranks = self._collectives.rows, range(len(visits))
        routed = [self._route(visit) for visit in visits]
        x = gather([one.x for one in routed], self._rows)
        ids = gather([one.ids for one in routed], self._rows)
        weights = gather([one.weights for one in routed], self._rows)
        used = [self._local(rank, visits[rank], x[rank], ids[rank], weights[rank]) for rank in ranks]
        return [self._combine(rank, visits, routed[rank], used) for rank in ranks]

    def _route(self, visit: Visit) -> Routed:
        def after(
            o: TensorValue,
            h: TensorValue,
            mix: TensorValue,
            settings: TensorValue,
            common: kernels.Common,
            weights: Sequence[TensorValue],
        ) -> Sequence[TensorValue]:
            h, _ = kernels.attention_out(o, h, mix, weights[:4], common)
            mix, x = kernels.sublayer_in(h, mix, weights[4:8], settings, common)
            ids, w = parallel_ops.route(x, weights[8:], common, top_k=visit.place.top_k)
            return h, mix, x, ids, w

        h, mix, x, ids, weights = visit.blocks.sub.call(
            f"{visit.place.kind}_route",
            attending(after),
            *visit.attention(),
            *visit.blocks.out_weights(f"{visit.place.name}.attn"),
            *visit.router(),
        )
        return Routed(h=h, mix=mix, x=x, ids=ids, weights=weights)

    def _local(self, rank: int, visit: Visit, x: TensorValue, ids: TensorValue, w: TensorValue) -> TensorValue:
        """A device's experts on all rows, into its buffer."""
        parts, per = _share(visit)
        first = visit.number(shares.index_of(rank, parts, self._collectives.layout.count) * per)
        weights = visit.pairs("experts", "w1", "w3", "w2")
        return visit.run("experts_local", parallel_ops.experts_local, self._buffers[rank], x, ids, w, first, *weights)

    def _combine(self, rank: int, visits: Sequence[Visit], routed: Routed, used: Sequence[TensorValue]) -> LayerState:
        visit = visits[rank]
        parts, per = _share(visit)
        # Of the devices that have the same experts, the one at this device's own place among its neighbours.
        same = len(visits) // parts
        holders = [part * same + rank % same for part in range(parts)]
        rows = [self._fetch(rank, holder, visits, used[holder], routed.ids) for holder in holders]
        h = visit.run(
            "experts_combine",
            parallel_ops.experts_combine,
            routed.x,
            routed.h,
            routed.mix,
            routed.ids,
            ops.stack(rows),
            visit.number(per),
            *visit.pairs("shared_experts", "w1", "w3", "w2"),
        )
        return replace(visit.entered.state, h=h, mix=routed.mix)

    def _fetch(
        self, rank: int, holder: int, visits: Sequence[Visit], used: TensorValue, ids: TensorValue
    ) -> TensorValue:
        """[M, k, D]: what the holder's experts gave for this device's rows."""
        there, here = visits[holder].blocks.device, visits[rank].blocks.device
        start = self._starts[rank].to(there)
        part = visits[holder].run("exchange", parallel_ops.exchange, self._buffers[holder], used, start, ids.to(there))
        return part.to(here)


def _share(visit: Visit) -> tuple[int, int]:
    """Parts that a layer's experts are divided into, and experts of a part."""
    name, w = f"{visit.place.name}.ffn", visit.blocks.w
    per = int(w(f"{name}.experts.w1.weight").shape[0])
    return int(w(f"{name}.gate.bias").shape[0]) // per, per
