"""Graph wrappers of the model's kernels: shapes in, shapes out.

Shapes: M rows, C residual copies, D hidden, H heads, K head_dim, Q query latent, N chosen rows, NB blocks, V vocab.
Every value is float32 unless said; weights are in their stored format. Kernels: `mojo/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from max.dtype import DType
from max.graph import BufferValue, DeviceRef, Shape, TensorType, TensorValue, Value, ops

Dims = Sequence[object]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Which request and position every row of a call belongs to.

    Attributes:
        seq: int32 [M] request.
        pos: int32 [M] position; -1 for a row that carries no token.
        last: int32 [M] newest window position that the row may see (`pos` in the target).
        table: uint32 [B, pages] physical pages of each request.
    """

    seq: TensorValue
    pos: TensorValue
    last: TensorValue
    table: TensorValue


@dataclass(frozen=True, kw_only=True)
class Common:
    """Model-wide kernel arguments: float32 settings [4], and int32 [2]: 1 for the model's own rounding, and threads."""

    model: TensorValue
    mode: TensorValue


def _types(device: DeviceRef, *specs: tuple[DType, Dims]) -> list[TensorType]:
    return [TensorType(dtype, Shape(list(dims)), device) for dtype, dims in specs]


def call(name: str, values: Sequence[Value[object]], *out: tuple[DType, Dims]) -> list[TensorValue]:
    """Run kernel `name`; in-place when a buffer is among its values."""
    device = next(v.device for v in values if isinstance(v, TensorValue))
    types = _types(device, *out)
    run = ops.inplace_custom if any(isinstance(v, BufferValue) for v in values) else ops.custom
    return [v.tensor for v in run(name, device=device, values=list(values), out_types=types)]


F = DType.float32


def sublayer_in(
    h: TensorValue, before: TensorValue, weights: Sequence[TensorValue], layer: TensorValue, common: Common
) -> tuple[TensorValue, TensorValue]:
    """mix [M, C(C+2)] and normed input x [M, D]; weights: fn, scale, base, norm."""
    m, _, d = h.shape
    mix, x = call(
        "sd_sublayer_in",
        [h, before, *weights, layer, common.model, common.mode],
        (F, [m, before.shape[1]]),
        (F, [m, d]),
    )
    return mix, x


def attention_in(
    x: TensorValue,
    window: BufferValue,
    rows: Rows,
    weights: Sequence[TensorValue],
    inv_freq: TensorValue,
    layer: TensorValue,
    common: Common,
    *,
    heads: int,
) -> tuple[TensorValue, TensorValue, TensorValue]:
    """Queries [M, H K], query latent [M, Q], window rows [M, K].

    weights: wq_a, scale, q_norm, wq_b, scale, wkv, scale, kv_norm.
    """
    m, latent, k = x.shape[0], weights[0].shape[0], weights[5].shape[0]
    q, lora, kv = call(
        "sd_attention_in",
        [window, x, rows.seq, rows.pos, rows.table, *weights, inv_freq, layer, common.model, common.mode],
        (F, [m, heads * int(k)]),
        (F, [m, latent]),
        (F, [m, k]),
    )
    return q, lora, kv


def context_rows(
    m: TensorValue,
    slots: TensorValue,
    window: BufferValue,
    rows: Rows,
    weights: Sequence[TensorValue],
    inv_freq: TensorValue,
    layer: TensorValue,
    common: Common,
) -> TensorValue:
    """A draft stage's context rows [M, K], stored in the window leaf; weights: wkv, scale, kv_norm."""
    (kv,) = call(
        "sd_context_rows",
        [window, m, slots, rows.seq, rows.pos, rows.table, *weights, inv_freq, layer, common.model, common.mode],
        (F, [m.shape[0], weights[0].shape[0]]),
    )
    return kv


def compress(
    x: TensorValue,
    leaves: Sequence[BufferValue],
    rows: Rows,
    weights: Sequence[TensorValue],
    inv_freq: TensorValue,
    layer: TensorValue,
    common: Common,
) -> TensorValue:
    """Latents [M, K] at group ends; leaves: rows, keys, open groups; weights: wkv, wgate, norm, wk, k_norm."""
    (latent,) = call(
        "sd_compress",
        [*leaves, x, rows.seq, rows.pos, rows.table, *weights, inv_freq, layer, common.model, common.mode],
        (F, [x.shape[0], weights[0].shape[0]]),
    )
    return latent


