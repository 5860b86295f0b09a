"""Hyper-connections on the GPU: raw mixes over column slices, then gates and the normed collapse of every row."""

from std.collections import Array
from std.math import ceildiv, exp, fma, sqrt
from max.gpu import barrier, block_idx, lane_id, thread_idx, warp_id
from max.gpu.host import DeviceContext
from max.gpu.primitives.warp import shuffle_xor
from ..common import F32P, I32P, at, bf16, sigmoid
from ..hyper import gates
from ..layout import HC_EPS, HC_ITERATIONS, RMS_EPS
from .base import BLOCK_THREADS, Shared, WARPS, block_sum, is_exact, shared, warp_sum
from .linear import pointer

comptime SLICE = 128  # columns of a slice; its sums are one partial each
comptime ROWS = 8  # rows that share a block's weights
comptime Four = SIMD[DType.float32, 4]


@always_inline
def load4(p: F32P, i: Int) -> Four:
    return p.unsafe_offset(i).unsafe_load[width=4, alignment=16]()


def mix_kernel(partial: F32P, h: F32P, weight: F32P, t: Int32, m: Int32, columns: Int32):
    """Gives partial [slices, T, M + 1]: per slice the M products and the sum of squares; grid (slices, row tiles)."""
    var cd = Int(columns)
    var c = Int(block_idx.x) * SLICE + Int(lane_id()) * 4
    var first = Int(block_idx.y) * ROWS
    var count = min(ROWS, Int(t) - first)
    var rows = Array[Four, ROWS](fill=Four(0))
    if c < cd:
        comptime for r in range(ROWS):
            if r < count:
                rows[r] = load4(h, (first + r) * cd + c)
    for o in range(Int(warp_id()), Int(m) + 1, WARPS):
        var w = Four(0)
        if o < Int(m) and c < cd:
            w = load4(weight, o * cd + c)
        comptime for r in range(ROWS):
            var v = rows[r] * (w if o < Int(m) else rows[r])
            var total = warp_sum((v[0] + v[1]) + (v[2] + v[3]))
            if lane_id() == 0 and r < count:
                partial[unsafe_offset=(Int(block_idx.x) * Int(t) + first + r) * (Int(m) + 1) + o] = total


