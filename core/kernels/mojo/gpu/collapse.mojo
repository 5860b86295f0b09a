"""Residual copies become one normed row: collapse and RMS norm, one block a row, for sublayers, heads and features."""

from std.collections import Array
from std.math import fma, sqrt
from max.gpu import block_idx, thread_idx
from ..common import F32P, I32P, U8P, at
from ..layout import RMS_EPS
from .base import BF16P, BLOCK_THREADS, Shared, WARPS, block_sum, is_exact, shared
from .vectors import Four, column_of, load4_bf16, load_row, put_many, round4, squares_of, store_row

comptime QUADS = 5  # of a thread: up to SPAN columns of a row stay in registers, the released model's 5120
comptime SPAN = 4 * QUADS * BLOCK_THREADS
comptime STEP = 4 * BLOCK_THREADS  # columns of a block at a time
comptime Quads = Array[Four, QUADS]


@always_inline
def collapse_quads(h: F32P, pre: F32P, first: Int, c: Int, d: Int, exact: Bool) -> Quads:
    """This thread's columns from `first` on of bf16(sum over copies of pre[c] h[c]), h [C, D] being a row's copies."""
    var v = Quads(fill=Four(0))
    if c == 4:
        var copies = Array[Four, 4 * QUADS](fill=Four(0))
        comptime for copy in range(4):
            var some = load_row[QUADS](h.unsafe_offset(copy * d), first, d)
            comptime for q in range(QUADS):
                copies[copy * QUADS + q] = some[q]
        comptime for q in range(QUADS):
            v[q] = copies[q] * at(pre, 0)
            comptime for copy in range(1, 4):
                v[q] = fma(copies[copy * QUADS + q], Four(at(pre, copy)), v[q])
    else:
        for copy in range(c):
            var some = load_row[QUADS](h.unsafe_offset(copy * d), first, d)
            comptime for q in range(QUADS):
                v[q] = fma(some[q], Four(at(pre, copy)), v[q])
    comptime for q in range(QUADS):
        v[q] = round4(v[q], exact)
    return v^


@always_inline
def normed(v: Quads, norm: Quads, scale: Float32, exact: Bool) -> Quads:
    var y = Quads(fill=Four(0))
    comptime for q in range(QUADS):
        y[q] = round4(v[q] * scale * norm[q], exact)
    return y^


@always_inline
def collapse_norm(
    x: F32P, h: F32P, pre: F32P, norm: F32P, c: Int, d: Int, eps: Float32, exact: Bool, spare: Shared
):
    """One row by a block: x = norm(collapsed h). A row wider than SPAN waits in x for its sum of squares."""
    var v = collapse_quads(h, pre, 0, c, d, exact)
    var weights = load_row[QUADS](norm, 0, d)
    var squares = squares_of(v)
    if d > SPAN:
        store_row[QUADS](x, 0, d, v)
        for first in range(SPAN, d, SPAN):
            v = collapse_quads(h, pre, first, c, d, exact)
            squares += squares_of(v)
            store_row[QUADS](x, first, d, v)
    var scale = 1 / sqrt(block_sum(squares, spare) / Float32(d) + eps)
    if d <= SPAN:
        store_row[QUADS](x, 0, d, normed(v, weights, scale, exact))
        return
    for first in range(0, d, SPAN):
        v = load_row[QUADS](x, first, d)
        weights = load_row[QUADS](norm, first, d)
        store_row[QUADS](x, first, d, normed(v, weights, scale, exact))


@always_inline
def put_row(planes: BF16P, stride: Int, place: Int, first: Int, d: Int, v: Quads, exact: Bool):
    """This thread's columns from `first` on of the row that starts at element `place` of the planes."""
    comptime for q in range(QUADS):
        if first + column_of(q) < d:
            put_many[4](planes, stride, place + first + column_of(q), v[q], exact)


def collapse_kernel[
    chosen: Bool
](
    planes: BF16P, spare: F32P, dots: F32P, h: F32P, mix: F32P, rows: I32P, norm: F32P, weight: U8P, copies: Int32,
    columns: Int32, gates: Int32, all_rows: Int32, stride: Int32, model: F32P, mode: I32P,
):
    """Grid (rows of planes). chosen: rows[i] is the row of h; else row i, and dots[i] = its collapsed x · weight.

    spare [rows, D] holds a row wider than SPAN between the two passes; a thread reads only what it wrote.
    """
    var i = Int(block_idx.x)
    var r = i
    comptime if chosen:
        r = max(min(Int(rows[unsafe_offset=i]), Int(all_rows) - 1), 0)
    var c = Int(copies)
    var d = Int(columns)
    var source = h.unsafe_offset(r * c * d)
    var pre = mix.unsafe_offset(r * Int(gates))
    var kept = spare.unsafe_offset(i * d)
    var exact = is_exact(mode)
    var home = shared[WARPS]()
    var squares = Float32(0)
    var products = Four(0)
    var v = Quads(fill=Four(0))
    for first in range(0, d, SPAN):
        v = collapse_quads(source, pre, first, c, d, exact)
        squares += squares_of(v)
        if d > SPAN:
            store_row[QUADS](kept, first, d, v)
        comptime if not chosen:
            comptime for q in range(QUADS):
                products = fma(v[q], load4_bf16(weight, min(first + column_of(q), d - 4)), products)
    var scale = 1 / sqrt(block_sum(squares, home) / Float32(d) + at(model, RMS_EPS))
    for first in range(0, d, SPAN):
        if d > SPAN:
            v = load_row[QUADS](kept, first, d)
        var weights = load_row[QUADS](norm, first, d)
        put_row(planes, Int(stride), i * d, first, d, normed(v, weights, scale, exact), exact)
    comptime if not chosen:
        var total = block_sum(products.reduce_add(), home)
        if thread_idx.x == 0:
            dots[unsafe_offset=i] = total


def norm_rows_kernel(y: F32P, norm: F32P, columns: Int32, model: F32P, mode: I32P):
    """Grid (rows): RMS norm of y [rows, D] in place."""
    var d = Int(columns)
    var row = y.unsafe_offset(Int(block_idx.x) * d)
    var exact = is_exact(mode)
    var v = load_row[QUADS](row, 0, d)
    var weights = load_row[QUADS](norm, 0, d)
    var squares = squares_of(v)
    for first in range(SPAN, d, SPAN):
        squares += squares_of(load_row[QUADS](row, first, d))
    var scale = 1 / sqrt(block_sum(squares, shared[WARPS]()) / Float32(d) + at(model, RMS_EPS))
    store_row[QUADS](row, 0, d, normed(v, weights, scale, exact))
    for first in range(SPAN, d, SPAN):
        v = load_row[QUADS](row, first, d)
        weights = load_row[QUADS](norm, first, d)
        store_row[QUADS](row, first, d, normed(v, weights, scale, exact))
