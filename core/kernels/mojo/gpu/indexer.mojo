"""The indexer on the GPU: queries and head weights, scores of every visible key, then the best rows and blocks."""

from std.collections import Array
from std.math import ceildiv, fma, sqrt
from std.memory import bitcast
from std.utils import StaticTuple
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, lane_id, thread_idx, warp_id
from max.gpu.host import DeviceContext
from ..common import F32P, I32P, U32P, U8P, at, bf16
from ..quant import E4M3
from .base import BF16P, BLOCK_THREADS, WARPS, is_exact, warp_sum
from .choose import choose_kernel
from .linear import linear_gpu, planes_for, pointer
from .rope import rope_quad, turns_at
from .scores import MAX_DIM, SCORE_KEYS, SCORE_ROWS, score_kernel
from .select import GROUP, SELECT_THREADS
from .staged import STAGED, fp8_quad, mxfp4_quad
from .vectors import Four, load4, put_many, store4

comptime Words = SIMD[DType.uint32, 4]


@always_inline
def head_weights[
    R: Int
](
    weights: F32P, x: F32P, w: U8P, first: Int, t: Int, h: Int, heads: Int, d: Int, scale: Float32, exact: Bool
):
    """One head's weight for R of t rows, by a warp: x · w, rounded, times `scale`; zero past the last head."""
    comptime ahead = 4 // R + 1
    var lane = Int(lane_id())
    var acc = Array[Four, R](fill=Four(0))
    for base in range(lane * 8, d, 256 * ahead):
        var some = Array[Words, ahead](fill=Words(0))
        var v = Array[Four, 2 * R * ahead](fill=Four(0))
        comptime for u in range(ahead):
            var column = min(base + u * 256, d - 8)
            var home = w.unsafe_offset(2 * (min(h, heads - 1) * d + column)).unsafe_bitcast[UInt32]()
            some[u] = home.unsafe_load[width=4, alignment=16]()
            comptime for r in range(R):
                comptime for i in range(2):
                    v[(u * R + r) * 2 + i] = load4(x, min(first + r, t - 1) * d + column + 4 * i)
        comptime for u in range(ahead):
            var words = some[u] & (~UInt32(0) if base + u * 256 < d else UInt32(0))
            var even = bitcast[DType.float32, 4](words << 16)
            var odd = bitcast[DType.float32, 4](words & 0xFFFF0000)
            comptime for r in range(R):
                var a = v[(u * R + r) * 2]
                var b = v[(u * R + r) * 2 + 1]
                acc[r] = fma(Four(a[0], a[2], b[0], b[2]), even, acc[r])
                acc[r] = fma(Four(a[1], a[3], b[1], b[3]), odd, acc[r])
    var padded = (heads + 15) // 16 * 16
    comptime for r in range(R):
        var total = warp_sum((acc[r][0] + acc[r][1]) + (acc[r][2] + acc[r][3]))
        var weight = bf16(bf16(total, exact) * scale, exact) if h < heads else Float32(0)
        if lane == 0 and first + r < t and h < padded:
            weights[unsafe_offset=(first + r) * padded + h] = weight


