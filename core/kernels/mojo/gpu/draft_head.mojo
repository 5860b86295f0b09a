"""The drafter's head on a GPU: base logits of all rows at once, then two launches a place of the block.

The launch for a place forms the Markov logits of the token drawn at the place before, which every block of it picks
from the candidates of that draw; the next launch draws.
"""

from std.collections import Array
from std.math import ceildiv
from std.memory import AddressSpace, stack_allocation
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, grid_dim, lane_id, thread_idx, warp_id
from max.gpu.host import DeviceContext, FuncAttribute
from max.gpu.primitives.warp import shuffle_xor
from std.utils import StaticTuple
from ..common import F32P, I32P, I64P, U64P, U8P, at, bf16_at
from ..quant import BF16
from ..ratio import draft_seed
from .base import BF16P, BLOCK_THREADS, WARPS, shared, warp_sum
from .collapse import collapse_kernel
from .linear import linear_gpu, planes_for, pointer, memory_of, store_tile
from .matmul import Acc, Panels, STAGES, block_memory, span, stage_bytes
from .sampling import DRAW_THREADS, F64P, PART, four_logits, part_draw, part_logit, parts_of_vocabulary, store_part
from .sampling import winner


@always_inline
def given_token(
    ids: I64P, values: F64P, marks: I32P, i: Int, place: Int, block: Int, requests: Int, parts: Int, known: Int
) -> Int:
    """By a whole warp: the token that place `place` of drafting request i follows, one of `known` embeddings."""
    var token: Int
    if place == 0:
        token = Int(ids[unsafe_offset=i * block])
    else:
        token = winner(values, marks, ((place - 1) * requests + i) * parts, parts)[0]
    return max(min(token, known - 1), 0)


def markov_kernel[
    NT: Int
](
    logits: F32P, values: F64P, marks: I32P, ids: I64P, embed: U8P, head: U8P, place_: Int32, block_: Int32,
    requests_: Int32, vocabulary: Int32, rank_: Int32, parts: Int32, known: Int32,
):
    """Adds the Markov logits of one place of every block; grid (ceildiv(V, 16 WARPS), ceildiv(requests, 8 NT))."""
    var place = Int(place_)
    var block = Int(block_)
    var requests = Int(requests_)
    var v = Int(vocabulary)
    var rank = Int(rank_)
    var warp = Int(warp_id())
    var lane = Int(lane_id())
    var t0 = Int(block_idx.y) * NT * 8
    var n0 = (Int(block_idx.x) * WARPS + warp) * 16
    var tokens = stack_allocation[NT * 8, DType.int32, address_space=AddressSpace.SHARED]()
    var ring = block_memory().unsafe_offset(warp * STAGES * stage_bytes[1]())
    var sums = block_memory().unsafe_offset(WARPS * STAGES * stage_bytes[1]() + warp * NT * 512).unsafe_bitcast[Float32]()
    for i in range(warp, NT * 8, WARPS):
        var request = min(t0 + i, requests - 1)
        var token = given_token(ids, values, marks, request, place, block, requests, Int(parts), Int(known))
        if lane == 0:
            tokens[unsafe_offset=i] = Int32(token)
    barrier()
    if n0 < v:
        var offsets = Array[Int, NT](fill=0)
        comptime for i in range(NT):
            offsets[i] = Int(tokens[unsafe_offset=i * 8 + lane // 4]) * rank
        var acc = Array[Acc, NT](fill=Acc(0))
        # Embeddings are bfloat16 as stored: one plane, whatever the rounding of the run.
        var panels = Panels[BF16, 1](rank)
        panels.set(0, head, head, n0, v, rank)
        span[BF16, 1, NT](acc, ring, panels, 0, rank, embed.unsafe_bitcast[BFloat16](), offsets, 0, 1)
        comptime for i in range(NT):
            store_tile(sums.unsafe_offset(i * 128), acc[i], False)
    barrier()
    if n0 >= v:
        return
    for i in range(lane, NT * 128, 32):
        var request = t0 + i // 16
        var column = n0 + i % 16
        if request < requests and column < v:
            var home = (request * block + place) * v + column
            logits[unsafe_offset=home] = at(logits, home) + sums[unsafe_offset=i]


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(DRAW_THREADS)))
def draft_draw_kernel(
    values: F64P, marks: I32P, logits: F32P, slots: I32P, pos: I32P, seed: U64P, temperature: F32P, acceptance: I32P,
    place: Int32, block: Int32, vocabulary: Int32,
):
    """Grid (parts of the vocabulary, drafting requests): candidates of one place's draw."""
    var part = Int(block_idx.x)
    var i = Int(block_idx.y)
    var n = Int(vocabulary)
    var parts = parts_of_vocabulary(n)
    var r = i * Int(block) + Int(place)
    var s = Int(slots[unsafe_offset=r]) // Int(block)
    var x = four_logits(logits.unsafe_offset(r * n), part * PART + Int(thread_idx.x) * 4, n)
    var position = Int(pos[unsafe_offset=r]) + 1
    var start = Int(pos[unsafe_offset=i * Int(block)]) + 1
    var key = draft_seed(seed[unsafe_offset=s], acceptance[unsafe_offset=s], start)
    var best = part_draw(x, part, part_logit(x, part), temperature[unsafe_offset=s], key, position)
    store_part(values, marks, i * parts + part, best, 0)


