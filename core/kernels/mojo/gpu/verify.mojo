"""Verification on a GPU: every row is drawn at once, then one warp a request accepts."""

from std.utils import StaticTuple
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, lane_id, thread_idx
from max.gpu.host import DeviceContext
from ..common import F32P, I32P, I64P, U32P, U64P
from ..sampling import GREEDY_BELOW
from .linear import pointer
from .sampling import BAD, DRAW_THREADS, F64P, LOWEST, PART, SOME, block_any, four_logits, part_draw
from .sampling import part_logit, parts_of_vocabulary, store_part, winner
from .truncate import row_logit, truncated_draw


# Without the bound the compiler may take more registers than a block of this size has.
@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(DRAW_THREADS)))
def verify_draw_kernel(
    values: F64P, marks: I32P, logits: F32P, offsets: U32P, cache_lengths: U32P, seed: U64P, temperature: F32P,
    top_k: I64P, top_p: F32P, vocabulary: Int32, width_: Int32,
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
    if heat >= GREEDY_BELOW and ((keep > 0 and keep < n) or mass < 1):
        if part == 0:
            best = truncated_draw(z, n, row_logit(z, n), heat, keep, mass, seed[unsafe_offset=s], position)
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


def verify_gpu(
    ctx: DeviceContext, accepted: I64P, next_tokens: I64P, finite: I32P, logits: F32P, drafts: I64P, offsets: U32P,
    cache_lengths: U32P, seed: U64P, temperature: F32P, top_k: I64P, top_p: F32P, b: Int, k: Int, v: Int,
) raises:
    """Two launches."""
    if b == 0:
        return
    var rows = b * (k + 1)
    var parts = parts_of_vocabulary(v)
    var values = ctx.enqueue_create_buffer[DType.float64](rows * parts)
    var marks = ctx.enqueue_create_buffer[DType.int32](2 * rows * parts)
    ctx.enqueue_function[verify_draw_kernel](
        pointer(values), pointer(marks), logits, offsets, cache_lengths, seed, temperature, top_k, top_p, Int32(v),
        Int32(k + 1), grid_dim=(parts, rows), block_dim=DRAW_THREADS,
    )
    ctx.enqueue_function[accept_kernel](
        accepted, next_tokens, finite, pointer(values), pointer(marks), drafts, Int32(parts), Int32(k),
        grid_dim=b, block_dim=32,
    )
    _ = values^
    _ = marks^
