"""Graph wrappers of the kernels around an autoregressive drafter.

Shapes: B requests, K draft tokens a request, M merged rows, E = M rows of a drafter's first call or 0, N drafting
requests, C residual copies, D hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from max.dtype import DType
from max.graph import TensorValue

from specdecode.core.kernels.ops import F, call
from specdecode.core.kernels.step_ops import Merged

I64 = DType.int64
I32 = DType.int32
U32 = DType.uint32


@dataclass(frozen=True, kw_only=True)
class Shifted:
    """The token behind each merged row, as far as it is committed.

    Attributes:
        tokens: int64 [E], -1 in a row behind the last committed one.
        seq, pos: int32 [E]; pos is -1 there.
    """

    tokens: TensorValue
    seq: TensorValue
    pos: TensorValue


@dataclass(frozen=True, kw_only=True)
class DraftRows:
    """One draft call's row of each drafting request, and what it needs of every request.

    Attributes:
        ids: int64 [N], the token that it runs.
        seq, pos: int32 [N]; pos is the drafter's own row: the last committed one in the first call.
        head_pos: int32 [N], the position of `ids`; the draft is for the next one.
        last_rows: int32 [N], the last committed merged row.
        keys: uint64 [B], seeds of the draft draws, fresh ones under a ratio test.
        plain: int32 [B], zeros: what a head is told of the acceptance when its seeds are keys.
        lengths: uint32 [B], rows of the draft cache before the call.
        ramp: uint32 [B + 1], offsets of one row a request.
    """

    ids: TensorValue
    seq: TensorValue
    pos: TensorValue
    head_pos: TensorValue
    last_rows: TensorValue
    keys: TensorValue
    plain: TensorValue
    lengths: TensorValue
    ramp: TensorValue


def shift(
    merged: Merged, accepted: TensorValue, next_tokens: TensorValue, following: TensorValue, rows: TensorValue
) -> Shifted:
    """Tokens one place on; following int64 [B] replaces next_tokens where it is not -1; `rows` int8 [E] carries E."""
    e = rows.shape
    tokens, seq, pos = call(
        "sd_shift",
        [merged.tokens, merged.seq, merged.pos, merged.logit_rows, accepted, next_tokens, following, rows],
        (I64, e),
        (I32, e),
        (I32, e),
    )
    return Shifted(tokens=tokens, seq=seq, pos=pos)


def draft_rows(
    slots: TensorValue,
    offsets: TensorValue,
    cache_lengths: TensorValue,
    accepted: TensorValue,
    logit_rows: TensorValue,
    tokens: TensorValue,
    seed: TensorValue,
    acceptance: TensorValue,
    step: TensorValue,
) -> DraftRows:
    """Draft call `step` int32 [1] of a round, which runs tokens int64 [B, 1] of the requests slots int32 [N]."""
    n, b = slots.shape, seed.shape
    out = call(
        "sd_draft_rows",
        [slots, offsets, cache_lengths, accepted, logit_rows, tokens, seed, acceptance, step],
        (I64, n),
        (I32, n),
        (I32, n),
        (I32, n),
        (I32, n),
        (DType.uint64, b),
        (I32, b),
        (U32, b),
        (U32, offsets.shape),
    )
    return DraftRows(
        ids=out[0],
        seq=out[1],
        pos=out[2],
        head_pos=out[3],
        last_rows=out[4],
        keys=out[5],
        plain=out[6],
        lengths=out[7],
        ramp=out[8],
    )


def take(x: TensorValue, rows: TensorValue) -> TensorValue:
    """Rows int32 [N] of x [M, W]."""
    (taken,) = call("sd_take", [x, rows], (F, [rows.shape[0], x.shape[1]]))
    return taken


def join(tokens: TensorValue, table: TensorValue, u: TensorValue) -> TensorValue:
    """[E, 2 D]: the embedding of tokens int64 [E], then u: as many rows of it."""
    (joined,) = call("sd_join", [tokens, table, u], (F, [tokens.shape[0], 2 * int(u.shape[1])]))
    return joined


def widen(x: TensorValue, *, copies: int) -> tuple[TensorValue, TensorValue]:
    """Residual copies [E, C, D] of x [E, D] and the first mix [E, C (C + 2)]."""
    e, d = x.shape
    h, mix = call("sd_widen", [x], (F, [e, copies, d]), (F, [e, copies * (copies + 2)]))
    return h, mix
