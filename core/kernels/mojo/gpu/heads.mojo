"""The target's head, the taps and the drafter's features on a GPU."""

from std.math import ceildiv
from max.gpu import block_idx, thread_idx
from max.gpu.host import DeviceContext
from ..common import F32P, I32P, U8P
from ..quant import BF16, E4M3
from .base import BLOCK_THREADS, is_exact
from .collapse import STEP, collapse_kernel, norm_rows_kernel
from .linear import linear_gpu, planes_for, pointer
from .staged import stage
from .vectors import load4, round4, store4


def head_gpu(
    ctx: DeviceContext, logits: F32P, h: F32P, mix: F32P, rows: I32P, norm: F32P, head: U8P, n: Int, t: Int, c: Int,
    d: Int, m: Int, v: Int, model: F32P, mode: I32P,
) raises:
    """Two launches: n of the t rows of h into planes, then their logits."""
    if n == 0:
        return
    var planes = planes_for(ctx, n, d)
    var spare = ctx.enqueue_create_buffer[DType.float32](n * d)
    ctx.enqueue_function[collapse_kernel[True]](
        pointer(planes), pointer(spare), pointer(spare), h, mix, rows, norm, head, Int32(c), Int32(d), Int32(m),
        Int32(t), Int32(n * d), model, mode, grid_dim=n, block_dim=BLOCK_THREADS,
    )
    linear_gpu[BF16](ctx, logits, pointer(planes), n, d, head, head, v, False, mode)
    _ = planes^
    _ = spare^


def tap_kernel(
    taps: F32P, before: F32P, h: F32P, width_: Int32, before_width: Int32, copies: Int32, columns: Int32, mode: I32P
):
    """Grid (rows, ceildiv(width, STEP)): four columns a thread."""
    var r = Int(block_idx.x)
    var width = Int(width_)
    var d = Int(columns)
    var c = Int(copies)
    var kept = width - d
    var i = Int(block_idx.y) * STEP + Int(thread_idx.x) * 4
    if i >= width:
        return
    if i < kept:
        store4(taps, r * width + i, load4(before, r * Int(before_width) + i))
        return
    var row = h.unsafe_offset(r * c * d)
    var total = load4(row, i - kept)
    for copy in range(1, c):
        total += load4(row, copy * d + i - kept)
    store4(taps, r * width + i, round4(total / Float32(c), is_exact(mode)))


def tap_gpu(
    ctx: DeviceContext, taps: F32P, before: F32P, h: F32P, t: Int, width: Int, before_width: Int, c: Int, d: Int,
    mode: I32P,
) raises:
    """One launch."""
    if t > 0:
        ctx.enqueue_function[tap_kernel](
            taps, before, h, Int32(width), Int32(before_width), Int32(c), Int32(d), mode,
            grid_dim=(t, ceildiv(width, STEP)), block_dim=BLOCK_THREADS,
        )


def features_gpu(
    ctx: DeviceContext, m: F32P, taps: F32P, proj: U8P, scale: U8P, norm: F32P, t: Int, k: Int, d: Int, model: F32P,
    mode: I32P,
) raises:
    """Three launches."""
    if t == 0:
        return
    var planes = planes_for(ctx, t, k)
    stage(ctx, pointer(planes), taps, k, t, k, True, mode)
    linear_gpu[E4M3](ctx, m, pointer(planes), t, k, proj, scale, d, True, mode)
    ctx.enqueue_function[norm_rows_kernel](m, norm, Int32(d), model, mode, grid_dim=t, block_dim=BLOCK_THREADS)
    _ = planes^