def copy_kernel(y: F32P, x: F32P, count: Int32):
    """Grid over `count` values."""
    var i = Int(block_idx.x) * BLOCK_THREADS + Int(thread_idx.x)
    if i < Int(count):
        y[unsafe_offset=i] = x[unsafe_offset=i]


def drafts_kernel(
    drafts: I64P, confidence: F32P, values: F64P, marks: I32P, dots: F32P, slots: I32P, ids: I64P, embed: U8P,
    confidence_proj: U8P, requests_: Int32, columns: Int32, rank: Int32, parts: Int32, known: Int32,
):
    """Grid (requests, block), one warp: a draft token and its confidence, -1 and 0 where nothing was drafted."""
    var s = Int(block_idx.x)
    var place = Int(block_idx.y)
    var block = Int(grid_dim.y)
    var requests = Int(requests_)
    var lane = Int(lane_id())
    var found = Int32(-1)
    for q in range(lane, requests, 32):
        if Int(slots[unsafe_offset=q * block]) // block == s:
            found = Int32(q)
    comptime for step in range(5):
        found = max(found, shuffle_xor(found, UInt32(16 >> step)))
    var i = Int(found)
    var home = s * block + place
    if i < 0:
        if lane == 0:
            drafts[unsafe_offset=home] = -1
            confidence[unsafe_offset=home] = 0
        return
    var token = winner(values, marks, (place * requests + i) * Int(parts), Int(parts))[0]
    var given = given_token(ids, values, marks, i, place, block, requests, Int(parts), Int(known))
    var total = Float32(0)
    for q in range(lane, Int(rank), 32):
        total += bf16_at(embed, given * Int(rank) + q) * bf16_at(confidence_proj, Int(columns) + q)
    total = warp_sum(total) + at(dots, i * block + place)
    if lane == 0:
        drafts[unsafe_offset=home] = Int64(token)
        confidence[unsafe_offset=home] = total


@always_inline
def collapsed(
    ctx: DeviceContext, planes: BF16P, dots: F32P, h: F32P, mix: F32P, slots: I32P, norm: F32P, confidence_proj: U8P,
    n: Int, c: Int, d: Int, m: Int, model: F32P, mode: I32P,
) raises:
    """Normed rows of h into planes [3, n, d], and the confidence's part of each un-normed row; one launch."""
    var spare = ctx.enqueue_create_buffer[DType.float32](n * d)
    ctx.enqueue_function[collapse_kernel[False]](
        planes, pointer(spare), dots, h, mix, slots, norm, confidence_proj, Int32(c), Int32(d), Int32(m), Int32(n),
        Int32(n * d), model, mode, grid_dim=n, block_dim=BLOCK_THREADS,
    )
    _ = spare^


