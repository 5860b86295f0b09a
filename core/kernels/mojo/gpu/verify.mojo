"""Verification on a GPU: every row is drawn at once, then one warp a request accepts.

Requests that test ratios are done once more, by a block each, whose results count.
"""

from std.utils import StaticTuple
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, lane_id, thread_idx
from max.gpu.host import DeviceContext
from ..common import F32P, I32P, I64P, U32P, U64P, held, lent
from ..law import Verified
from ..sampling import GREEDY_BELOW
from .edits import edit_gpu
from .linear import pointer
from .ratio import ratio_kernel
from .sampling import BAD, DRAW_THREADS, F64P, LOWEST, PART, SOME, block_any, four_logits, part_draw
from .sampling import part_logit, parts_of_vocabulary, store_part, winner
from .truncate import row_logit, truncated_draw


# Without the bound the compiler may take more registers than a block of this size has.
@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(DRAW_THREADS)))
def verify_draw_kernel(
    values: F64P, marks: I32P, logits: F32P, offsets: U32P, cache_lengths: U32P, seed: U64P, temperature: F32P,
    top_k: I64P, top_p: F32P, min_p: F32P, vocabulary: Int32, width_: Int32,
):
    """Grid (parts of the vocabulary, rows); `width_` rows a request."""
    var part = Int(block_idx.x)
    var r = Int(block_idx.y)
    var n = Int(vocabulary)
    var width = Int(width_)
    var s = r // width
    var tokens = Int(offsets[unsafe_offset=s + 1]) - Int(offsets[unsafe_offset=s])
    var position = Int(cache_lengths[unsafe_offset=s]) + tokens + r % width
    var heat = temperature[unsafe_offset=s]
    var keep = Int(top_k[unsafe_offset=s])
    var mass = top_p[unsafe_offset=s]
    var least = min_p[unsafe_offset=s]
    var z = logits.unsafe_offset(r * n)
    var x = four_logits(z, part * PART + Int(thread_idx.x) * 4, n)
    var bad = False
    comptime for q in range(4):
        bad = bad or not (x[q] < Float32.MAX)
    var best = part_logit(x, part)
    var flags = SOME if best.value > LOWEST else Int32(0)
    if block_any(bad):
        flags |= BAD
    # Truncation never removes the best token, so argmax need not wait for it.
    if heat >= GREEDY_BELOW and ((keep > 0 and keep < n) or mass < 1 or least > 0):
        if part == 0:
            best = truncated_draw(z, n, row_logit(z, n), heat, keep, mass, least, seed[unsafe_offset=s], position)
            best.value = 1
        else:
            best.value = LOWEST
    else:
        best = part_draw(x, part, best, heat, seed[unsafe_offset=s], position)
    store_part(values, marks, r * parts_of_vocabulary(n) + part, best, flags)


def accept_kernel(
    accepted: I64P, next_tokens: I64P, finite: I32P, values: F64P, marks: I32P, drafts: I64P, parts: Int32,
    drafted: Int32,
):
    """One warp a request: the drafts that equal the draws, and the draw after them."""
    var s = Int(block_idx.x)
    var k = Int(drafted)
    var n = 0
    var token = 0
    var fine = True
    while True:
        var row = winner(values, marks, (s * (k + 1) + n) * Int(parts), Int(parts))
        token = row[0]
        fine = fine and row[1] == SOME
        if n == k or Int(drafts[unsafe_offset=s * k + n]) != token:
            break
        n += 1
    if lane_id() == 0:
        accepted[unsafe_offset=s] = Int64(n)
        next_tokens[unsafe_offset=s] = Int64(token)
        finite[unsafe_offset=s] = 1 if fine else 0


def verify_gpu(ctx: DeviceContext, verified: Verified, accepted: I64P, next_tokens: I64P, finite: I32P) raises:
    """Two launches, up to two more with edits or a grammar, and one with ratio tests."""
    verified.check()
    if verified.b == 0:
        return
    var given = verified
    var rows = verified.b * (verified.k + 1)
    var changed = verified.edits.entries > 0 or verified.mask_rows > 0
    var copy = ctx.enqueue_create_buffer[DType.float32](rows * verified.v if changed else 1)
    if changed:
        edit_gpu(ctx, pointer(copy), verified)
        given.logits = held(pointer(copy))
    var parts = parts_of_vocabulary(verified.v)
    var values = ctx.enqueue_create_buffer[DType.float64](rows * parts)
    var marks = ctx.enqueue_create_buffer[DType.int32](2 * rows * parts)
    ctx.enqueue_function[verify_draw_kernel](
        pointer(values), pointer(marks), lent(given.logits), lent(given.offsets), lent(given.cache_lengths),
        lent(given.seed), lent(given.temperature), lent(given.top_k), lent(given.top_p), lent(given.min_p),
        Int32(given.v), Int32(given.k + 1), grid_dim=(parts, rows), block_dim=DRAW_THREADS,
    )
    ctx.enqueue_function[accept_kernel](
        accepted, next_tokens, finite, pointer(values), pointer(marks), lent(given.drafts), Int32(parts),
        Int32(given.k), grid_dim=given.b, block_dim=32,
    )
    if given.prob_rows > 0 and given.k > 0:
        ctx.enqueue_function[ratio_kernel](
            accepted, next_tokens, finite, given, grid_dim=given.b, block_dim=DRAW_THREADS
        )
    _ = copy^
    _ = values^
    _ = marks^
