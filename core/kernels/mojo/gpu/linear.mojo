"""Launching linear layers: staged activations times one or two stored weights.

The number of column spans and the tiles of a block follow from the weight's shape alone, so a result never depends on
the number of rows.
"""

from std.collections import Array
from std.math import ceildiv
from max.gpu import barrier, block_idx, lane_id, warp_id
from max.gpu.host import DeviceBuffer, DeviceContext
from ..common import F32P, I32P, U8P, bf16
from ..quant import BF16, E2M1, E4M3
from .base import BF16P, BLOCK_THREADS, Shared, WARPS, is_exact, parts_of, shared
from .matmul import Acc, chunk_columns, span
from .staged import PLANES, stage_kernel

comptime GRID_WARPS = 2112  # 16 warps on each of an H200's 132 multiprocessors


def linear_kernel[
    fmt: Int, NT: Int
](
    x: BF16P, w1: U8P, s1: U8P, y1: F32P, n1: Int32, ld1: Int32, w2: U8P, s2: U8P, y2: F32P, n2: Int32, ld2: Int32,
    t: Int32, columns: Int32, ldx: Int32, plane: Int32, group: Int32, split_: Int32, rounded: Int32, mode: I32P,
):
    """Grid (tiles of both weights / tiles of a block, row tiles / NT)."""
    var exact = is_exact(mode)
    var k = Int(columns)
    var split = Int(split_)
    var warp = Int(warp_id())
    var lane = Int(lane_id())
    var t0 = Int(block_idx.y) * NT * 8
    var tile = Int(block_idx.x) * (WARPS // split) + warp // split
    var tiles = (Int(n1) + 15) // 16
    var one = tile < tiles
    var n0 = (tile if one else tile - tiles) * 16
    var n = Int(n1 if one else n2)
    var partial = shared[WARPS * NT * 128]()
    if n0 < n:
        comptime chunk = chunk_columns[fmt]()
        var length = (k + chunk * split - 1) // (chunk * split) * chunk
        var begin = min(warp % split * length, k)
        var offsets = Array[Int, NT](fill=0)
        comptime for i in range(NT):
            offsets[i] = min(t0 + i * 8 + lane // 4, Int(t) - 1) * Int(ldx) + n0 // Int(group) * k
        var acc = Array[Acc, NT](fill=Acc(0))
        span[fmt, NT](
            acc, w1 if one else w2, s1 if one else s2, n0, n, k, begin, min(begin + length, k), x, offsets, Int(plane),
            parts_of(exact),
        )
        store_tile[NT](partial.unsafe_offset(warp * NT * 128), acc)
    barrier()
    if n0 >= n:
        return
    var sums = partial.unsafe_offset(warp // split * split * NT * 128)
    var y = y1 if one else y2
    var ld = Int(ld1 if one else ld2)
    for i in range(warp % split * 32 + lane, NT * 128, split * 32):
        var row = t0 + i // 16
        var column = n0 + i % 16
        if row < Int(t) and column < n:
            var total = sums[unsafe_offset=i]
            for part in range(1, split):
                total += sums[unsafe_offset=part * NT * 128 + i]
            y[unsafe_offset=row * ld + column] = bf16(total, exact and rounded != 0)


@always_inline
def store_tile[NT: Int](home: Shared, acc: Array[Acc, NT]):
    """A warp's MMA results as [activation row, 16 outputs]."""
    var lane = Int(lane_id())
    comptime for i in range(NT):
        var place = (i * 8 + lane % 4 * 2) * 16 + lane // 4
        home[unsafe_offset=place] = acc[i][0]
        home[unsafe_offset=place + 16] = acc[i][1]
        home[unsafe_offset=place + 8] = acc[i][2]
        home[unsafe_offset=place + 24] = acc[i][3]


def split_of(chunk: Int, tiles: Int, k: Int) -> Int:
    """Column spans per output: enough warps to fill the device, at least four chunks each."""
    var split = WARPS
    while split > 1 and (k < split * 4 * chunk or tiles * split > GRID_WARPS):
        split //= 2
    return split


def linear_pair[
    fmt: Int
](
    ctx: DeviceContext, x: BF16P, w1: U8P, s1: U8P, y1: F32P, n1: Int, ld1: Int, w2: U8P, s2: U8P, y2: F32P, n2: Int,
    ld2: Int, t: Int, k: Int, ldx: Int, plane: Int, group: Int, rounded: Bool, mode: I32P,
) raises:
    """Results of two weights from the same activations; a second weight of no rows is none.

    x: rows of k columns, ldx apart, in planes `plane` apart. group: outputs that share one span of k columns (a
    grouped projection), or at least n1. rounded: results become bfloat16 in a run with the model's own rounding.
    """
    if t == 0:
        return
    var tiles = ceildiv(n1, 16) + ceildiv(n2, 16)
    var split = split_of(chunk_columns[fmt](), tiles, k)

    @__parameter
    def launch[NT: Int]() raises:
        ctx.enqueue_function[linear_kernel[fmt, NT]](
            x, w1, s1, y1, Int32(n1), Int32(ld1), w2, s2, y2, Int32(n2), Int32(ld2), Int32(t), Int32(k), Int32(ldx),
            Int32(plane), Int32(group), Int32(split), Int32(1 if rounded else 0), mode,
            grid_dim=(ceildiv(tiles, WARPS // split), ceildiv(t, 8 * NT)), block_dim=BLOCK_THREADS,
        )

    if t <= 8:
        launch[1]()
    elif t <= 32:
        launch[4]()
    else:
        launch[8]()


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


def stage(ctx: DeviceContext, planes: BF16P, x: F32P, ldx: Int, t: Int, k: Int, quantise: Bool, mode: I32P) raises:
    """Rows x [t, k] into planes [3, t, k], through FP8 first when `quantise`."""
    if t == 0:
        return
    ctx.enqueue_function[stage_kernel](
        planes, x, Int32(ldx), Int32(k), Int32(t * k), Int32(1 if quantise else 0), mode,
        grid_dim=(t, ceildiv(k, BLOCK_THREADS)), block_dim=BLOCK_THREADS,
    )


@always_inline
def pointer[dtype: DType](buffer: DeviceBuffer[dtype]) -> Pointer[Scalar[dtype], MutAnyOrigin]:
    return Pointer[Scalar[dtype], MutAnyOrigin](unsafe_from_address=Int(buffer.unsafe_ptr()))