def places_gpu(
    ctx: DeviceContext, drafts: I64P, confidence: F32P, logits: F32P, dots: F32P, slots: I32P, ids: I64P, pos: I32P,
    seed: U64P, temperature: F32P, acceptance: I32P, embed: U8P, markov_head: U8P, confidence_proj: U8P, b: Int, n: Int,
    d: Int, v: Int, block: Int, rank: Int, known: Int,
) raises:
    """1 + 2 block launches, one if nobody drafts: logits [n, v] come in without their Markov part."""
    var requests = n // block
    var parts = parts_of_vocabulary(v)
    var places = max(requests * parts, 1)
    var values = ctx.enqueue_create_buffer[DType.float64](block * places)
    var marks = ctx.enqueue_create_buffer[DType.int32](2 * block * places)

    @__parameter
    def markov[NT: Int](place: Int) raises:
        ctx.enqueue_function[markov_kernel[NT]](
            logits, pointer(values), pointer(marks), ids, embed, markov_head, Int32(place), Int32(block),
            Int32(requests), Int32(v), Int32(rank), Int32(parts), Int32(known),
            grid_dim=(ceildiv(v, 16 * WARPS), ceildiv(requests, 8 * NT)), block_dim=BLOCK_THREADS,
            shared_mem_bytes=memory_of[1, NT](),
            func_attribute=FuncAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES(UInt32(memory_of[1, NT]())),
        )

    for place in range(block if n > 0 else 0):
        if requests <= 8:
            markov[1](place)
        else:
            markov[4](place)
        var home = place * requests * parts
        ctx.enqueue_function[draft_draw_kernel](
            pointer(values).unsafe_offset(home), pointer(marks).unsafe_offset(2 * home), logits, slots, pos, seed,
            temperature, acceptance, Int32(place), Int32(block), Int32(v), grid_dim=(parts, requests),
            block_dim=DRAW_THREADS,
        )
    ctx.enqueue_function[drafts_kernel](
        drafts, confidence, pointer(values), pointer(marks), dots, slots, ids, embed, confidence_proj,
        Int32(requests), Int32(d), Int32(rank), Int32(parts), Int32(known), grid_dim=(b, block), block_dim=32,
    )
    _ = values^
    _ = marks^


def draft_head_gpu(
    ctx: DeviceContext, drafts: I64P, confidence: F32P, logits: F32P, h: F32P, mix: F32P, slots: I32P, ids: I64P,
    pos: I32P, seed: U64P, temperature: F32P, acceptance: I32P, norm: F32P, head: U8P, embed: U8P, markov_head: U8P,
    confidence_proj: U8P, b: Int, n: Int, c: Int, d: Int, m: Int, v: Int, block: Int, rank: Int, known: Int,
    model: F32P, mode: I32P,
) raises:
    """3 + 2 block launches, one if nobody drafts. n rows of h, b requests, `known` rows of embed."""
    if b == 0 or block == 0:
        return
    var dots = ctx.enqueue_create_buffer[DType.float32](max(n, 1))
    if n > 0:
        var planes = planes_for(ctx, n, d)
        collapsed(
            ctx, pointer(planes), pointer(dots), h, mix, slots, norm, confidence_proj, n, c, d, m, model, mode
        )
        linear_gpu[BF16](ctx, logits, pointer(planes), n, d, head, head, v, False, mode)
        _ = planes^
    places_gpu(
        ctx, drafts, confidence, logits, pointer(dots), slots, ids, pos, seed, temperature, acceptance, embed,
        markov_head, confidence_proj, b, n, d, v, block, rank, known,
    )
    _ = dots^


def draft_tokens_gpu(
    ctx: DeviceContext, drafts: I64P, confidence: F32P, logits: F32P, base: F32P, h: F32P, mix: F32P, slots: I32P,
    ids: I64P, pos: I32P, seed: U64P, temperature: F32P, acceptance: I32P, norm: F32P, embed: U8P, markov_head: U8P,
    confidence_proj: U8P, b: Int, n: Int, c: Int, d: Int, m: Int, v: Int, block: Int, rank: Int, known: Int,
    model: F32P, mode: I32P,
) raises:
    """See `sd_draft_tokens`; 2 + 2 block launches and a copy, one launch if nobody drafts."""
    if b == 0 or block == 0:
        return
    var dots = ctx.enqueue_create_buffer[DType.float32](max(n, 1))
    if n > 0:
        var planes = planes_for(ctx, n, d)
        collapsed(
            ctx, pointer(planes), pointer(dots), h, mix, slots, norm, confidence_proj, n, c, d, m, model, mode
        )
        ctx.enqueue_function[copy_kernel](
            logits, base, Int32(n * v), grid_dim=ceildiv(n * v, BLOCK_THREADS), block_dim=BLOCK_THREADS
        )
        _ = planes^
    places_gpu(
        ctx, drafts, confidence, logits, pointer(dots), slots, ids, pos, seed, temperature, acceptance, embed,
        markov_head, confidence_proj, b, n, d, v, block, rank, known,
    )
    _ = dots^


def every_row_kernel(rows: I32P, count: Int32):
    """Grid over `count` rows."""
    var i = Int(block_idx.x) * BLOCK_THREADS + Int(thread_idx.x)
    if i < Int(count):
        rows[unsafe_offset=i] = Int32(i)


def every_row_gpu(ctx: DeviceContext, rows: I32P, count: Int) raises:
    """See `sd_every_row`; one launch."""
    if count > 0:
        ctx.enqueue_function[every_row_kernel](
            rows, Int32(count), grid_dim=ceildiv(count, BLOCK_THREADS), block_dim=BLOCK_THREADS
        )
