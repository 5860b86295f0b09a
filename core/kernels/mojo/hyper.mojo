"""Hyper-connections: gates, collapse and expand of the residual copies.

A sublayer computes pre, post and comb from its own input streams, collapses with the pre of the sublayer before it,
and spreads its output with its own post and comb. A mix row is [pre C | post C | comb C x C], comb[source, destination].
"""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from std.collections import Array
from std.math import exp, sqrt
from .common import F32P, I32P, Rows, Scratch, U8P, Vec, W, at, bf16v, ld, parallel, rms_norm, sigmoid, st, sum_squares
from .gpu.hyper import sublayer_in
from .layout import EXACT, THREADS, HC_EPS, HC_ITERATIONS, RMS_EPS
from .linear import linear
from .quant import F32


def normalise(comb: F32P, c: Int, outer: Int, inner: Int, eps: Float32):
    """Divides each line of comb by its sum plus eps; (c, 1) walks rows, (1, c) columns."""
    for i in range(c):
        var total = Float32(0)
        for j in range(c):
            total += at(comb, i * outer + j * inner)
        for j in range(c):
            comb[unsafe_offset=i * outer + j * inner] = at(comb, i * outer + j * inner) / (total + eps)


def gates4(mix: F32P, scale: F32P, base: F32P, iterations: Int, eps: Float32):
    """The same for four copies, the released number, in registers."""
    comptime Row = SIMD[DType.float32, 4]
    comptime for part in range(2):
        var at4 = mix.unsafe_offset(4 * part)
        var v = at4.unsafe_load[width=4]() * at(scale, part) + base.unsafe_offset(4 * part).unsafe_load[width=4]()
        var gate = 1 / (1 + exp(-v))
        at4.unsafe_store(gate + eps if part == 0 else 2 * gate)
    var rows = Array[Row, 4](fill=Row(0.0))
    comptime for i in range(4):
        var v = mix.unsafe_offset(8 + 4 * i).unsafe_load[width=4]() * at(scale, 2)
        v += base.unsafe_offset(8 + 4 * i).unsafe_load[width=4]()
        var e = exp(v - v.reduce_max())
        rows[i] = e / e.reduce_add() + eps
    for round in range(iterations):
        if round > 0:
            comptime for i in range(4):
                rows[i] = rows[i] / (rows[i].reduce_add() + eps)
        var columns = rows[0] + rows[1] + rows[2] + rows[3] + eps
        comptime for i in range(4):
            rows[i] = rows[i] / columns
    comptime for i in range(4):
        mix.unsafe_offset(8 + 4 * i).unsafe_store(rows[i])


def gates(mix: F32P, scale: F32P, base: F32P, c: Int, iterations: Int, eps: Float32):
    """Turns a row of raw mixes into pre, post and comb, in place (Sinkhorn ends on columns)."""
    if c == 4:
        gates4(mix, scale, base, iterations, eps)
        return
    for i in range(c):
        mix[unsafe_offset=i] = sigmoid(at(mix, i) * at(scale, 0) + at(base, i)) + eps
        mix[unsafe_offset=c + i] = 2 * sigmoid(at(mix, c + i) * at(scale, 1) + at(base, c + i))
    var comb = mix.unsafe_offset(2 * c)
    for i in range(c):
        var top = Float32.MIN
        for j in range(c):
            var v = at(comb, i * c + j) * at(scale, 2) + at(base, 2 * c + i * c + j)
            comb[unsafe_offset=i * c + j] = v
            top = max(top, v)
        var total = Float32(0)
        for j in range(c):
            var e = exp(at(comb, i * c + j) - top)
            comb[unsafe_offset=i * c + j] = e
            total += e
        for j in range(c):
            comb[unsafe_offset=i * c + j] = at(comb, i * c + j) / total + eps
    normalise(comb, c, 1, c, eps)
    for _ in range(iterations - 1):
        normalise(comb, c, c, 1, eps)
        normalise(comb, c, 1, c, eps)


def collapse(dst: F32P, h: F32P, pre: F32P, c: Int, d: Int, exact: Bool):
    """One row: dst = bf16(sum over copies of pre[c] h[c])."""
    for i in range(0, d, W):
        var acc = ld(h, i) * at(pre, 0)
        for copy in range(1, c):
            acc += ld(h, copy * d + i) * at(pre, copy)
        st(dst, i, bf16v(acc, exact))


