"""The output projections in parts on the GPU."""

from max.gpu.host import DeviceContext
from ..common import F32P, I32P, U8P
from ..quant import E4M3
from .expand import expand
from .linear import linear_gpu, linear_pair, planes_for, pointer
from .staged import stage, stage_back


def output_groups_gpu(
    ctx: DeviceContext, a: F32P, o: F32P, wo_a: U8P, wo_a_scale: U8P, t: Int, hk: Int, na: Int, ka: Int, mode: I32P
) raises:
    """See `sd_output_groups`; three launches."""
    if t == 0:
        return
    var planes = planes_for(ctx, t, hk)
    stage(ctx, pointer(planes), o, hk, t, hk, False, mode)
    linear_pair[E4M3](
        ctx, pointer(planes), wo_a, wo_a_scale, a, na, na, wo_a, wo_a_scale, a, 0, 0, t, ka, hk, t * hk,
        na // (hk // ka), True, mode,
    )
    stage_back(ctx, a, t, na, mode)
    _ = planes^


def output_rows_gpu(
    ctx: DeviceContext, y: F32P, a: F32P, wo_b: U8P, wo_b_scale: U8P, t: Int, na: Int, d: Int, mode: I32P
) raises:
    """See `sd_output_rows`; two launches."""
    if t == 0:
        return
    var planes = planes_for(ctx, t, na)
    stage(ctx, pointer(planes), a, na, t, na, False, mode)  # it went through FP8 where it was made
    linear_gpu[E4M3](ctx, y, pointer(planes), t, na, wo_b, wo_b_scale, d, True, mode)
    _ = planes^


def expand_gpu(
    ctx: DeviceContext, h_out: F32P, y: F32P, h: F32P, mix: F32P, t: Int, c: Int, d: Int, m: Int, mode: I32P
) raises:
    """See `sd_expand`; one launch."""
    if t > 0:
        expand(ctx, h_out, y, h, mix, t, c, d, m, mode)
