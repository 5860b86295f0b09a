"""The mixture of experts: noaux_tc routing, FP4 routed experts, an FP8 shared expert, expand.

Rows are grouped by expert, so an expert's weights are decoded once for all rows that chose it. A row's own sum runs
over its experts in ascending id, then the shared one, whatever else is in the batch.
"""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from std.math import exp, log, sqrt
from .attention_in import CHUNK
from .common import F32P, I32P, Rows, Scratch, U8P, Vec, W, at, bf16_row, bf16v, ld, parallel, sigmoid_v, st
from .gpu.moe import moe
from .hyper import expand
from .layout import EXACT, THREADS, EXPERTS_PER_TOKEN, ROUTED_SCALING, SWIGLU_LIMIT
from .linear import linear
from .quant import BF16, E2M1, E4M3, bounded, evens_first, qdq_fp8


def softplus(x: Float32) -> Float32:
    """Returns log(1 + exp(x)), the larger term outside."""
    # log1p by its quotient: exact to rounding where 1 + e rounds.
    var e = exp(-abs(x))
    var u = 1 + e
    var log1p = e if u == 1 else log(u) * (e / (u - 1))
    return max(x, 0) + log1p


def route(ids: I32P, weights: F32P, scores: F32P, bias: F32P, experts: Int, k: Int, scaling: Float32):
    """The k best of score + bias (ties to the lower id), in that order; weights come from the unbiased scores."""
    var total = Float32(0)
    for slot in range(k):
        var best = -1
        var top = Float32.MIN
        for e in range(experts):
            var taken = False
            for earlier in range(slot):
                if Int(ids[unsafe_offset=earlier]) == e:
                    taken = True
            var v = at(scores, e) + at(bias, e)
            if not taken and (best < 0 or v > top):
                best = e
                top = v
        ids[unsafe_offset=slot] = Int32(best)
        weights[unsafe_offset=slot] = at(scores, best)
        total += at(scores, best)
    for slot in range(k):
        weights[unsafe_offset=slot] = at(weights, slot) / (total + 1e-20) * scaling


def activate(gate: F32P, up: F32P, n: Int, weight: Float32, limit: Float32, exact: Bool):
    """The hidden row gate := FP8(bf16(weight silu(min(gate, limit)) clamp(up, ±limit)))."""
    for i in range(0, n, W):
        var g = bf16v(ld(gate, i), exact)
        g = g.gt(Vec(limit)).select(Vec(limit), g)
        var u = bounded(bf16v(ld(up, i), exact), limit)
        st(gate, i, bf16v(weight * (g * sigmoid_v(g) * u), exact))
    qdq_fp8(gate, gate, n, exact)


