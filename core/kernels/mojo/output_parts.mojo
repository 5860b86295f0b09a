"""The output projections in parts, for one device of several: between them the parts of all devices are gathered.

A device computes some output rows of a matrix, each whole and in the order of one device alone, so that gathered they
are bit for bit what one device computes.
"""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from .attention_in import CHUNK
from .common import F32P, Rows, U8P, bf16_row, parallel
from .gpu.output_parts import expand_gpu, output_groups_gpu, output_rows_gpu
from .hyper import expand
from .layout import EXACT, THREADS
from .linear import linear
from .quant import E4M3, qdq_fp8


def lower_groups(a: F32P, o: F32P, w: U8P, s: U8P, t: Int, na: Int, ka: Int, hk: Int, exact: Bool, threads: Int):
    """Rows a [t, na] = FP8(bf16(grouped projection of o [t, hk])), w [na, ka] in hk / ka groups."""
    var identity_ = Rows(t)
    var rows = identity_.ptr()
    var rank = na // (hk // ka)
    var chunk = CHUNK if rank % CHUNK == 0 else rank  # a chunk stays within one group

    def lower(item: Int) {imm}:
        var n = item * chunk
        linear[E4M3](a, na, o.unsafe_offset(n // rank * ka), hk, rows, t, w, s, n, n + chunk, ka)

    parallel(lower, na // chunk, t * na * ka, threads)
    for r in range(t):
        var row = a.unsafe_offset(r * na)
        bf16_row(row, na, exact)
        qdq_fp8(row, row, na, exact)
    _ = identity_^


def raise_rows(y: F32P, a: F32P, w: U8P, s: U8P, t: Int, d: Int, na: Int, exact: Bool, threads: Int):
    """Rows y [t, d] = bf16(w a), a [t, na], w [d, na]."""
    var identity_ = Rows(t)
    var rows = identity_.ptr()

    def item(i: Int) {imm}:
        var n = i * CHUNK
        linear[E4M3](y, d, a, na, rows, t, w, s, n, min(n + CHUNK, d), na)

    parallel(item, (d + CHUNK - 1) // CHUNK, t * d * na, threads)
    for r in range(t):
        bf16_row(y.unsafe_offset(r * d), d, exact)
    _ = identity_^


@compiler.register("sd_output_groups")
struct OutputGroups:
    """Some groups' lower projection, as wo_b takes it: a [T, A] of o [T, H K], these groups' heads; wo_a [A, K'] FP8."""

    @staticmethod
    def execute[target: StaticString](
        a: OutputTensor[dtype=DType.float32, rank=2, ...],
        o: InputTensor[dtype=DType.float32, rank=2, ...],
        wo_a: InputTensor[dtype=DType.uint8, rank=2, ...],
        wo_a_scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            output_groups_gpu(
                ctx, a.unsafe_ptr(), o.unsafe_ptr(), wo_a.unsafe_ptr(), wo_a_scale.unsafe_ptr(), o.dim_size(0),
                o.dim_size(1), wo_a.dim_size(0), wo_a.dim_size(1), mode.unsafe_ptr(),
            )
            return
        lower_groups(
            a.unsafe_ptr(), o.unsafe_ptr(), wo_a.unsafe_ptr(), wo_a_scale.unsafe_ptr(), o.dim_size(0),
            wo_a.dim_size(0), wo_a.dim_size(1), o.dim_size(1), mode.unsafe_ptr()[unsafe_offset=EXACT] != 0,
            Int(mode.unsafe_ptr()[unsafe_offset=THREADS]),
        )


@compiler.register("sd_output_rows")
struct OutputRows:
    """Some of the sublayer's output columns: y [T, N] of all groups' a [T, A]; wo_b [N, A] FP8."""

    @staticmethod
    def execute[target: StaticString](
        y: OutputTensor[dtype=DType.float32, rank=2, ...],
        a: InputTensor[dtype=DType.float32, rank=2, ...],
        wo_b: InputTensor[dtype=DType.uint8, rank=2, ...],
        wo_b_scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            output_rows_gpu(
                ctx, y.unsafe_ptr(), a.unsafe_ptr(), wo_b.unsafe_ptr(), wo_b_scale.unsafe_ptr(), a.dim_size(0),
                a.dim_size(1), wo_b.dim_size(0), mode.unsafe_ptr(),
            )
            return
        raise_rows(
            y.unsafe_ptr(), a.unsafe_ptr(), wo_b.unsafe_ptr(), wo_b_scale.unsafe_ptr(), a.dim_size(0),
            wo_b.dim_size(0), a.dim_size(1), mode.unsafe_ptr()[unsafe_offset=EXACT] != 0,
            Int(mode.unsafe_ptr()[unsafe_offset=THREADS]),
        )


@compiler.register("sd_expand")
struct Expand:
    """Spreads a sublayer's output y [T, D] over the residual copies: h_out [T, C, D] from h [T, C, D] and its mix."""

    @staticmethod
    def execute[target: StaticString](
        h_out: OutputTensor[dtype=DType.float32, rank=3, ...],
        y: InputTensor[dtype=DType.float32, rank=2, ...],
        h: InputTensor[dtype=DType.float32, rank=3, ...],
        mix: InputTensor[dtype=DType.float32, rank=2, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        var t = h.dim_size(0)
        var c = h.dim_size(1)
        var d = h.dim_size(2)
        var m = mix.dim_size(1)
        comptime if is_gpu[target]():
            expand_gpu(
                ctx, h_out.unsafe_ptr(), y.unsafe_ptr(), h.unsafe_ptr(), mix.unsafe_ptr(), t, c, d, m,
                mode.unsafe_ptr(),
            )
            return
        for r in range(t):
            expand(
                h_out.unsafe_ptr().unsafe_offset(r * c * d), y.unsafe_ptr().unsafe_offset(r * d),
                h.unsafe_ptr().unsafe_offset(r * c * d), mix.unsafe_ptr().unsafe_offset(r * m), c, d,
                mode.unsafe_ptr()[unsafe_offset=EXACT] != 0,
            )
