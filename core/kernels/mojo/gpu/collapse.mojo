"""The way from residual copies to a head on a GPU: collapse, norm, and into planes, one block a row."""

from std.math import sqrt
from max.gpu import block_idx, thread_idx
from ..common import F32P, I32P, U8P, at
from ..layout import RMS_EPS
from .base import BF16P, BLOCK_THREADS, WARPS, block_sum, is_exact, shared
from .vectors import Four, load4, load4_bf16, put_many, round4, store4

comptime STEP = 4 * BLOCK_THREADS  # columns of a block at a time


def collapse_kernel[
    chosen: Bool
](
    planes: BF16P, spare: F32P, dots: F32P, h: F32P, mix: F32P, rows: I32P, norm: F32P, weight: U8P, copies: Int32,
    columns: Int32, gates: Int32, all_rows: Int32, stride: Int32, model: F32P, mode: I32P,
):
    """Grid (rows of planes). chosen: rows[i] is the row of h; else row i, and dots[i] = its collapsed x · weight.

    spare [rows, D] holds the collapsed row between the two passes; a thread reads only what it wrote.
    """
    var i = Int(block_idx.x)
    var r = i
    comptime if chosen:
        r = max(min(Int(rows[unsafe_offset=i]), Int(all_rows) - 1), 0)
    var c = Int(copies)
    var d = Int(columns)
    var pre = mix.unsafe_offset(r * Int(gates))
    var exact = is_exact(mode)
    var home = shared[WARPS]()
    var squares = Four(0)
    var products = Four(0)
    for column in range(Int(thread_idx.x) * 4, d, STEP):
        var x = load4(h, r * c * d + column) * at(pre, 0)
        for copy in range(1, c):
            x += load4(h, (r * c + copy) * d + column) * at(pre, copy)
        x = round4(x, exact)
        store4(spare, i * d + column, x)
        squares += x * x
        comptime if not chosen:
            products += x * load4_bf16(weight, column)
    var scale = 1 / sqrt(block_sum(squares.reduce_add(), home) / Float32(d) + at(model, RMS_EPS))
    for column in range(Int(thread_idx.x) * 4, d, STEP):
        var y = round4(load4(spare, i * d + column) * scale * load4(norm, column), exact)
        put_many[4](planes, Int(stride), i * d + column, y, exact)
    comptime if not chosen:
        var total = block_sum(products.reduce_add(), home)
        if thread_idx.x == 0:
            dots[unsafe_offset=i] = total


def norm_rows_kernel(y: F32P, norm: F32P, columns: Int32, model: F32P, mode: I32P):
    """Grid (rows): RMS norm of y [rows, D] in place."""
    var d = Int(columns)
    var row = y.unsafe_offset(Int(block_idx.x) * d)
    var exact = is_exact(mode)
    var squares = Four(0)
    for column in range(Int(thread_idx.x) * 4, d, STEP):
        var x = load4(row, column)
        squares += x * x
    var scale = 1 / sqrt(block_sum(squares.reduce_add(), shared[WARPS]()) / Float32(d) + at(model, RMS_EPS))
    for column in range(Int(thread_idx.x) * 4, d, STEP):
        store4(row, column, round4(load4(row, column) * scale * load4(norm, column), exact))
