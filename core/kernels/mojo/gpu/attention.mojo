"""Attention on the GPU: the launches."""

from std.math import ceildiv
from max.gpu.host import DeviceContext, FuncAttribute
from ..common import F32P, I32P, U32P
from .base import BLOCK_THREADS, WARPS
from .keys import GROUP, MAX_BLOCK, MAX_K, MAX_TILES, MAX_WINDOW, TILE
from .linear import pointer
from .probabilities import probability_kernel
from .values import row_of, value_kernel


def attend(
    ctx: DeviceContext, o: F32P, window: F32P, rows_leaf: F32P, q: F32P, chosen: I32P, own: F32P, seq: I32P, pos: I32P,
    last: I32P, table: U32P, sink: F32P, freq: F32P, layer: I32P, mode: I32P, t: Int, heads: Int, k: Int, half: Int,
    n_chosen: Int, layers: Int, slots: Int, kv_slots: Int, width: Int,
) raises:
    """See `sd_attend`. How a row's work is shared out follows from t and changes no result."""
    if t == 0:
        return
    var cap = MAX_WINDOW // TILE + ceildiv(n_chosen, TILE) + MAX_BLOCK // TILE
    if k > MAX_K or k % GROUP != 0 or cap > MAX_TILES:
        raise Error("sd_attend: the GPU kernel takes heads of up to 512 columns, a multiple of 32, and 864 chosen rows")
    var m = ceildiv(heads, TILE)
    var probabilities = ctx.enqueue_create_buffer[DType.float32](t * cap * m * TILE * TILE)
    var states = ctx.enqueue_create_buffer[DType.float32](t * m * TILE * cap * 2)
    var homes = ctx.enqueue_create_buffer[DType.int64](t * cap * TILE)

    @__parameter
    def weigh[MT: Int, U: Int](rounds: Int) raises:
        var bytes = MT * ceildiv(k, TILE * U) * U * 512
        ctx.enqueue_function[probability_kernel[MT, U]](
            pointer(probabilities), pointer(states), pointer(homes), q, window, rows_leaf, chosen, own, seq, pos, last,
            table, Int32(k), Int32(heads), Int32(n_chosen), Int32(cap), Int32(layers), Int32(slots), Int32(kv_slots),
            Int32(width), layer, mode, grid_dim=(ceildiv(cap, 2 * MT * rounds), ceildiv(m, MT), t), block_dim=64 * MT,
            shared_mem_bytes=bytes, func_attribute=FuncAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES(UInt32(bytes)),
        )

    @__parameter
    def sum_up[MT: Int, C: Int, U: Int]() raises:
        var bytes = 4 * (WARPS * MT * 512 + cap * row_of[MT]() + MT * TILE + cap * TILE * 2)
        ctx.enqueue_function[value_kernel[MT, C, U]](
            o, pointer(probabilities), pointer(states), pointer(homes), pos, sink, freq, Int32(k), Int32(heads),
            Int32(half), Int32(n_chosen), Int32(cap), layer, mode,
            grid_dim=(ceildiv(k, GROUP * C), ceildiv(m, MT), t), block_dim=BLOCK_THREADS, shared_mem_bytes=bytes,
            func_attribute=FuncAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES(UInt32(bytes)),
        )

    if t <= 2:
        weigh[1, 16](1)
        sum_up[1, 1, 6]()
    else:
        if t <= 8:
            weigh[2, 16](1)
        else:
            weigh[4, 8](1 if t <= 48 else 2)
        if t <= 16:
            sum_up[4, 1, 2]()
        else:
            sum_up[4, 4, 1]()
    _ = probabilities^
    _ = states^
    _ = homes^
