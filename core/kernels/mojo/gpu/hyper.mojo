"""Hyper-connections on the GPU: raw mixes over column slices beside the normed collapse, then every row's gates."""

from std.collections import Array
from std.math import ceildiv, exp, fma, sqrt
from std.utils import StaticTuple
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, lane_id, thread_idx, warp_id
from max.gpu.host import DeviceContext
from max.gpu.primitives.warp import shuffle_idx, shuffle_xor
from max.gpu.sync import syncwarp
from ..common import F32P, I32P, at, sigmoid
from ..hyper import gates
from ..layout import HC_EPS, HC_ITERATIONS, RMS_EPS
from .base import BLOCK_THREADS, Shared, WARPS, is_exact, reciprocal, shared, warp_sums
from .collapse import collapse_norm
from .linear import pointer
from .vectors import Four, load4, store4

comptime QUADS = 2  # of a lane in a slice
comptime SLICE = 128 * QUADS  # columns of a slice; its sums are one partial each
comptime SHARERS = 4  # warps with the same rows, each with its own outputs
comptime OUTPUTS = 6  # of a warp: with four copies all 24 are formed in one go
comptime WARP_ROWS = 4
comptime TILE = WARPS // SHARERS * WARP_ROWS  # rows of a block at a time
comptime AHEAD = 10  # partial sums that a thread of the gates asks for at once
comptime MIX_BLOCKS = 264  # two on each of an H200's 132 multiprocessors


@always_inline
def slice_rows(h: F32P, first: Int, t: Int, column: Int, cd: Int) -> Array[Four, WARP_ROWS * QUADS]:
    """A lane's columns of four rows of h [T, C D], zero past the last column; rows past the last repeat it."""
    var v = Array[Four, WARP_ROWS * QUADS](fill=Four(0))
    comptime for r in range(WARP_ROWS):
        comptime for q in range(QUADS):
            v[r * QUADS + q] = load4(h, min(first + r, t - 1) * cd + min(column + q * 128, cd - 4))
    comptime for q in range(QUADS):
        comptime for r in range(WARP_ROWS):
            v[r * QUADS + q] = v[r * QUADS + q] if column + q * 128 < cd else Four(0)
    return v^


@always_inline
def product[n: Int, k: Int](a: Array[Four, n], r: Int, b: Array[Four, k], o: Int) -> Float32:
    """A lane's part of the product of rows r and o."""
    var acc = Float32(0)
    comptime for q in range(QUADS):
        comptime for i in range(4):
            acc = fma(a[r * QUADS + q][i], b[o * QUADS + q][i], acc)
    return acc


