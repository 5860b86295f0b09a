"""The probes on a GPU: injected layer inputs and single kernels' inner parts."""

from std.math import ceildiv
from max.gpu import block_idx, thread_idx
from max.gpu.host import DeviceContext
from ..common import F32P, I32P, U8P, at
from ..hyper import gates
from ..layout import EXACT, HC_EPS
from ..quant import E2M1, E4M3
from .base import BF16P, BLOCK_THREADS
from .linear import linear_gpu, planes_for, pointer
from .quantise import nvfp4_in_warp
from .staged import fp8_in_warp, mxfp4_in_warp, put


def inject_kernel(
    h_out: F32P, mix_out: F32P, h: F32P, mix: F32P, streams: F32P, pre: F32P, flags: I32P, layer: I32P, size: Int32,
    rows: Int32, gate_count: Int32, copies: Int32,
):
    """One element of h (size of them) and one of mix a thread."""
    var j = Int(block_idx.x) * BLOCK_THREADS + Int(thread_idx.x)
    var i = Int(layer[unsafe_offset=0])
    var given = flags[unsafe_offset=i] != 0
    if j < Int(size):
        h_out[unsafe_offset=j] = at(streams, i * Int(size) + j) if given else at(h, j)
    var m = Int(gate_count)
    if j < Int(rows) * m:
        var v = at(mix, j)
        if given and j % m < Int(copies):
            v = at(pre, (i * Int(rows) + j // m) * Int(copies) + j % m)
        mix_out[unsafe_offset=j] = v


def inject_gpu(
    ctx: DeviceContext, h_out: F32P, mix_out: F32P, h: F32P, mix: F32P, streams: F32P, pre: F32P, flags: I32P,
    layer: I32P, n: Int, t: Int, m: Int, c: Int,
) raises:
    """One launch; n elements of h, t rows of mix."""
    var size = max(n, t * m)
    if size > 0:
        ctx.enqueue_function[inject_kernel](
            h_out, mix_out, h, mix, streams, pre, flags, layer, Int32(n), Int32(t), Int32(m), Int32(c),
            grid_dim=ceildiv(size, BLOCK_THREADS), block_dim=BLOCK_THREADS,
        )


def qdq_kernel(y: F32P, x: F32P, kind: I32P, columns: Int32):
    """Grid (rows, ceildiv(D, threads)): a value a lane; lanes past the end keep their warp whole."""
    var d = Int(columns)
    var i = Int(block_idx.y) * BLOCK_THREADS + Int(thread_idx.x)
    var home = Int(block_idx.x) * d + i
    var v = Float32(0)
    if i < d:
        v = at(x, home)
    if kind[unsafe_offset=0] == 0:
        v = fp8_in_warp(v, True)
    elif kind[unsafe_offset=0] == 1:
        v = mxfp4_in_warp(v, True)
    else:
        v = nvfp4_in_warp(v, True)
    if i < d:
        y[unsafe_offset=home] = v


def qdq_gpu(ctx: DeviceContext, y: F32P, x: F32P, kind: I32P, t: Int, d: Int) raises:
    """One launch."""
    if t > 0 and d > 0:
        ctx.enqueue_function[qdq_kernel](
            y, x, kind, Int32(d), grid_dim=(t, ceildiv(d, BLOCK_THREADS)), block_dim=BLOCK_THREADS
        )


def unrounded_kernel(planes: BF16P, mode: I32P, x: F32P, size: Int32):
    """Values x into planes of `size` elements, and the mode that reads all three of them."""
    var i = Int(block_idx.x) * BLOCK_THREADS + Int(thread_idx.x)
    if i == 0:
        mode[unsafe_offset=EXACT] = 0
    if i < Int(size):
        put(planes, Int(size), i, at(x, i), False)


def project_gpu(
    ctx: DeviceContext, y: F32P, x: F32P, w: U8P, scale: U8P, t: Int, k: Int, n: Int, row_bytes: Int
) raises:
    """Two launches: rows x [t, k] times w [n, row_bytes], FP8 if a row has k bytes, else FP4."""
    if t == 0:
        return
    var planes = planes_for(ctx, t, k)
    var mode = ctx.enqueue_create_buffer[DType.int32](EXACT + 1)
    ctx.enqueue_function[unrounded_kernel](
        pointer(planes), pointer(mode), x, Int32(t * k), grid_dim=ceildiv(t * k, BLOCK_THREADS),
        block_dim=BLOCK_THREADS,
    )
    if row_bytes == k:
        linear_gpu[E4M3](ctx, y, pointer(planes), t, k, w, scale, n, False, pointer(mode))
    else:
        linear_gpu[E2M1](ctx, y, pointer(planes), t, k, w, scale, n, False, pointer(mode))
    _ = planes^
    _ = mode^


def gates_kernel(y: F32P, mixes: F32P, scale: F32P, base: F32P, rounds: I32P, gate_count: Int32, model: F32P):
    """Grid (rows), one thread."""
    var m = Int(gate_count)
    var row = y.unsafe_offset(Int(block_idx.x) * m)
    for i in range(m):
        row[unsafe_offset=i] = at(mixes, Int(block_idx.x) * m + i)
    gates(row, scale, base, Int(rounds[unsafe_offset=0]), Int(rounds[unsafe_offset=1]), at(model, HC_EPS))


def gates_gpu(
    ctx: DeviceContext, y: F32P, mixes: F32P, scale: F32P, base: F32P, rounds: I32P, t: Int, m: Int, model: F32P
) raises:
    """One launch."""
    if t > 0:
        ctx.enqueue_function[gates_kernel](y, mixes, scale, base, rounds, Int32(m), model, grid_dim=t, block_dim=1)
