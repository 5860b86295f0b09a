"""Launching linear layers: staged activations times one or two stored weights.

The number of column spans and the tiles of a block follow from the weight's shape alone, so a result never depends on
the number of rows.
"""

from std.collections import Array
from std.math import ceildiv
from std.utils import StaticTuple
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, lane_id, warp_id
from max.gpu.host import DeviceBuffer, DeviceContext, FuncAttribute
from max.gpu.sync import syncwarp
from ..common import F32P, I32P, U8P, bf16
from ..quant import BF16, E2M1, E4M3
from .base import BF16P, BLOCK_THREADS, Shared, WARPS, is_exact, parts_of
from .matmul import Acc, Panels, STAGES, block_memory, chunk_columns, span, stage_bytes
from .staged import PLANES, stage

comptime GRID_WARPS = 4224  # 32 warps on each of an H200's 132 multiprocessors
comptime WIDE_BLOCKS = 64  # fewer blocks than this leave too much of the device idle


@always_inline
def memory_of[M: Int, NT: Int]() -> Int:
    """Bytes of shared memory of a block: every warp's ring, then every warp's results."""
    return WARPS * (STAGES * stage_bytes[M]() + M * NT * 512)


@always_inline
def bounds_of[fmt: Int](k: Int, split: Int, part: Int) -> Tuple[Int, Int]:
    """First and end column of one of `split` spans, whole chunks each."""
    comptime chunk = chunk_columns[fmt]()
    var length = (k + chunk * split - 1) // (chunk * split) * chunk
    var begin = min(part * length, k)
    return (begin, min(begin + length, k))


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(BLOCK_THREADS)),
    `nvvm.minctasm`=SIMDLength(3 if M * NT == 1 else 2),
)
def linear_kernel[
    fmt: Int, M: Int, NT: Int, WIDE: Bool
](
    x: BF16P, w1: U8P, s1: U8P, y1: F32P, n1: Int32, ld1: Int32, w2: U8P, s2: U8P, y2: F32P, n2: Int32, ld2: Int32,
    t: Int32, columns: Int32, ldx: Int32, plane: Int32, group: Int32, split_log: Int32, length: Int32, rounded: Int32,
    mode: I32P,
):
    """Grid (tiles of 16 M outputs of both weights / tiles of a block, row tiles / NT).

    Few rows: the warps of a tile take a span each. WIDE: a warp takes all spans of its tile in turn, so that the
    warps of a block read the same activations at the same time. The sums are the same.
    """
    # 32 bits and no divisions: what comes before the first load counts.
    var exact = is_exact(mode)
    var k = Int(columns)
    var warps_log = UInt32(0) if WIDE else UInt32(split_log)  # of the warps of a tile
    var warp = UInt32(warp_id())
    var lane = Int(lane_id())
    var part = warp & ((UInt32(1) << warps_log) - 1)
    var t0 = Int(block_idx.y) * NT * 8
    var tile = Int(block_idx.x) * Int(UInt32(WARPS) >> warps_log) + Int(warp >> warps_log)
    var tiles = (Int(n1) + 16 * M - 1) // (16 * M)
    var one = tile < tiles
    var n0 = (tile if one else tile - tiles) * 16 * M
    var n = Int(n1 if one else n2)
    var y = y1 if one else y2
    var ld = Int(ld1 if one else ld2)
    var memory = block_memory()
    var ring = memory.unsafe_offset(Int(warp) * STAGES * stage_bytes[M]())
    var partial = memory.unsafe_offset(WARPS * STAGES * stage_bytes[M]()).unsafe_bitcast[Float32]()
    var home = partial.unsafe_offset(Int(warp) * M * NT * 128)
    if n0 < n:
        var panels = Panels[fmt, M](k)
        comptime for m in range(M):
            panels.set(m, w1 if one else w2, s1 if one else s2, n0 + 16 * m, n, k)
        var shift = Int(UInt32(n0) // UInt32(group)) * k
        var offsets = Array[Int, NT](fill=0)
        comptime for i in range(NT):
            offsets[i] = min(t0 + i * 8 + lane // 4, Int(t) - 1) * Int(ldx) + shift
        var first = 0 if WIDE else Int(part)
        for p in range(first, 1 << Int(split_log) if WIDE else first + 1):
            var begin = min(p * Int(length), k)
            var acc = Array[Acc, M * NT](fill=Acc(0))
            span[fmt, M, NT](
                acc, ring, panels, begin, min(begin + Int(length), k), x, offsets, Int(plane), parts_of(exact)
            )
            comptime for i in range(M * NT):
                store_tile(home.unsafe_offset(i * 128), acc[i], WIDE and p > 0)
    comptime if WIDE:
        syncwarp()
    else:
        barrier()
    if n0 >= n:
        return
    var warps = 1 << Int(warps_log)
    var sums = partial.unsafe_offset(Int(warp - part) * M * NT * 128)
    for i in range(Int(part) * 32 + lane, M * NT * 128, warps * 32):
        var row = t0 + i // 128 % NT * 8 + i % 128 // 16
        var column = n0 + i // (NT * 128) * 16 + i % 16
        if row < Int(t) and column < n:
            var total = sums[unsafe_offset=i]
            for p in range(1, warps):
                total += sums[unsafe_offset=p * M * NT * 128 + i]
            y[unsafe_offset=row * ld + column] = bf16(total, exact and rounded != 0)


@always_inline
def store_tile(home: Shared, acc: Acc, add: Bool):
    """One MMA result of a warp as [8 activation rows, 16 outputs]; `add`: onto what is there."""
    var lane = Int(lane_id())
    var place = home.unsafe_offset(lane % 4 * 32 + lane // 4)
    comptime for i in range(4):
        comptime at = i % 2 * 16 + i // 2 * 8
        var v = acc[i]
        if add:
            v = place[unsafe_offset=at] + v
        place[unsafe_offset=at] = v


def split_of(chunk: Int, tiles: Int, k: Int) -> Int:
    """Column spans per output: enough warps to fill the device, at least four chunks each."""
    var split = WARPS
    while split > 1 and (k < split * 4 * chunk or (split > 2 and tiles * split > GRID_WARPS)):
        split //= 2
    return split


def linear_pair[
    fmt: Int
](
    ctx: DeviceContext, x: BF16P, w1: U8P, s1: U8P, y1: F32P, n1: Int, ld1: Int, w2: U8P, s2: U8P, y2: F32P, n2: Int,
    ld2: Int, t: Int, k: Int, ldx: Int, plane: Int, group: Int, rounded: Bool, mode: I32P, spans: Int = 0,
) raises:
    """Results of two weights from the same activations; a second weight of no rows is none.

    x: rows of k columns, ldx apart, in planes `plane` apart. group: outputs that share one span of k columns (a
    grouped projection), or at least n1. rounded: results become bfloat16 in a run with the model's own rounding.
    spans: column spans of an output, for measurements of other choices than `split_of`'s.
    """
    if t == 0:
        return
    var split = spans if spans > 0 else split_of(chunk_columns[fmt](), ceildiv(n1, 16) + ceildiv(n2, 16), k)
    var length = ceildiv(k, chunk_columns[fmt]() * split) * chunk_columns[fmt]()
    var split_log = 0
    while 1 << split_log < split:
        split_log += 1

    @__parameter
    def launch[M: Int, NT: Int, WIDE: Bool]() raises:
        var tiles = ceildiv(n1, 16 * M) + ceildiv(n2, 16 * M)
        ctx.enqueue_function[linear_kernel[fmt, M, NT, WIDE]](
            x, w1, s1, y1, Int32(n1), Int32(ld1), w2, s2, y2, Int32(n2), Int32(ld2), Int32(t), Int32(k), Int32(ldx),
            Int32(plane), Int32(group), Int32(split_log), Int32(length), Int32(1 if rounded else 0), mode,
            grid_dim=(ceildiv(tiles, WARPS if WIDE else WARPS // split), ceildiv(t, 8 * NT)), block_dim=BLOCK_THREADS,
            shared_mem_bytes=memory_of[M, NT](),
            func_attribute=FuncAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES(UInt32(memory_of[M, NT]())),
        )

    var wide_blocks = ceildiv(ceildiv(n1, 32) + ceildiv(n2, 32), WARPS) * ceildiv(t, 32)
    if t <= 8:
        launch[1, 1, False]()
    elif split <= 2 and wide_blocks >= WIDE_BLOCKS and group % 32 == 0:
        launch[2, 4, True]()
    else:
        launch[1, 4, False]()


def linear_gpu[
    fmt: Int
](
    ctx: DeviceContext, y: F32P, x: BF16P, t: Int, k: Int, w: U8P, s: U8P, n: Int, rounded: Bool, mode: I32P
) raises:
    """Gives y [t, n] = planes x [3, t, k] times one weight."""
    linear_pair[fmt](ctx, x, w, s, y, n, n, w, s, y, 0, 0, t, k, k, t * k, n, rounded, mode)


def planes_for(ctx: DeviceContext, t: Int, k: Int) raises -> DeviceBuffer[DType.bfloat16]:
    """Device memory for the planes of t rows."""
    return ctx.enqueue_create_buffer[DType.bfloat16](max(PLANES * t * k, 1))


@always_inline
def pointer[dtype: DType](buffer: DeviceBuffer[dtype]) -> Pointer[Scalar[dtype], MutAnyOrigin]:
    return Pointer[Scalar[dtype], MutAnyOrigin](unsafe_from_address=Int(buffer.unsafe_ptr()))
