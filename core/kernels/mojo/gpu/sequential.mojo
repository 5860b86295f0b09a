"""An autoregressive drafter's rows on a GPU."""

from std.math import ceildiv
from max.gpu import block_idx, thread_idx
from max.gpu.host import DeviceContext
from ..common import F32P, I32P, I64P, U32P, U64P, U8P, bf16_at
from ..ratio import MATCH, draft_seed
from .base import BLOCK_THREADS


def shift_row(
    r: Int, width: Int, shifted: I64P, shifted_seq: I32P, shifted_pos: I32P, merged: I64P, seq: I32P, pos: I32P,
    logit_rows: I32P, accepted: I64P, next_tokens: I64P, following: I64P,
):
    """One row of `sd_shift`."""
    var s = Int(seq[unsafe_offset=r])
    var last = Int(logit_rows[unsafe_offset=s * width]) + Int(accepted[unsafe_offset=s])
    var token = Int64(-1)
    if r < last:
        token = merged[unsafe_offset=r + 1]
    elif r == last:
        token = following[unsafe_offset=s]
        if token < 0:
            token = next_tokens[unsafe_offset=s]
    shifted[unsafe_offset=r] = token
    shifted_seq[unsafe_offset=r] = Int32(s)
    shifted_pos[unsafe_offset=r] = pos[unsafe_offset=r] if r <= last else -1


def committed(s: Int, offsets: U32P, cache_lengths: U32P, accepted: I64P) -> Int:
    """Tokens of request s that the target's caches hold after this step."""
    var count = Int(offsets[unsafe_offset=s + 1]) - Int(offsets[unsafe_offset=s])
    return Int(cache_lengths[unsafe_offset=s]) + count + Int(accepted[unsafe_offset=s])


def draft_request(
    s: Int, b: Int, keys: U64P, plain: I32P, lengths: U32P, ramp: U32P, offsets: U32P, cache_lengths: U32P,
    accepted: I64P, seed: U64P, acceptance: I32P, step: I32P,
):
    """What `sd_draft_rows` says once a request, and the end of its ramp for s = b."""
    ramp[unsafe_offset=s] = UInt32(s)
    if s == b:
        return
    var end = committed(s, offsets, cache_lengths, accepted)
    plain[unsafe_offset=s] = MATCH
    keys[unsafe_offset=s] = draft_seed(seed[unsafe_offset=s], acceptance[unsafe_offset=s], end + 1)
    lengths[unsafe_offset=s] = UInt32(Int32(end) - 1 + step[unsafe_offset=0])


def draft_row(
    i: Int, width: Int, ids: I64P, seq: I32P, pos: I32P, head_pos: I32P, last_rows: I32P, slots: I32P, offsets: U32P,
    cache_lengths: U32P, accepted: I64P, logit_rows: I32P, tokens: I64P, step: I32P,
):
    """One row of `sd_draft_rows`."""
    var s = Int(slots[unsafe_offset=i])
    var end = Int32(committed(s, offsets, cache_lengths, accepted))
    ids[unsafe_offset=i] = tokens[unsafe_offset=s]
    seq[unsafe_offset=i] = Int32(s)
    pos[unsafe_offset=i] = end - 1 + step[unsafe_offset=0]
    head_pos[unsafe_offset=i] = end + step[unsafe_offset=0]
    last_rows[unsafe_offset=i] = logit_rows[unsafe_offset=s * width] + Int32(accepted[unsafe_offset=s])


def shift_kernel(
    shifted: I64P, shifted_seq: I32P, shifted_pos: I32P, merged: I64P, seq: I32P, pos: I32P, logit_rows: I32P,
    accepted: I64P, next_tokens: I64P, following: I64P, e: Int32, width: Int32,
):
    """One row a thread."""
    var r = Int(block_idx.x) * BLOCK_THREADS + Int(thread_idx.x)
    if r >= Int(e):
        return
    shift_row(
        r, Int(width), shifted, shifted_seq, shifted_pos, merged, seq, pos, logit_rows, accepted, next_tokens,
        following,
    )


def shift_gpu(
    ctx: DeviceContext, shifted: I64P, shifted_seq: I32P, shifted_pos: I32P, merged: I64P, seq: I32P, pos: I32P,
    logit_rows: I32P, accepted: I64P, next_tokens: I64P, following: I64P, e: Int, width: Int,
) raises:
    """One launch."""
    if e > 0:
        ctx.enqueue_function[shift_kernel](
            shifted, shifted_seq, shifted_pos, merged, seq, pos, logit_rows, accepted, next_tokens, following,
            Int32(e), Int32(width), grid_dim=ceildiv(e, BLOCK_THREADS), block_dim=BLOCK_THREADS,
        )