# Without the least number of blocks the compiler saves registers, and loads wait for one another.
@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(BLOCK_THREADS)), `nvvm.minctasm`=SIMDLength(2)
)
def prepare_kernel[
    R: Int
](
    planes: BF16P, weights: F32P, latent: F32P, x: F32P, w: U8P, t_: Int32, d: Int32, nq_: Int32, heads_: Int32,
    dim: Int32, mode: I32P,
):
    """Latents through FP8 into planes [3, T, Q], and head weights [T, m 16].

    Grid (T / R, head blocks + R latent blocks of a row): the first take eight heads of R rows each.
    """
    var exact = is_exact(mode)
    var t = Int(t_)
    var nq = Int(nq_)
    var heads = Int(heads_)
    var first = Int(block_idx.x) * R
    var head_blocks = ((heads + 15) // 16 * 16) // WARPS
    var block = Int(block_idx.y)
    if block < head_blocks:
        var scale = 1 / sqrt(Float32(dim)) / sqrt(Float32(heads))
        head_weights[R](weights, x, w, first, t, block * WARPS + Int(warp_id()), heads, Int(d), scale, exact)
        return
    var row_blocks = (nq + STAGED - 1) // STAGED
    block -= head_blocks
    var r = first + block // row_blocks
    var i = block % row_blocks * STAGED + Int(thread_idx.x) * 4
    if r >= t:
        return
    var v = fp8_quad(load4(latent, r * nq + min(i, nq - 4)), exact)
    if i < nq:
        put_many[4](planes, t * nq, r * nq + i, v, exact)


def query_kernel(
    q: F32P, fragments: F32P, pos: I32P, freq: F32P, heads_: Int32, dim_: Int32, half: Int32, mode: I32P
):
    """Turns and quantises the heads of a row, in place or into fragments [T, m, steps, lane, 4 words] of bfloat16.

    Grid (T, heads / WARPS), a head a warp, four columns a lane. Fragments past the last head are zero.
    """
    var r = Int(block_idx.x)
    var h = Int(block_idx.y) * WARPS + Int(warp_id())
    var heads = Int(heads_)
    var dim = Int(dim_)
    var exact = is_exact(mode)
    var lane = Int(lane_id())
    var i = min(4 * lane, dim - 4)
    var home = q.unsafe_offset((r * heads + min(h, heads - 1)) * dim + i)
    var begin = dim - 2 * Int(half)
    var v = rope_quad(load4(home, 0), turns_at(i, begin, freq, Int(pos[unsafe_offset=r])), i, begin, exact)
    v = mxfp4_quad(v, exact)
    if 4 * lane >= dim:
        return
    if not exact:
        if h < heads:
            store4(home, 0, v)
        return
    var words = bitcast[DType.float32, 2](v.cast[DType.bfloat16]())
    var steps = dim >> 4
    var tiles = (heads + 15) >> 4
    var place = ((r * tiles + (h >> 4)) * steps + (lane >> 2)) * 32 + (h & 7) * 4 + (lane & 3)
    var fragment = fragments.unsafe_offset(place * 4 + ((h >> 3) & 1))
    fragment[unsafe_offset=0] = words[0] if h < heads else Float32(0)
    fragment[unsafe_offset=2] = words[1] if h < heads else Float32(0)


def index(
    ctx: DeviceContext, chosen: I32P, blocks: I32P, keys: F32P, x: F32P, latent: F32P, candidates: I32P, seq: I32P,
    pos: I32P, table: U32P, wq_b: U8P, wq_b_scale: U8P, weights_proj: U8P, freq: F32P, layer: I32P, mode: I32P,
    t: Int, d: Int, nq: Int, heads: Int, dim: Int, half: Int, top_k: Int, nb: Int, slots: Int, width: Int,
    capacity: Int,
) raises:
    """See `sd_index`; `capacity`: the most keys that a request's pages hold."""
    if t == 0:
        return
    if dim > MAX_DIM or dim % 32 != 0 or d % 8 != 0 or nq % 32 != 0:
        raise Error("sd_index: the GPU kernel takes index heads of 32, 64, 96 or 128 columns")
    var staged = planes_for(ctx, t, nq)
    var padded = ceildiv(heads, 16) * 16
    var memory = ctx.enqueue_create_buffer[DType.float32](t * (heads * dim + padded))
    var q = pointer(memory)
    var weights = q.unsafe_offset(t * heads * dim)
    var fragments = ctx.enqueue_create_buffer[DType.float32](t * padded * dim // 2)

    @__parameter
    def prepare[R: Int]() raises:
        ctx.enqueue_function[prepare_kernel[R]](
            pointer(staged), weights, latent, x, weights_proj, Int32(t), Int32(d), Int32(nq), Int32(heads), Int32(dim),
            mode, grid_dim=(ceildiv(t, R), padded // WARPS + R * ceildiv(nq, STAGED)), block_dim=BLOCK_THREADS,
        )

    if t <= 2:
        prepare[1]()
    else:
        prepare[4]()
    linear_gpu[E4M3](ctx, q, pointer(staged), t, nq, wq_b, wq_b_scale, heads * dim, True, mode)
    ctx.enqueue_function[query_kernel](
        q, pointer(fragments), pos, freq, Int32(heads), Int32(dim), Int32(half), mode,
        grid_dim=(t, padded // WARPS), block_dim=BLOCK_THREADS,
    )
    var cap = ceildiv(capacity, SCORE_KEYS) * SCORE_KEYS
    var scores = ctx.enqueue_create_buffer[DType.uint32](t * cap)
    var tops = ctx.enqueue_create_buffer[DType.uint32](t * cap // GROUP)
    var best = ctx.enqueue_create_buffer[DType.uint32](t * cap)
    ctx.enqueue_function[score_kernel](
        pointer(scores), pointer(tops), q, pointer(fragments), weights, keys, candidates, seq, pos, table, Int32(t),
        Int32(heads), Int32(dim), Int32(nb), Int32(cap), Int32(slots), Int32(width), layer, mode,
        grid_dim=(cap // SCORE_KEYS, ceildiv(t, SCORE_ROWS)), block_dim=BLOCK_THREADS,
    )
    ctx.enqueue_function[choose_kernel](
        chosen, blocks, pointer(scores), pointer(tops), pointer(best), candidates, pos, Int32(top_k), Int32(nb),
        Int32(cap), layer, mode, grid_dim=(t, 2), block_dim=SELECT_THREADS,
    )
    _ = staged^
    _ = memory^
    _ = fragments^
    _ = scores^
    _ = tops^
    _ = best^
