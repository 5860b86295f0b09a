"""Attention on the GPU: the spans' sums in order, the sink, the turn back, and the launches."""

from std.math import ceildiv, exp, fma
from max.gpu import block_idx, thread_idx
from max.gpu.host import DeviceContext
from ..common import F32P, I32P, U32P, at, bf16
from .base import BLOCK_THREADS, is_exact
from .linear import pointer
from .rope import turn_of
from .spans import HEADS, KEYS, MAX_K, WINDOW_SPANS, nothing, span_kernel


def merge_kernel(
    o: F32P, part: F32P, mass: F32P, pos: I32P, sink: F32P, freq: F32P, k_: Int32, heads_: Int32, half_: Int32,
    spans: Int32, mode: I32P,
):
    """Gives o [T, H K]: spans summed in order, the sink in the denominator, turned back.

    Grid (T, H), two columns a thread.
    """
    var r = Int(block_idx.x)
    var h = Int(block_idx.y)
    var k = Int(k_)
    var half = Int(half_)
    var i = 2 * Int(thread_idx.x)
    if i >= k:
        return
    var dst = o.unsafe_offset((r * Int(heads_) + h) * k + i)
    var p = Int(pos[unsafe_offset=r])
    if p < 0:
        dst[unsafe_offset=0] = 0
        dst[unsafe_offset=1] = 0
        return
    var exact = is_exact(mode)
    var base = (r * Int(heads_) + h) * Int(spans)
    var top = nothing()
    for s in range(Int(spans)):
        top = max(top, at(mass, (base + s) * 2))
    var total = Float32(0)
    var acc = SIMD[DType.float32, 2](0)
    for s in range(Int(spans)):
        var own = at(mass, (base + s) * 2)
        if own == nothing():
            continue
        var weight = exp(own - top)
        total = fma(at(mass, (base + s) * 2 + 1), weight, total)
        var v = part.unsafe_offset((base + s) * k + i).unsafe_load[width=2, alignment=8]()
        acc = fma(v, SIMD[DType.float32, 2](weight), acc)
    var inverse = 1 / (total + exp(at(sink, h) - top))
    var a = bf16(acc[0] * inverse, exact)
    var b = bf16(acc[1] * inverse, exact)
    var begin = k - 2 * half
    if i >= begin:
        var turn = turn_of(freq, p, (i - begin) // 2)
        var turned = bf16(a * turn[0] + b * turn[1], exact)
        b = bf16(b * turn[0] - a * turn[1], exact)
        a = turned
    dst[unsafe_offset=0] = a
    dst[unsafe_offset=1] = b


def attend(
    ctx: DeviceContext, o: F32P, window: F32P, rows_leaf: F32P, q: F32P, chosen: I32P, own: F32P, seq: I32P, pos: I32P,
    last: I32P, table: U32P, sink: F32P, freq: F32P, layer: I32P, mode: I32P, t: Int, heads: Int, k: Int, half: Int,
    n_chosen: Int, layers: Int, slots: Int, kv_slots: Int, width: Int,
) raises:
    """See `sd_attend`."""
    if t == 0:
        return
    if k > MAX_K or k % 4 != 0:
        raise Error("sd_attend: the GPU kernel takes heads of up to 512 columns, a multiple of four")
    var spans = WINDOW_SPANS + ceildiv(n_chosen, KEYS) + 1
    var part = ctx.enqueue_create_buffer[DType.float32](t * heads * spans * k)
    var mass = ctx.enqueue_create_buffer[DType.float32](t * heads * spans * 2)
    ctx.enqueue_function[span_kernel](
        pointer(part), pointer(mass), q, window, rows_leaf, chosen, own, seq, pos, last, table, Int32(k), Int32(heads),
        Int32(n_chosen), Int32(spans), Int32(layers), Int32(slots), Int32(kv_slots), Int32(width), layer, mode,
        grid_dim=(spans, ceildiv(heads, HEADS), t), block_dim=BLOCK_THREADS,
    )
    ctx.enqueue_function[merge_kernel](
        o, pointer(part), pointer(mass), pos, sink, freq, Int32(k), Int32(heads), Int32(half), Int32(spans), mode,
        grid_dim=(t, heads), block_dim=ceildiv(k // 2, 32) * 32,
    )
    _ = part^
    _ = mass^