@compiler.register("sd_moe")
struct Moe:
    """Gives h_out [T, C, D], the output y [T, D], and the routing ids, weights [T, k].

    x [T, D]; gate [E, D] bf16, bias [E]; w1, w3 [E, I, D/2], w2 [E, D, I/2] packed FP4 and their scales;
    shared s1, s3 [I, D], s2 [D, I] FP8.
    """

    @staticmethod
    def execute[target: StaticString](
        h_out: OutputTensor[dtype=DType.float32, rank=3, ...],
        y: OutputTensor[dtype=DType.float32, rank=2, ...],
        ids: OutputTensor[dtype=DType.int32, rank=2, ...],
        weights: OutputTensor[dtype=DType.float32, rank=2, ...],
        x: InputTensor[dtype=DType.float32, rank=2, ...],
        h: InputTensor[dtype=DType.float32, rank=3, ...],
        mix: InputTensor[dtype=DType.float32, rank=2, ...],
        gate: InputTensor[dtype=DType.bfloat16, rank=2, ...],
        bias: InputTensor[dtype=DType.float32, rank=1, ...],
        w1: InputTensor[dtype=DType.uint8, rank=3, ...],
        w1_scale: InputTensor[dtype=DType.uint8, rank=3, ...],
        w3: InputTensor[dtype=DType.uint8, rank=3, ...],
        w3_scale: InputTensor[dtype=DType.uint8, rank=3, ...],
        w2: InputTensor[dtype=DType.uint8, rank=3, ...],
        w2_scale: InputTensor[dtype=DType.uint8, rank=3, ...],
        s1: InputTensor[dtype=DType.uint8, rank=2, ...],
        s1_scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        s3: InputTensor[dtype=DType.uint8, rank=2, ...],
        s3_scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        s2: InputTensor[dtype=DType.uint8, rank=2, ...],
        s2_scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        model: InputTensor[dtype=DType.float32, rank=1, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            moe(
                ctx, h_out.unsafe_ptr(), y.unsafe_ptr(), ids.unsafe_ptr(), weights.unsafe_ptr(), x.unsafe_ptr(),
                h.unsafe_ptr(), mix.unsafe_ptr(), gate.unsafe_ptr().unsafe_bitcast[UInt8](), bias.unsafe_ptr(),
                w1.unsafe_ptr(), w1_scale.unsafe_ptr(), w3.unsafe_ptr(), w3_scale.unsafe_ptr(), w2.unsafe_ptr(),
                w2_scale.unsafe_ptr(), s1.unsafe_ptr(), s1_scale.unsafe_ptr(), s3.unsafe_ptr(), s3_scale.unsafe_ptr(),
                s2.unsafe_ptr(), s2_scale.unsafe_ptr(), model.unsafe_ptr(), mode.unsafe_ptr(), x.dim_size(0), x.dim_size(1),
                h.dim_size(1), mix.dim_size(1), gate.dim_size(0), w1.dim_size(1), ids.dim_size(1),
            )
            return
        var t = x.dim_size(0)
        var d = x.dim_size(1)
        var c = h.dim_size(1)
        var m = mix.dim_size(1)
        var experts = gate.dim_size(0)
        var inner = w1.dim_size(1)
        var k = ids.dim_size(1)
        var exact = mode.unsafe_ptr()[unsafe_offset=EXACT] != 0
        var threads = Int(mode.unsafe_ptr()[unsafe_offset=THREADS])
        var limit = model.unsafe_ptr()[unsafe_offset=SWIGLU_LIMIT]
        var scaling = model.unsafe_ptr()[unsafe_offset=ROUTED_SCALING]
        var px: F32P = x.unsafe_ptr()
        var py: F32P = y.unsafe_ptr()
        var pids: I32P = ids.unsafe_ptr()
        var pweights: F32P = weights.unsafe_ptr()
        var ph: F32P = h.unsafe_ptr()
        var ph_out: F32P = h_out.unsafe_ptr()
        var pm: F32P = mix.unsafe_ptr()
        var pbias: F32P = bias.unsafe_ptr()
        var pg: U8P = gate.unsafe_ptr().unsafe_bitcast[UInt8]()
        var p1: U8P = w1.unsafe_ptr()
        var q1: U8P = w1_scale.unsafe_ptr()
        var p3: U8P = w3.unsafe_ptr()
        var q3: U8P = w3_scale.unsafe_ptr()
        var p2: U8P = w2.unsafe_ptr()
        var q2: U8P = w2_scale.unsafe_ptr()
        var ps1: U8P = s1.unsafe_ptr()
        var qs1: U8P = s1_scale.unsafe_ptr()
        var ps3: U8P = s3.unsafe_ptr()
        var qs3: U8P = s3_scale.unsafe_ptr()
        var ps2: U8P = s2.unsafe_ptr()
        var qs2: U8P = s2_scale.unsafe_ptr()

        # Slots: one per (row, chosen expert), grouped by expert; then T slots of the shared expert.
        var slots = t * k
        var all_slots = slots + t
        var memory = Scratch(t * experts + 2 * t * d + 2 * all_slots * inner + all_slots * d)
        var scores = memory.ptr()
        var xq = scores.unsafe_offset(t * experts)  # natural order, for FP8
        var xs = xq.unsafe_offset(t * d)  # even columns first, for FP4
        var hidden = xs.unsafe_offset(t * d)
        var up = hidden.unsafe_offset(all_slots * inner)
        var out = up.unsafe_offset(all_slots * inner)
        var identity_ = Rows(all_slots)
        var identity = identity_.ptr()
        var slot_rows_ = Rows(slots)
        var slot_rows = slot_rows_.ptr()
        var slot_of_ = Rows(slots)
        var slot_of = slot_of_.ptr()
        var starts = List[Int](length=experts + 2, fill=0)

        linear[BF16](scores, experts, px, d, identity, t, pg, pg, 0, experts, d)
        for r in range(t):
            var row = scores.unsafe_offset(r * experts)
            for e in range(experts):
                row[unsafe_offset=e] = sqrt(softplus(at(row, e)))
            route(pids.unsafe_offset(r * k), pweights.unsafe_offset(r * k), row, pbias, experts, k, scaling)
            qdq_fp8(xq.unsafe_offset(r * d), px.unsafe_offset(r * d), d, exact)
            evens_first(xs.unsafe_offset(r * d), xq.unsafe_offset(r * d), d)
        var active = List[Int](capacity=min(experts, slots) + 1)
        var filled = 0
        for e in range(experts):
            starts[e] = filled
            for i in range(slots):
                if Int(pids[unsafe_offset=i]) == e:
                    slot_rows[unsafe_offset=filled] = Int32(i // k)
                    slot_of[unsafe_offset=i] = Int32(filled)
                    filled += 1
            if filled > starts[e]:
                active.append(e)
        starts[experts] = slots
        active.append(experts)  # the shared expert
        var chunks = (inner + CHUNK - 1) // CHUNK

        def first(item: Int) {imm}:
            var e = active[item // chunks]
            var n0 = item % chunks * CHUNK
            var n1 = min(n0 + CHUNK, inner)
            var begin = starts[e]
            var hid = hidden.unsafe_offset(begin * inner)
            var upper = up.unsafe_offset(begin * inner)
            if e == experts:
                linear[E4M3](hid, inner, xq, d, identity, t, ps1, qs1, n0, n1, d)
                linear[E4M3](upper, inner, xq, d, identity, t, ps3, qs3, n0, n1, d)
            else:
                var count = starts[e + 1] - begin
                var w = e * inner * (d // 2)
                var s = e * inner * (d // 32)
                var which = slot_rows.unsafe_offset(begin)
                linear[E2M1](
                    hid, inner, xs, d, which, count, p1.unsafe_offset(w), q1.unsafe_offset(s), n0, n1, d
                )
                linear[E2M1](
                    upper, inner, xs, d, which, count, p3.unsafe_offset(w), q3.unsafe_offset(s), n0, n1, d
                )

        parallel(first, len(active) * chunks, 2 * all_slots * inner * d, threads)
        for i in range(slots):
            var slot = Int(slot_of[unsafe_offset=i])
            var row = hidden.unsafe_offset(slot * inner)
            activate(row, up.unsafe_offset(slot * inner), inner, at(pweights, i), limit, exact)
            evens_first(row, row, inner)
        for r in range(t):
            activate(
                hidden.unsafe_offset((slots + r) * inner), up.unsafe_offset((slots + r) * inner), inner, 1, limit, exact
            )
        var out_chunks = (d + CHUNK - 1) // CHUNK

        def second(item: Int) {imm}:
            var e = active[item // out_chunks]
            var n0 = item % out_chunks * CHUNK
            var n1 = min(n0 + CHUNK, d)
            var begin = starts[e]
            var hid = hidden.unsafe_offset(begin * inner)
            var dst = out.unsafe_offset(begin * d)
            if e == experts:
                linear[E4M3](dst, d, hid, inner, identity, t, ps2, qs2, n0, n1, inner)
            else:
                var w = e * d * (inner // 2)
                var s = e * d * (inner // 32)
                linear[E2M1](
                    dst, d, hid, inner, identity, starts[e + 1] - begin, p2.unsafe_offset(w), q2.unsafe_offset(s),
                    n0, n1, inner,
                )

        parallel(second, len(active) * out_chunks, all_slots * inner * d, threads)
        for r in range(t):
            var row = py.unsafe_offset(r * d)
            for i in range(0, d, W):
                st(row, i, Vec(0.0))
            var previous = -1
            for _ in range(k):
                var e = experts
                var slot = 0
                for j in range(k):
                    var id = Int(pids[unsafe_offset=r * k + j])
                    if id > previous and id < e:
                        e = id
                        slot = Int(slot_of[unsafe_offset=r * k + j])
                previous = e
                add_rounded(row, out.unsafe_offset(slot * d), d, exact)
            add_rounded(row, out.unsafe_offset((slots + r) * d), d, exact)
            bf16_row(row, d, exact)
            expand(
                ph_out.unsafe_offset(r * c * d), row, ph.unsafe_offset(r * c * d), pm.unsafe_offset(r * m), c, d, exact
            )
        _ = memory^
        _ = identity_^
        _ = slot_rows_^
        _ = slot_of_^


def add_rounded(dst: F32P, src: F32P, n: Int, exact: Bool):
    """Adds bf16(src) to dst."""
    bf16_row(src, n, exact)
    for i in range(0, n, W):
        st(dst, i, ld(dst, i) + ld(src, i))