def draft_rows_kernel(
    ids: I64P, seq: I32P, pos: I32P, head_pos: I32P, last_rows: I32P, keys: U64P, plain: I32P, lengths: U32P,
    ramp: U32P, slots: I32P, offsets: U32P, cache_lengths: U32P, accepted: I64P, logit_rows: I32P, tokens: I64P,
    seed: U64P, acceptance: I32P, step: I32P, b: Int32, n: Int32, width: Int32,
):
    """One request and one row a thread."""
    var i = Int(block_idx.x) * BLOCK_THREADS + Int(thread_idx.x)
    if i <= Int(b):
        draft_request(
            i, Int(b), keys, plain, lengths, ramp, offsets, cache_lengths, accepted, seed, acceptance, step
        )
    if i < Int(n):
        draft_row(
            i, Int(width), ids, seq, pos, head_pos, last_rows, slots, offsets, cache_lengths, accepted, logit_rows,
            tokens, step,
        )


def draft_rows_gpu(
    ctx: DeviceContext, ids: I64P, seq: I32P, pos: I32P, head_pos: I32P, last_rows: I32P, keys: U64P, plain: I32P,
    lengths: U32P, ramp: U32P, slots: I32P, offsets: U32P, cache_lengths: U32P, accepted: I64P, logit_rows: I32P,
    tokens: I64P, seed: U64P, acceptance: I32P, step: I32P, b: Int, n: Int, width: Int,
) raises:
    """One launch; no more rows than requests."""
    ctx.enqueue_function[draft_rows_kernel](
        ids, seq, pos, head_pos, last_rows, keys, plain, lengths, ramp, slots, offsets, cache_lengths, accepted,
        logit_rows, tokens, seed, acceptance, step, Int32(b), Int32(n), Int32(width),
        grid_dim=ceildiv(b + 1, BLOCK_THREADS), block_dim=BLOCK_THREADS,
    )


def take_kernel(taken: F32P, x: F32P, rows: I32P, w: Int32):
    """Grid (rows, ceildiv(W, threads))."""
    var i = Int(block_idx.x)
    var q = Int(block_idx.y) * BLOCK_THREADS + Int(thread_idx.x)
    if q < Int(w):
        taken[unsafe_offset=i * Int(w) + q] = x[unsafe_offset=Int(rows[unsafe_offset=i]) * Int(w) + q]


def take_gpu(ctx: DeviceContext, taken: F32P, x: F32P, rows: I32P, n: Int, w: Int) raises:
    """One launch."""
    if n > 0:
        ctx.enqueue_function[take_kernel](
            taken, x, rows, Int32(w), grid_dim=(n, ceildiv(w, BLOCK_THREADS)), block_dim=BLOCK_THREADS
        )


def join_kernel(joined: F32P, tokens: I64P, table: U8P, u: F32P, d: Int32, vocabulary: Int32):
    """Grid (rows, ceildiv(D, threads))."""
    var r = Int(block_idx.x)
    var q = Int(block_idx.y) * BLOCK_THREADS + Int(thread_idx.x)
    if q >= Int(d):
        return
    var token = min(Int(tokens[unsafe_offset=r]), Int(vocabulary) - 1)
    var home = 2 * r * Int(d) + q
    joined[unsafe_offset=home] = bf16_at(table, token * Int(d) + q) if token >= 0 else Float32(0)
    joined[unsafe_offset=home + Int(d)] = u[unsafe_offset=r * Int(d) + q]


def join_gpu(
    ctx: DeviceContext, joined: F32P, tokens: I64P, table: U8P, u: F32P, e: Int, d: Int, vocabulary: Int
) raises:
    """One launch."""
    if e > 0:
        ctx.enqueue_function[join_kernel](
            joined, tokens, table, u, Int32(d), Int32(vocabulary), grid_dim=(e, ceildiv(d, BLOCK_THREADS)),
            block_dim=BLOCK_THREADS,
        )


def widen_kernel(h: F32P, mix: F32P, x: F32P, copies: Int32, d: Int32, gates: Int32):
    """Grid (rows, ceildiv(D, threads))."""
    var r = Int(block_idx.x)
    if block_idx.y == 0:
        for i in range(Int(thread_idx.x), Int(gates), BLOCK_THREADS):
            mix[unsafe_offset=r * Int(gates) + i] = 1 if i == 0 else 0
    var q = Int(block_idx.y) * BLOCK_THREADS + Int(thread_idx.x)
    if q < Int(d):
        for copy in range(Int(copies)):
            h[unsafe_offset=(r * Int(copies) + copy) * Int(d) + q] = x[unsafe_offset=r * Int(d) + q]


def widen_gpu(ctx: DeviceContext, h: F32P, mix: F32P, x: F32P, e: Int, c: Int, d: Int, m: Int) raises:
    """One launch."""
    if e > 0:
        ctx.enqueue_function[widen_kernel](
            h, mix, x, Int32(c), Int32(d), Int32(m), grid_dim=(e, ceildiv(d, BLOCK_THREADS)), block_dim=BLOCK_THREADS
        )
