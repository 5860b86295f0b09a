"""Spreading a sublayer's output over the residual copies: h_out[j] = post[j] y + sum over i of comb[i, j] h[i]."""

from std.collections import Array
from std.math import ceildiv, fma
from max.gpu import block_idx, thread_idx
from max.gpu.host import DeviceContext
from ..common import F32P, I32P, at
from .base import is_exact
from .vectors import Four, load4, round4, store4

comptime SPREAD_THREADS = 128
comptime SPREAD_COLUMNS = 4 * SPREAD_THREADS
comptime Parts = Array[Four, 9]  # four copies' columns, post, and comb's rows, where there are four copies


@always_inline
def load_parts(h: F32P, gates: F32P, r: Int, i: Int, c: Int, d: Int) -> Parts:
    """What `spread` needs for columns i … i + 3 of row r besides y; gates: the row's mix."""
    var v = Parts(fill=Four(0))
    if c == 4:
        comptime for copy in range(4):
            v[copy] = load4(h, (r * 4 + copy) * d + i)
        comptime for part in range(5):
            v[4 + part] = load4(gates, 4 + 4 * part)
    return v^


@always_inline
def spread(h_out: F32P, y: Four, parts: Parts, h: F32P, gates: F32P, r: Int, i: Int, c: Int, d: Int, exact: Bool):
    """Columns i … i + 3 of row r in every copy."""
    if c == 4:
        comptime for j in range(4):
            var acc = y * parts[4][j]
            comptime for source in range(4):
                acc = fma(parts[source], Four(parts[5 + source][j]), acc)
            store4(h_out, (r * 4 + j) * d + i, round4(acc, exact))
        return
    for j in range(c):
        var acc = y * at(gates, c + j)
        for source in range(c):
            acc = fma(load4(h, (r * c + source) * d + i), Four(at(gates, 2 * c + source * c + j)), acc)
        store4(h_out, (r * c + j) * d + i, round4(acc, exact))


def expand_kernel(h_out: F32P, y: F32P, h: F32P, mix: F32P, copies_: Int32, columns: Int32, m: Int32, mode: I32P):
    """Grid (T, ceildiv(D, SPREAD_COLUMNS)), four columns a thread."""
    var r = Int(block_idx.x)
    var c = Int(copies_)
    var d = Int(columns)
    var i = Int(block_idx.y) * SPREAD_COLUMNS + Int(thread_idx.x) * 4
    if i >= d:
        return
    var gates = mix.unsafe_offset(r * Int(m))
    var v = load4(y, r * d + i)
    var parts = load_parts(h, gates, r, i, c, d)
    spread(h_out, v, parts, h, gates, r, i, c, d, is_exact(mode))


def expand(
    ctx: DeviceContext, h_out: F32P, y: F32P, h: F32P, mix: F32P, t: Int, c: Int, d: Int, m: Int, mode: I32P
) raises:
    """Gives h_out [T, C, D] from y [T, D], h [T, C, D] and mix [T, C (C + 2)]; one launch."""
    ctx.enqueue_function[expand_kernel](
        h_out, y, h, mix, Int32(c), Int32(d), Int32(m), mode, grid_dim=(t, ceildiv(d, SPREAD_COLUMNS)),
        block_dim=SPREAD_THREADS,
    )