@always_inline
def gates_in_warp(mix: F32P, raw: Float32, scale: F32P, base: F32P, iterations: Int, eps: Float32):
    """Gates of four copies: lane i < 24 brings raw mix i, and mix [24] is written."""
    var lane = Int(lane_id())
    if lane < 8:
        var gate = sigmoid(raw * at(scale, lane // 4) + at(base, lane))
        mix[unsafe_offset=lane] = gate + eps if lane < 4 else 2 * gate
    # The 4 x 4 matrix moves to lanes 0 … 15: there a row's lanes differ in bits 0 and 1, a column's in bits 2 and 3.
    var v = shift_down8(raw) * at(scale, 2) + at(base, 8 + lane % 16)
    var top = max(v, shuffle_xor(v, UInt32(1)))
    top = max(top, shuffle_xor(top, UInt32(2)))
    var e = exp(v - top)
    v = e / line_sum(e, 1) + eps
    for round in range(iterations):
        if round > 0:
            v = v / (line_sum(v, 1) + eps)
        v = v / (line_sum(v, 4) + eps)
    if lane < 16:
        mix[unsafe_offset=8 + lane] = v


@always_inline
def line_sum(v: Float32, step: Int) -> Float32:
    """The sum over a row (step 1) or a column (step 4) of a 4 x 4 matrix in lanes 0 … 15."""
    var pair = v + shuffle_xor(v, UInt32(step))
    return pair + shuffle_xor(pair, UInt32(2 * step))


@always_inline
def shift_down8(v: Float32) -> Float32:
    """Lane i of 0 … 15 gets lane i + 8's value (others: something)."""
    var swapped = shuffle_xor(v, UInt32(8))
    # Lanes 0-7 now hold 8-15's values; lanes 8-15 need those of 16-23.
    var far = shuffle_xor(v, UInt32(24))
    return far if Int(lane_id()) & 8 != 0 else swapped


@always_inline
def collapse_norm(
    x: F32P, h: F32P, pre: F32P, norm: F32P, c: Int, d: Int, eps: Float32, exact: Bool, spare: Shared
):
    """One row by a block: x = norm(sum over copies of pre[c] h[c])."""
    var squares = Float32(0)
    for i in range(Int(thread_idx.x), d, BLOCK_THREADS):
        var acc = at(h, i) * at(pre, 0)
        for copy in range(1, c):
            acc = fma(at(h, copy * d + i), at(pre, copy), acc)
        var v = bf16(acc, exact)
        x[unsafe_offset=i] = v
        squares = fma(v, v, squares)
    var scale = 1 / sqrt(block_sum(squares, spare) / Float32(d) + eps)
    for i in range(Int(thread_idx.x), d, BLOCK_THREADS):
        x[unsafe_offset=i] = bf16(at(x, i) * scale * at(norm, i), exact)


def gate_kernel(
    mix: F32P, x: F32P, partial: F32P, h: F32P, before: F32P, scale: F32P, base: F32P, norm: F32P, t: Int32, c: Int32,
    d: Int32, m_: Int32, slices: Int32, layer: I32P, model: F32P, mode: I32P,
):
    """Grid (T, 2): y = 0 makes the gates of a row, y = 1 its normed input."""
    var r = Int(block_idx.x)
    var m = Int(m_)
    var copies = Int(c)
    var spare = shared[BLOCK_THREADS]()
    if block_idx.y == 1:
        collapse_norm(
            x.unsafe_offset(r * Int(d)), h.unsafe_offset(r * copies * Int(d)), before.unsafe_offset(r * m), norm,
            copies, Int(d), at(model, RMS_EPS), is_exact(mode), spare,
        )
        return
    var row = mix.unsafe_offset(r * m)
    var thread = Int(thread_idx.x)
    var o = thread // 8
    # Eight threads share an output's slices; outputs beyond 31 (more than four copies) take further rounds.
    for first in range(0, m + 1, 32):
        var total = Float32(0)
        if first + o <= m:
            for s in range(thread % 8, Int(slices), 8):
                total += at(partial, (s * Int(t) + r) * (m + 1) + first + o)
        total += shuffle_xor(total, UInt32(1))
        total += shuffle_xor(total, UInt32(2))
        total += shuffle_xor(total, UInt32(4))
        if thread % 8 == 0 and first + o <= m:
            spare[unsafe_offset=first + o] = total
    barrier()
    var n = Float32(copies) * Float32(d)
    var inverse = 1 / sqrt(spare[unsafe_offset=m] / n + at(model, RMS_EPS))
    var iterations = Int(layer[unsafe_offset=HC_ITERATIONS])
    if copies == 4:
        if thread < 32:
            var raw = spare[unsafe_offset=min(thread, m - 1)] * inverse
            gates_in_warp(row, raw, scale, base, iterations, at(model, HC_EPS))
    elif thread == 0:
        for i in range(m):
            row[unsafe_offset=i] = spare[unsafe_offset=i] * inverse
        gates(row, scale, base, copies, iterations, at(model, HC_EPS))


def sublayer_in(
    ctx: DeviceContext, mix: F32P, x: F32P, h: F32P, before: F32P, weight: F32P, scale: F32P, base: F32P, norm: F32P,
    layer: I32P, model: F32P, mode: I32P, t: Int, c: Int, d: Int, m: Int,
) raises:
    """See `sd_sublayer_in`."""
    if t == 0:
        return
    if m + 1 > BLOCK_THREADS:
        raise Error("sd_sublayer_in: too many residual copies for the GPU")
    var slices = ceildiv(c * d, SLICE)
    var partial = ctx.enqueue_create_buffer[DType.float32](slices * t * (m + 1))
    ctx.enqueue_function[mix_kernel](
        pointer(partial), h, weight, Int32(t), Int32(m), Int32(c * d), grid_dim=(slices, ceildiv(t, ROWS)),
        block_dim=BLOCK_THREADS,
    )
    ctx.enqueue_function[gate_kernel](
        mix, x, pointer(partial), h, before, scale, base, norm, Int32(t), Int32(c), Int32(d), Int32(m), Int32(slices),
        layer, model, mode, grid_dim=(t, 2), block_dim=BLOCK_THREADS,
    )
    _ = partial^


def expand_kernel(h_out: F32P, y: F32P, h: F32P, mix: F32P, c: Int32, d_: Int32, m: Int32, mode: I32P):
    """Spreads: h_out[j] = post[j] y + sum over i of comb[i, j] h[i]; grid (T, column tiles), a thread per column."""
    var r = Int(block_idx.x)
    var i = Int(block_idx.y) * BLOCK_THREADS + Int(thread_idx.x)
    if i < Int(d_):
        expand_column(h_out, at(y, r * Int(d_) + i), h, mix.unsafe_offset(r * Int(m)), r, i, Int(c), Int(d_), mode)


@always_inline
def expand_column(h_out: F32P, v: Float32, h: F32P, mix: F32P, r: Int, i: Int, c: Int, d: Int, mode: I32P):
    """Column i of row r in every copy."""
    var exact = is_exact(mode)
    for j in range(c):
        var acc = v * at(mix, c + j)
        for source in range(c):
            acc = fma(at(h, (r * c + source) * d + i), at(mix, 2 * c + source * c + j), acc)
        h_out[unsafe_offset=(r * c + j) * d + i] = bf16(acc, exact)
