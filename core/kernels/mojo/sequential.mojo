"""An autoregressive drafter's rows: the shift by one token, single draft tokens, and its input streams."""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from .common import U8P, bf16_at
from .gpu.sequential import (
    draft_request, draft_row, draft_rows_gpu, join_gpu, shift_gpu, shift_row, take_gpu, widen_gpu
)


@compiler.register("sd_shift")
struct Shift:
    """The token after each merged row, as far as it is committed: what an autoregressive drafter runs beside it.

    A request's rows up to its last committed one see the token behind them; that one sees following[b], or
    next_tokens[b] where following is -1. Rows behind it are dead. merged, seq, pos [M]; logit_rows [B (K + 1)];
    accepted, next_tokens, following [B]; rows [E], E = M or 0, carries the size alone. Out: tokens, seq, pos [E].
    """

    @staticmethod
    def execute[target: StaticString](
        shifted: OutputTensor[dtype=DType.int64, rank=1, ...],
        shifted_seq: OutputTensor[dtype=DType.int32, rank=1, ...],
        shifted_pos: OutputTensor[dtype=DType.int32, rank=1, ...],
        merged: InputTensor[dtype=DType.int64, rank=1, ...],
        seq: InputTensor[dtype=DType.int32, rank=1, ...],
        pos: InputTensor[dtype=DType.int32, rank=1, ...],
        logit_rows: InputTensor[dtype=DType.int32, rank=1, ...],
        accepted: InputTensor[dtype=DType.int64, rank=1, ...],
        next_tokens: InputTensor[dtype=DType.int64, rank=1, ...],
        following: InputTensor[dtype=DType.int64, rank=1, ...],
        rows: InputTensor[dtype=DType.int8, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        var e = rows.dim_size(0)
        var width = logit_rows.dim_size(0) // max(accepted.dim_size(0), 1)
        if e != 0 and e != merged.dim_size(0):
            raise Error("sd_shift: the placeholder's length is neither the merged rows nor 0")
        comptime if is_gpu[target]():
            shift_gpu(
                ctx, shifted.unsafe_ptr(), shifted_seq.unsafe_ptr(), shifted_pos.unsafe_ptr(), merged.unsafe_ptr(),
                seq.unsafe_ptr(), pos.unsafe_ptr(), logit_rows.unsafe_ptr(), accepted.unsafe_ptr(),
                next_tokens.unsafe_ptr(), following.unsafe_ptr(), e, width,
            )
            return
        for r in range(e):
            shift_row(
                r, width, shifted.unsafe_ptr(), shifted_seq.unsafe_ptr(), shifted_pos.unsafe_ptr(),
                merged.unsafe_ptr(), seq.unsafe_ptr(), pos.unsafe_ptr(), logit_rows.unsafe_ptr(),
                accepted.unsafe_ptr(), next_tokens.unsafe_ptr(), following.unsafe_ptr(),
            )


@compiler.register("sd_draft_rows")
struct DraftRows:
    """One row a drafting request: draft call `step` of a round, which continues from `tokens`.

    slots [N] names the drafting requests; offsets [B + 1], cache_lengths [B], accepted [B], logit_rows [B (K + 1)];
    tokens [B, 1] the token that the call runs, seed [B] and acceptance [B] of the requests. Out [N]: ids; seq; pos, the
    drafter's own row (the last committed one in call 0); head_pos, the position of ids; last_rows, the last committed
    merged row. keys [B]: the seed of the round's draft draws; plain [B] is 0, for a head whose seeds are keyed. lengths
    [B]: rows of the draft cache before the call; ramp [B + 1]: offsets of one row a request.
    """

    @staticmethod
    def execute[target: StaticString](
        ids: OutputTensor[dtype=DType.int64, rank=1, ...],
        seq: OutputTensor[dtype=DType.int32, rank=1, ...],
        pos: OutputTensor[dtype=DType.int32, rank=1, ...],
        head_pos: OutputTensor[dtype=DType.int32, rank=1, ...],
        last_rows: OutputTensor[dtype=DType.int32, rank=1, ...],
        keys: OutputTensor[dtype=DType.uint64, rank=1, ...],
        plain: OutputTensor[dtype=DType.int32, rank=1, ...],
        lengths: OutputTensor[dtype=DType.uint32, rank=1, ...],
        ramp: OutputTensor[dtype=DType.uint32, rank=1, ...],
        slots: InputTensor[dtype=DType.int32, rank=1, ...],
        offsets: InputTensor[dtype=DType.uint32, rank=1, ...],
        cache_lengths: InputTensor[dtype=DType.uint32, rank=1, ...],
        accepted: InputTensor[dtype=DType.int64, rank=1, ...],
        logit_rows: InputTensor[dtype=DType.int32, rank=1, ...],
        tokens: InputTensor[dtype=DType.int64, rank=2, ...],
        seed: InputTensor[dtype=DType.uint64, rank=1, ...],
        acceptance: InputTensor[dtype=DType.int32, rank=1, ...],
        step: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        var b = keys.dim_size(0)
        var n = ids.dim_size(0)
        var width = logit_rows.dim_size(0) // max(b, 1)
        comptime if is_gpu[target]():
            draft_rows_gpu(
                ctx, ids.unsafe_ptr(), seq.unsafe_ptr(), pos.unsafe_ptr(), head_pos.unsafe_ptr(),
                last_rows.unsafe_ptr(), keys.unsafe_ptr(), plain.unsafe_ptr(), lengths.unsafe_ptr(),
                ramp.unsafe_ptr(), slots.unsafe_ptr(), offsets.unsafe_ptr(), cache_lengths.unsafe_ptr(),
                accepted.unsafe_ptr(), logit_rows.unsafe_ptr(), tokens.unsafe_ptr(), seed.unsafe_ptr(),
                acceptance.unsafe_ptr(), step.unsafe_ptr(), b, n, width,
            )
            return
        for s in range(b + 1):
            draft_request(
                s, b, keys.unsafe_ptr(), plain.unsafe_ptr(), lengths.unsafe_ptr(), ramp.unsafe_ptr(),
                offsets.unsafe_ptr(), cache_lengths.unsafe_ptr(), accepted.unsafe_ptr(), seed.unsafe_ptr(),
                acceptance.unsafe_ptr(), step.unsafe_ptr(),
            )
        for i in range(n):
            draft_row(
                i, width, ids.unsafe_ptr(), seq.unsafe_ptr(), pos.unsafe_ptr(), head_pos.unsafe_ptr(),
                last_rows.unsafe_ptr(), slots.unsafe_ptr(), offsets.unsafe_ptr(), cache_lengths.unsafe_ptr(),
                accepted.unsafe_ptr(), logit_rows.unsafe_ptr(), tokens.unsafe_ptr(), step.unsafe_ptr(),
            )


@compiler.register("sd_take")
struct Take:
    """Rows [N, W] of x [M, W]."""

    @staticmethod
    def execute[target: StaticString](
        taken: OutputTensor[dtype=DType.float32, rank=2, ...],
        x: InputTensor[dtype=DType.float32, rank=2, ...],
        rows: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        var w = taken.dim_size(1)
        comptime if is_gpu[target]():
            take_gpu(ctx, taken.unsafe_ptr(), x.unsafe_ptr(), rows.unsafe_ptr(), taken.dim_size(0), w)
            return
        for i in range(taken.dim_size(0)):
            var r = Int(rows.unsafe_ptr()[unsafe_offset=i])
            for q in range(w):
                taken.unsafe_ptr()[unsafe_offset=i * w + q] = x.unsafe_ptr()[unsafe_offset=r * w + q]


@compiler.register("sd_join")
struct Join:
    """[E, 2 D]: the embedding of each row's token (nothing for -1), then u [E or more, D]."""

    @staticmethod
    def execute[target: StaticString](
        joined: OutputTensor[dtype=DType.float32, rank=2, ...],
        tokens: InputTensor[dtype=DType.int64, rank=1, ...],
        table: InputTensor[dtype=DType.bfloat16, rank=2, ...],
        u: InputTensor[dtype=DType.float32, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        var e = joined.dim_size(0)
        var d = u.dim_size(1)
        comptime if is_gpu[target]():
            join_gpu(
                ctx, joined.unsafe_ptr(), tokens.unsafe_ptr(), table.unsafe_ptr().unsafe_bitcast[UInt8](),
                u.unsafe_ptr(), e, d, table.dim_size(0),
            )
            return
        var pt: U8P = table.unsafe_ptr().unsafe_bitcast[UInt8]()
        for r in range(e):
            var token = Int(tokens.unsafe_ptr()[unsafe_offset=r])
            if token >= table.dim_size(0):
                raise Error("sd_join: token id beyond the vocabulary")
            for q in range(d):
                var home = 2 * r * d + q
                joined.unsafe_ptr()[unsafe_offset=home] = bf16_at(pt, token * d + q) if token >= 0 else Float32(0)
                joined.unsafe_ptr()[unsafe_offset=home + d] = u.unsafe_ptr()[unsafe_offset=r * d + q]


@compiler.register("sd_widen")
struct Widen:
    """Residual copies h [E, C, D] of x [E, D], and the first mix, whose pre reads copy 0 alone."""

    @staticmethod
    def execute[target: StaticString](
        h: OutputTensor[dtype=DType.float32, rank=3, ...],
        mix: OutputTensor[dtype=DType.float32, rank=2, ...],
        x: InputTensor[dtype=DType.float32, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        var e = h.dim_size(0)
        var c = h.dim_size(1)
        var d = h.dim_size(2)
        var m = mix.dim_size(1)
        comptime if is_gpu[target]():
            widen_gpu(ctx, h.unsafe_ptr(), mix.unsafe_ptr(), x.unsafe_ptr(), e, c, d, m)
            return
        for r in range(e):
            for copy in range(c):
                for q in range(d):
                    h.unsafe_ptr()[unsafe_offset=(r * c + copy) * d + q] = x.unsafe_ptr()[unsafe_offset=r * d + q]
            for q in range(m):
                mix.unsafe_ptr()[unsafe_offset=r * m + q] = 1 if q == 0 else 0