def index(
    x: TensorValue,
    latent: TensorValue,
    chosen: TensorValue,
    blocks: TensorValue,
    keys: BufferValue,
    rows: Rows,
    weights: Sequence[TensorValue],
    inv_freq: TensorValue,
    layer: TensorValue,
    common: Common,
) -> tuple[TensorValue, TensorValue]:
    """chosen int32 [M, N] and blocks int32 [M, NB]; weights: wq_b, scale, weights_proj."""
    new, published = call(
        "sd_index",
        [keys, x, latent, blocks, rows.seq, rows.pos, rows.table, *weights, inv_freq, layer, common.mode],
        (DType.int32, chosen.shape),
        (DType.int32, blocks.shape),
    )
    return new, published


def attend(
    q: TensorValue,
    window: BufferValue,
    kv: BufferValue,
    chosen: TensorValue,
    block_rows: TensorValue,
    rows: Rows,
    sink: TensorValue,
    inv_freq: TensorValue,
    layer: TensorValue,
    common: Common,
) -> TensorValue:
    """Attention outputs [M, H K]; `kv` is the compressed leaf, block_rows [M, K] a draft block's own rows."""
    (o,) = call(
        "sd_attend",
        [
            window,
            kv,
            q,
            chosen,
            block_rows,
            rows.seq,
            rows.pos,
            rows.last,
            rows.table,
            sink,
            inv_freq,
            layer,
            common.mode,
        ],
        (F, q.shape),
    )
    return o


def attention_out(
    o: TensorValue, h: TensorValue, mix: TensorValue, weights: Sequence[TensorValue], common: Common
) -> tuple[TensorValue, TensorValue]:
    """h [M, C, D] and the sublayer's output [M, D]; weights: wo_a, scale, wo_b, scale."""
    out, y = call("sd_attention_out", [o, h, mix, *weights, common.mode], (F, h.shape), (F, [h.shape[0], h.shape[2]]))
    return out, y


def moe(
    x: TensorValue,
    h: TensorValue,
    mix: TensorValue,
    weights: Sequence[TensorValue],
    common: Common,
    *,
    top_k: int,
) -> tuple[TensorValue, TensorValue, TensorValue, TensorValue]:
    """h [M, C, D], output [M, D], expert ids int32 and weights [M, top_k].

    weights: gate, bias, then w1, w3, w2 of the routed experts [E, …] and of the shared one, each with its scale.
    """
    m = h.shape[0]
    out, y, ids, w = call(
        "sd_moe",
        [x, h, mix, *weights, common.model, common.mode],
        (F, h.shape),
        (F, [m, h.shape[2]]),
        (DType.int32, [m, top_k]),
        (F, [m, top_k]),
    )
    return out, y, ids, w


def engram(
    h: TensorValue,
    table_rows: TensorValue,
    pos: TensorValue,
    tokens: TensorValue,
    weights: Sequence[TensorValue],
    common: Common,
) -> TensorValue:
    """h [M, C, D] after an Engram layer.

    weights: ids, which, table, scale, wkv, scale, q_weight, k_weight; table_rows int64 [M, L, G].
    """
    (out,) = call("sd_engram", [h, table_rows, pos, tokens, *weights, common.model, common.mode], (F, h.shape))
    return out


def tap(before: TensorValue, kept: int, h: TensorValue, common: Common) -> TensorValue:
    """[M, kept + D]: the first `kept` columns of `before`, then the mean of h's copies."""
    (taps,) = call("sd_tap", [before, h, common.mode], (F, [h.shape[0], kept + int(h.shape[2])]))
    return taps


def features(taps: TensorValue, slots: TensorValue, weights: Sequence[TensorValue], common: Common) -> TensorValue:
    """The drafter's context features [M, D]; weights: main_proj, scale, main_norm."""
    (m,) = call(
        "sd_features", [taps, slots, *weights, common.model, common.mode], (F, [taps.shape[0], weights[0].shape[0]])
    )
    return m


def head(
    h: TensorValue,
    mix: TensorValue,
    rows: TensorValue,
    norm: TensorValue,
    weight: TensorValue,
    common: Common,
) -> TensorValue:
    """Logits [R, V] of rows int32 [R]."""
    (logits,) = call(
        "sd_head",
        [h, mix, rows, norm, weight, common.model, common.mode],
        (F, [rows.shape[0], weight.shape[0]]),
    )
    return logits
