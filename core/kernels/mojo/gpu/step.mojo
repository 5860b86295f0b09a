"""Around the model on a GPU: merge, lookback windows, embedding, and the draft block's rows."""

from std.math import ceildiv
from max.gpu import block_idx, thread_idx
from max.gpu.host import DeviceContext
from ..common import F32P, I32P, I64P, U32P, U8P
from ..engram import token_before
from .base import BLOCK_THREADS
from .vectors import Four, load4_bf16, store4


def merge_kernel(
    merged: I64P, seq: I32P, pos: I32P, merged_offsets: U32P, logit_rows: I32P, chosen: I32P, blocks: I32P,
    tokens: I64P, offsets: U32P, drafts: I64P, cache_lengths: U32P, rows: Int32, requests: Int32, drafted: Int32,
    chosen_width: Int32, blocks_width: Int32,
):
    """Grid (merged rows, at least one): a row each; block 0 also writes what there is once a request."""
    var r = Int(block_idx.x)
    var thread = Int(thread_idx.x)
    var b = Int(requests)
    var k = Int(drafted)
    if r == 0:
        for s in range(thread, b + 1, BLOCK_THREADS):
            merged_offsets[unsafe_offset=s] = offsets[unsafe_offset=s] + UInt32(s * k)
            if s < b:
                var end = Int(offsets[unsafe_offset=s + 1]) + s * k
                for i in range(k + 1):
                    logit_rows[unsafe_offset=s * (k + 1) + i] = Int32(end - 1 + i)
    if r >= Int(rows):
        return
    for i in range(thread, Int(chosen_width), BLOCK_THREADS):
        chosen[unsafe_offset=r * Int(chosen_width) + i] = -1
    for i in range(thread, Int(blocks_width), BLOCK_THREADS):
        blocks[unsafe_offset=r * Int(blocks_width) + i] = -1
    if thread != 0:
        return
    var s = 0  # the last request that starts at row r or before
    var high = b - 1
    while s < high:
        var middle = (s + high + 1) // 2
        if Int(offsets[unsafe_offset=middle]) + middle * k <= r:
            s = middle
        else:
            high = middle - 1
    var begin = Int(offsets[unsafe_offset=s])
    var count = Int(offsets[unsafe_offset=s + 1]) - begin
    var place = r - begin - s * k
    var alive = place < count + k
    for i in range(min(place - count + 1, k)):
        alive = alive and drafts[unsafe_offset=s * k + i] >= 0
    var token = Int64(-1)
    if alive:
        token = tokens[unsafe_offset=begin + place] if place < count else drafts[unsafe_offset=s * k + place - count]
    merged[unsafe_offset=r] = token
    seq[unsafe_offset=r] = Int32(s)
    pos[unsafe_offset=r] = Int32(Int(cache_lengths[unsafe_offset=s]) + place) if alive else -1


def merge_gpu(
    ctx: DeviceContext, merged: I64P, seq: I32P, pos: I32P, merged_offsets: U32P, logit_rows: I32P, chosen: I32P,
    blocks: I32P, tokens: I64P, offsets: U32P, drafts: I64P, cache_lengths: U32P, rows: Int, b: Int, k: Int,
    chosen_width: Int, blocks_width: Int,
) raises:
    """One launch."""
    ctx.enqueue_function[merge_kernel](
        merged, seq, pos, merged_offsets, logit_rows, chosen, blocks, tokens, offsets, drafts, cache_lengths,
        Int32(rows), Int32(b), Int32(k), Int32(chosen_width), Int32(blocks_width),
        grid_dim=max(rows, 1), block_dim=BLOCK_THREADS,
    )