def expand(dst: F32P, y: F32P, h: F32P, mix: F32P, c: Int, d: Int, exact: Bool):
    """One row: dst[j] = bf16(post[j] y + sum over i of comb[i, j] h[i])."""
    var comb = mix.unsafe_offset(2 * c)
    for j in range(c):
        var post = at(mix, c + j)
        for i in range(0, d, W):
            var acc = ld(y, i) * post
            for source in range(c):
                acc += ld(h, source * d + i) * at(comb, source * c + j)
            st(dst, j * d + i, bf16v(acc, exact))


@compiler.register("sd_sublayer_in")
struct SublayerIn:
    """Gates of this sublayer, and its normed input collapsed with the gates before it.

    mix [T, C(C+2)], x [T, D] from h [T, C, D], before [T, C(C+2)], fn [C(C+2), C D], scale [3], base, norm [D].
    """

    @staticmethod
    def execute[target: StaticString](
        mix: OutputTensor[dtype=DType.float32, rank=2, ...],
        x: OutputTensor[dtype=DType.float32, rank=2, ...],
        h: InputTensor[dtype=DType.float32, rank=3, ...],
        before: InputTensor[dtype=DType.float32, rank=2, ...],
        fn_: InputTensor[dtype=DType.float32, rank=2, ...],
        scale: InputTensor[dtype=DType.float32, rank=1, ...],
        base: InputTensor[dtype=DType.float32, rank=1, ...],
        norm: InputTensor[dtype=DType.float32, rank=1, ...],
        layer: InputTensor[dtype=DType.int32, rank=1, ...],
        model: InputTensor[dtype=DType.float32, rank=1, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            sublayer_in(
                ctx, mix.unsafe_ptr(), x.unsafe_ptr(), h.unsafe_ptr(), before.unsafe_ptr(), fn_.unsafe_ptr(),
                scale.unsafe_ptr(), base.unsafe_ptr(), norm.unsafe_ptr(), layer.unsafe_ptr(), model.unsafe_ptr(),
                mode.unsafe_ptr(), h.dim_size(0), h.dim_size(1), h.dim_size(2), mix.dim_size(1),
            )
            return
        var t = h.dim_size(0)
        var c = h.dim_size(1)
        var d = h.dim_size(2)
        var m = mix.dim_size(1)
        var exact = mode.unsafe_ptr()[unsafe_offset=EXACT] != 0
        var threads = Int(mode.unsafe_ptr()[unsafe_offset=THREADS])
        var iterations = Int(layer.unsafe_ptr()[unsafe_offset=HC_ITERATIONS])
        var eps = model.unsafe_ptr()[unsafe_offset=RMS_EPS]
        var hc_eps = model.unsafe_ptr()[unsafe_offset=HC_EPS]
        var ids = Rows(t)
        var rows = ids.ptr()
        var pm: F32P = mix.unsafe_ptr()
        var px: F32P = x.unsafe_ptr()
        var ph: F32P = h.unsafe_ptr()
        var pb: F32P = before.unsafe_ptr()
        var pf: U8P = fn_.unsafe_ptr().unsafe_bitcast[UInt8]()
        var ps: F32P = scale.unsafe_ptr()
        var pbase: F32P = base.unsafe_ptr()
        var pn: F32P = norm.unsafe_ptr()

        def block(item: Int) {imm}:
            var first = item * 6
            var count = min(6, t - first)
            linear[F32](
                pm.unsafe_offset(first * m), m, ph, c * d, rows.unsafe_offset(first), count, pf, pf, 0, m, c * d
            )
            for r in range(first, first + count):
                var row = pm.unsafe_offset(r * m)
                var u = ph.unsafe_offset(r * c * d)
                var inverse = 1 / sqrt(sum_squares(u, c * d) / Float32(c * d) + eps)
                for i in range(m):
                    row[unsafe_offset=i] = at(row, i) * inverse
                gates(row, ps, pbase, c, iterations, hc_eps)
                var out = px.unsafe_offset(r * d)
                collapse(out, u, pb.unsafe_offset(r * m), c, d, exact)
                rms_norm(out, out, pn, d, eps, exact)

        parallel(block, (t + 5) // 6, t * m * c * d, threads)
        _ = ids^
