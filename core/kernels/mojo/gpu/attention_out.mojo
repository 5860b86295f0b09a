"""Output projections on the GPU: grouped low-rank projection, wo_b, expand."""

from max.gpu.host import DeviceContext
from ..common import F32P, I32P, U8P
from ..quant import E4M3
from .expand import expand
from .linear import linear_gpu, linear_pair, planes_for, pointer
from .staged import stage


def attention_out(
    ctx: DeviceContext, h_out: F32P, y: F32P, o: F32P, h: F32P, mix: F32P, wo_a: U8P, wo_a_scale: U8P, wo_b: U8P,
    wo_b_scale: U8P, mode: I32P, t: Int, hk: Int, c: Int, d: Int, m: Int, na: Int, ka: Int,
) raises:
    """See `sd_attention_out`; five launches."""
    if t == 0:
        return
    var groups = hk // ka
    var planes = planes_for(ctx, t, hk)
    stage(ctx, pointer(planes), o, hk, t, hk, False, mode)
    var a = ctx.enqueue_create_buffer[DType.float32](t * na)
    linear_pair[E4M3](
        ctx, pointer(planes), wo_a, wo_a_scale, pointer(a), na, na, wo_a, wo_a_scale, pointer(a), 0, 0, t, ka, hk,
        t * hk, na // groups, True, mode,
    )
    var staged = planes_for(ctx, t, na)
    stage(ctx, pointer(staged), pointer(a), na, t, na, True, mode)
    linear_gpu[E4M3](ctx, y, pointer(staged), t, na, wo_b, wo_b_scale, d, True, mode)
    expand(ctx, h_out, y, h, mix, t, c, d, m, mode)
    _ = planes^
    _ = a^
    _ = staged^