def lookback_kernel(window: I64P, ids: I64P, source: I64P, history: I64P, depth: Int32, size: Int32, kept: Int32):
    """One element of the windows a thread; `kept` rows of history exist."""
    var i = Int(block_idx.x) * BLOCK_THREADS + Int(thread_idx.x)
    if i >= Int(size):
        return
    var row = Int(source[unsafe_offset=i // Int(depth)])
    var given = row < 0 or row >= Int(kept)
    window[unsafe_offset=i] = (
        ids[unsafe_offset=i] if given else history[unsafe_offset=row * Int(depth) + i % Int(depth)]
    )


def lookback_gpu(
    ctx: DeviceContext, window: I64P, ids: I64P, source: I64P, history: I64P, b: Int, depth: Int, kept: Int
) raises:
    """One launch."""
    if b * depth > 0:
        ctx.enqueue_function[lookback_kernel](
            window, ids, source, history, Int32(depth), Int32(b * depth), Int32(kept),
            grid_dim=ceildiv(b * depth, BLOCK_THREADS), block_dim=BLOCK_THREADS,
        )


def history_kernel(
    history: I64P, lookback: I64P, merged: I64P, seq: I32P, pos: I32P, logit_rows: I32P, accepted: I64P, depth_: Int32,
    size: Int32, width: Int32, rows: Int32,
):
    """One element of the windows a thread."""
    var i = Int(block_idx.x) * BLOCK_THREADS + Int(thread_idx.x)
    if i >= Int(size):
        return
    var depth = Int(depth_)
    var s = i // depth
    var last = Int(logit_rows[unsafe_offset=s * Int(width)]) + Int(accepted[unsafe_offset=s])
    last = max(min(last, Int(rows) - 1), 0)
    history[unsafe_offset=i] = token_before(merged, seq, pos, lookback, depth, last, depth - 1 - i % depth)


def history_gpu(
    ctx: DeviceContext, history: I64P, lookback: I64P, merged: I64P, seq: I32P, pos: I32P, logit_rows: I32P,
    accepted: I64P, b: Int, depth: Int, width: Int, rows: Int,
) raises:
    """One launch."""
    if b * depth > 0:
        ctx.enqueue_function[history_kernel](
            history, lookback, merged, seq, pos, logit_rows, accepted, Int32(depth), Int32(b * depth), Int32(width),
            Int32(rows), grid_dim=ceildiv(b * depth, BLOCK_THREADS), block_dim=BLOCK_THREADS,
        )


def embed_kernel(
    h: F32P, mix: F32P, tokens: I64P, table: U8P, copies: Int32, columns: Int32, gates: Int32, vocabulary: Int32
):
    """Grid (rows, ceildiv(D, 4 threads))."""
    var r = Int(block_idx.x)
    var d = Int(columns)
    if block_idx.y == 0:
        for i in range(Int(thread_idx.x), Int(gates), BLOCK_THREADS):
            mix[unsafe_offset=r * Int(gates) + i] = 1 if i == 0 else 0
    var i = (Int(block_idx.y) * BLOCK_THREADS + Int(thread_idx.x)) * 4
    if i >= d:
        return
    var token = min(Int(tokens[unsafe_offset=r]), Int(vocabulary) - 1)
    var v = Four(0)
    if token >= 0:
        v = load4_bf16(table, token * d + i)
    for copy in range(Int(copies)):
        store4(h, (r * Int(copies) + copy) * d + i, v)


def embed_gpu(
    ctx: DeviceContext, h: F32P, mix: F32P, tokens: I64P, table: U8P, t: Int, c: Int, d: Int, m: Int, vocabulary: Int
) raises:
    """One launch."""
    if t > 0:
        ctx.enqueue_function[embed_kernel](
            h, mix, tokens, table, Int32(c), Int32(d), Int32(m), Int32(vocabulary),
            grid_dim=(t, ceildiv(d, 4 * BLOCK_THREADS)), block_dim=BLOCK_THREADS,
        )


def block_inputs_kernel(
    ids: I64P, seq: I32P, pos: I32P, last: I32P, slots: I32P, offsets: U32P, cache_lengths: U32P, accepted: I64P,
    next_tokens: I64P, block: I64P, n: Int32,
):
    """One row a thread."""
    var i = Int(block_idx.x) * BLOCK_THREADS + Int(thread_idx.x)
    if i >= Int(n):
        return
    var size = Int(block[unsafe_offset=0])
    var s = Int(slots[unsafe_offset=i]) // size
    var place = Int(slots[unsafe_offset=i]) % size
    var tokens = Int(offsets[unsafe_offset=s + 1]) - Int(offsets[unsafe_offset=s])
    var end = Int(cache_lengths[unsafe_offset=s]) + tokens + Int(accepted[unsafe_offset=s])
    ids[unsafe_offset=i] = next_tokens[unsafe_offset=s] if place == 0 else block[unsafe_offset=1]
    seq[unsafe_offset=i] = Int32(s)
    pos[unsafe_offset=i] = Int32(end + place)
    last[unsafe_offset=i] = Int32(end - 1)


def block_inputs_gpu(
    ctx: DeviceContext, ids: I64P, seq: I32P, pos: I32P, last: I32P, slots: I32P, offsets: U32P, cache_lengths: U32P,
    accepted: I64P, next_tokens: I64P, block: I64P, n: Int,
) raises:
    """One launch."""
    if n > 0:
        ctx.enqueue_function[block_inputs_kernel](
            ids, seq, pos, last, slots, offsets, cache_lengths, accepted, next_tokens, block, Int32(n),
            grid_dim=ceildiv(n, BLOCK_THREADS), block_dim=BLOCK_THREADS,
        )