@always_inline
def mix_slice(
    partial: F32P, h: F32P, weight: F32P, slice: Int, slices: Int, tile: Int, step: Int, t: Int, m: Int, cd: Int
):
    """Gives partial [T, slices, M + 1] of a slice: M products and the sum of squares, for every step-th row tile."""
    var lane = Int(lane_id())
    var warp = Int(warp_id())
    var column = slice * SLICE + lane * 4
    for o0 in range(warp % SHARERS * OUTPUTS, m, SHARERS * OUTPUTS):
        var w = Array[Four, OUTPUTS * QUADS](fill=Four(0))
        comptime for o in range(OUTPUTS):
            comptime for q in range(QUADS):
                w[o * QUADS + q] = load4(weight, min(o0 + o, m - 1) * cd + min(column + q * 128, cd - 4))
        for first in range(tile * TILE + warp // SHARERS * WARP_ROWS, t, step * TILE):
            var rows = slice_rows(h, first, t, column, cd)
            var sums = Array[Float32, 32](fill=0)
            comptime for r in range(WARP_ROWS):
                comptime for o in range(OUTPUTS):
                    sums[r * 8 + o] = product(rows, r, w, o)
                sums[r * 8 + OUTPUTS] = product(rows, r, rows, r)
            var total = warp_sums[32](sums)
            var r = first + lane // 8
            var o = o0 + lane % 8 if lane % 8 < OUTPUTS else m
            if r < t and o < m + (1 if lane % 8 == OUTPUTS and o0 == 0 else 0):
                partial[unsafe_offset=(r * slices + slice) * (m + 1) + o] = total


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(BLOCK_THREADS)), `nvvm.minctasm`=SIMDLength(2)
)
def mix_kernel(
    partial: F32P, x: F32P, h: F32P, before: F32P, weight: F32P, norm: F32P, t_: Int32, c: Int32, d: Int32, m: Int32,
    slices_: Int32, step: Int32, model: F32P, mode: I32P,
):
    """Grid (T + slices step): first a block for each row's normed input, then the slices of every step-th tile."""
    var t = Int(t_)
    var slices = Int(slices_)
    var block = Int(block_idx.x)
    if block < t:
        collapse_norm(
            x.unsafe_offset(block * Int(d)), h.unsafe_offset(block * Int(c) * Int(d)),
            before.unsafe_offset(block * Int(m)), norm, Int(c), Int(d), at(model, RMS_EPS), is_exact(mode),
            shared[WARPS](),
        )
        return
    block -= t
    mix_slice(partial, h, weight, block % slices, slices, block // slices, Int(step), t, Int(m), Int(c) * Int(d))


@always_inline
def line_sum(v: Float32) -> Float32:
    """The sum over four neighbouring lanes."""
    var pair = v + shuffle_xor(v, UInt32(1))
    return pair + shuffle_xor(pair, UInt32(2))


@always_inline
def gates_in_warp(
    mix: F32P, total: Float32, scale: Float32, base: Float32, columns: Float32, iterations: Int, eps: Float32,
    hc_eps: Float32, spare: Shared,
):
    """Gates of four copies, mix [24], by a warp: lane i < 24 has product i, its scale and base, lane 24 the squares."""
    var lane = Int(lane_id())
    var inverse = 1 / sqrt(shuffle_idx(total, UInt32(24)) / columns + eps)
    var v = fma(total * inverse, scale, base)
    if lane < 8:
        var gate = sigmoid(v)
        mix[unsafe_offset=lane] = gate + hc_eps if lane < 4 else 2 * gate
    # The lanes from 8 on hold the 4 x 4 matrix, a row in four neighbours.
    var top = max(v, shuffle_xor(v, UInt32(1)))
    top = max(top, shuffle_xor(top, UInt32(2)))
    var e = exp(v - top)
    spare[unsafe_offset=lane] = e / line_sum(e) + hc_eps
    syncwarp()
    # Every lane runs the iterations on the whole matrix: sums within a thread take no shuffles.
    var rows = Array[Four, 4](fill=Four(0))
    comptime for i in range(4):
        rows[i] = spare.unsafe_offset(8 + 4 * i).unsafe_load[width=4, alignment=16]()
    for round in range(iterations):
        if round > 0:
            comptime for i in range(4):
                rows[i] *= reciprocal((rows[i][0] + rows[i][1]) + (rows[i][2] + rows[i][3]) + hc_eps)
        var lines = (rows[0] + rows[1]) + (rows[2] + rows[3]) + hc_eps
        comptime for j in range(4):
            lines[j] = reciprocal(lines[j])
        comptime for i in range(4):
            rows[i] *= lines
    comptime for i in range(4):
        if lane == i:
            store4(mix, 8 + 4 * i, rows[i])


def gate_kernel(
    mix: F32P, partial: F32P, scale: F32P, base: F32P, c: Int32, d: Int32, m_: Int32, slices_: Int32, layer: I32P,
    model: F32P,
):
    """The gates of a row from its partial sums; grid T. A warp takes every eighth slice, a lane an output."""
    var r = Int(block_idx.x)
    var m = Int(m_)
    var slices = Int(slices_)
    var copies = Int(c)
    var warp = Int(warp_id())
    var lane = Int(lane_id())
    var shift = at(base, min(lane, m - 1))
    var factor = at(scale, 0 if lane < copies else (1 if lane < 2 * copies else 2))
    var iterations = Int(layer[unsafe_offset=HC_ITERATIONS])
    var eps = at(model, RMS_EPS)
    var hc_eps = at(model, HC_EPS)
    var parts = shared[BLOCK_THREADS]()
    var sums = shared[BLOCK_THREADS]()
    var total = Float32(0)
    # Outputs beyond 31 (more than four copies) take further rounds.
    for first in range(0, m + 1, 32):
        var mine = Float32(0)
        for s0 in range(warp, slices, WARPS * AHEAD):
            var v = Array[Float32, AHEAD](fill=0)
            comptime for i in range(AHEAD):
                v[i] = at(partial, (r * slices + min(s0 + i * WARPS, slices - 1)) * (m + 1) + min(first + lane, m))
            comptime for i in range(AHEAD):
                mine += v[i] if s0 + i * WARPS < slices else 0
        parts[unsafe_offset=warp * 32 + lane] = mine
        barrier()
        total = 0
        comptime for i in range(WARPS):
            total += parts[unsafe_offset=i * 32 + lane]
        sums[unsafe_offset=first + lane] = total
        barrier()
    var row = mix.unsafe_offset(r * m)
    var columns = Float32(copies) * Float32(Int(d))
    if copies == 4:
        if warp == 0:
            gates_in_warp(row, total, factor, shift, columns, iterations, eps, hc_eps, parts)
    elif thread_idx.x == 0:
        var inverse = 1 / sqrt(sums[unsafe_offset=m] / columns + eps)
        for i in range(m):
            row[unsafe_offset=i] = sums[unsafe_offset=i] * inverse
        gates(row, scale, base, copies, iterations, hc_eps)


def sublayer_in(
    ctx: DeviceContext, mix: F32P, x: F32P, h: F32P, before: F32P, weight: F32P, scale: F32P, base: F32P, norm: F32P,
    layer: I32P, model: F32P, mode: I32P, t: Int, c: Int, d: Int, m: Int,
) raises:
    """See `sd_sublayer_in`; two launches."""
    if t == 0:
        return
    if m + 1 > BLOCK_THREADS:
        raise Error("sd_sublayer_in: too many residual copies for the GPU")
    var slices = ceildiv(c * d, SLICE)
    var step = min(ceildiv(t, TILE), max(MIX_BLOCKS // slices, 1))
    var partial = ctx.enqueue_create_buffer[DType.float32](slices * t * (m + 1))
    ctx.enqueue_function[mix_kernel](
        pointer(partial), x, h, before, weight, norm, Int32(t), Int32(c), Int32(d), Int32(m), Int32(slices),
        Int32(step), model, mode, grid_dim=t + slices * step, block_dim=BLOCK_THREADS,
    )
    ctx.enqueue_function[gate_kernel](
        mix, pointer(partial), scale, base, Int32(c), Int32(d), Int32(m), Int32(slices), layer, model, grid_dim=t,
        block_dim=BLOCK_THREADS,
    )
    _ = partial^
