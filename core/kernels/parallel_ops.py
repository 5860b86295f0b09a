"""Graph wrappers of the kernels that one device of several runs; between them results are gathered, never summed.

Shapes: T rows, C residual copies, D hidden, k chosen experts, P groups of experts; N what this device computes.
"""

from __future__ import annotations

from collections.abc import Sequence

from max.dtype import DType
from max.graph import BufferValue, TensorValue

from specdecode.core.kernels.ops import Common, F, call

I64 = DType.int64
I32 = DType.int32


def output_groups(o: TensorValue, *weights: TensorValue, common: Common) -> TensorValue:
    """a [T, N] of these groups' heads o [T, H K / parts]; weights: wo_a and its scale."""
    (a,) = call("sd_output_groups", [o, *weights, common.mode], (F, [o.shape[0], weights[0].shape[0]]))
    return a


def output_rows(a: TensorValue, *weights: TensorValue, common: Common) -> TensorValue:
    """y [T, N] of all groups' a; weights: wo_b and its scale."""
    (y,) = call("sd_output_rows", [a, *weights, common.mode], (F, [a.shape[0], weights[0].shape[0]]))
    return y


def expand(y: TensorValue, h: TensorValue, mix: TensorValue, *, common: Common) -> TensorValue:
    """h [T, C, D] with a sublayer's output y [T, D] spread over its copies."""
    (out,) = call("sd_expand", [y, h, mix, common.mode], (F, h.shape))
    return out


def route(
    x: TensorValue, weights: Sequence[TensorValue], common: Common, *, top_k: int
) -> tuple[TensorValue, TensorValue]:
    """Expert ids int32 and weights [T, k]; weights: gate, bias."""
    t = x.shape[0]
    ids, w = call("sd_route", [x, *weights, common.model, common.mode], (I32, [t, top_k]), (F, [t, top_k]))
    return ids, w


def experts_hidden(
    x: TensorValue, ids: TensorValue, w: TensorValue, weights: Sequence[TensorValue], common: Common
) -> TensorValue:
    """hidden [T, k + 1, N]; weights: w1, w3 of the routed experts and of the shared one, each with its scale."""
    t, k = ids.shape
    (hidden,) = call(
        "sd_experts_hidden", [x, ids, w, *weights, common.model, common.mode], (F, [t, int(k) + 1, weights[4].shape[0]])
    )
    return hidden


def experts_rows(hidden: TensorValue, ids: TensorValue, *weights: TensorValue, common: Common) -> TensorValue:
    """y [T, N] of all of hidden; weights: w2 of the routed experts and of the shared one, each with its scale."""
    (y,) = call("sd_experts_rows", [hidden, ids, *weights, common.mode], (F, [hidden.shape[0], weights[2].shape[0]]))
    return y


def experts_local(
    buffer: BufferValue,
    x: TensorValue,
    ids: TensorValue,
    w: TensorValue,
    first: TensorValue,
    *weights: TensorValue,
    common: Common,
) -> TensorValue:
    """Put this device's experts' results for all devices' rows into its buffer [rows, D]; int32 [1] for `exchange`.

    first: int32 [1], its first expert; weights: w1, w3, w2 of its experts, each with its scale.
    """
    (used,) = call("sd_experts_local", [buffer, x, ids, w, first, *weights, common.model, common.mode], (I32, [1]))
    return used


def exchange(
    buffer: BufferValue, used: TensorValue, start: TensorValue, like: TensorValue, *, common: Common
) -> TensorValue:
    """[M, k, D] of the buffer [rows, D], from row start [1] on; like [M, k] are the ids of those rows."""
    (part,) = call("sd_exchange", [buffer, used, start, like], (F, [*like.shape, buffer.shape[1]]))
    return part


def experts_combine(
    x: TensorValue,
    h: TensorValue,
    mix: TensorValue,
    ids: TensorValue,
    results: TensorValue,
    share: TensorValue,
    *weights: TensorValue,
    common: Common,
) -> TensorValue:
    """h [T, C, D] from results [P, T, k, D]; share int32 [1] experts of a group.

    weights: w1, w3, w2 of the shared expert, each with its scale.
    """
    values = [x, h, mix, ids, results, share, *weights, common.model, common.mode]
    out, _ = call("sd_experts_combine", values, (F, h.shape), (F, x.shape))
    return out


def draft_tokens(
    base: TensorValue,
    h: TensorValue,
    mix: TensorValue,
    slots: TensorValue,
    ids: TensorValue,
    pos: TensorValue,
    sampling: Sequence[TensorValue],
    weights: Sequence[TensorValue],
    common: Common,
    *,
    block: int,
) -> tuple[TensorValue, TensorValue, TensorValue]:
    """As `draft_head`, from base logits [N, V]; sampling: seed, temperature, acceptance.

    weights: norm, markov_embed, markov_head, confidence_proj.
    """
    b = sampling[0].shape[0]
    drafts, confidence, logits = call(
        "sd_draft_tokens",
        [base, h, mix, slots, ids, pos, *sampling, *weights, common.model, common.mode],
        (I64, [b, block]),
        (F, [b, block]),
        (F, base.shape),
    )
    return drafts, confidence, logits
