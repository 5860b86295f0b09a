"""Routing and the experts' two matmuls on the CPU, over slots grouped by expert.

Rows are grouped by expert, so an expert's weights are decoded once for all rows that chose it. What a slot computes
does not depend on the other slots, nor on which part of a matrix's output rows is computed here.
"""

from std.math import exp, log, sqrt
from .attention_in import CHUNK
from .common import F32P, I32P, Rows, Scratch, U8P, Vec, W, at, bf16_row, bf16v, ld, parallel, sigmoid_v, st
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


def route_rows(
    ids: I32P, weights: F32P, x: F32P, gate: U8P, bias: F32P, t: Int, d: Int, experts: Int, k: Int, scaling: Float32
):
    """Routes rows x [t, d]: ids and weights [t, k]."""
    var memory = Scratch(t * experts)
    var scores = memory.ptr()
    var identity_ = Rows(t)
    linear[BF16](scores, experts, x, d, identity_.ptr(), t, gate, gate, 0, experts, d)
    for r in range(t):
        var row = scores.unsafe_offset(r * experts)
        for e in range(experts):
            row[unsafe_offset=e] = sqrt(softplus(at(row, e)))
        route(ids.unsafe_offset(r * k), weights.unsafe_offset(r * k), row, bias, experts, k, scaling)
    _ = memory^
    _ = identity_^


def activate(gate: F32P, up: F32P, n: Int, weight: Float32, limit: Float32, exact: Bool):
    """The hidden row gate := FP8(bf16(weight silu(min(gate, limit)) clamp(up, ±limit)))."""
    for i in range(0, n, W):
        var g = bf16v(ld(gate, i), exact)
        g = g.gt(Vec(limit)).select(Vec(limit), g)
        var u = bounded(bf16v(ld(up, i), exact), limit)
        st(gate, i, bf16v(weight * (g * sigmoid_v(g) * u), exact))
    qdq_fp8(gate, gate, n, exact)


struct Slots(Movable):
    """The (row, chosen expert) pairs of experts first … first + count - 1, in order of expert, then row.

    Then come t slots of the shared expert, if it is computed here, which counts as expert `count`.
    """

    var count: Int
    var size: Int  # of routed slots
    var shared: Int  # of the shared expert's
    var starts: List[Int]  # first slot of each expert, and the end
    var active: List[Int]  # experts with slots
    var rows_: Rows  # row of each slot, the shared expert's included
    var slot_of: List[Int]  # slot of each pair; -1: of an expert elsewhere

    def __init__(out self, ids: I32P, t: Int, k: Int, first: Int, count: Int, shared: Int):
        self.count = count
        self.shared = shared
        self.starts = List[Int](length=count + 2, fill=0)
        self.active = List[Int](capacity=min(count, t * k) + 1)
        self.rows_ = Rows(t * k + shared)
        self.slot_of = List[Int](length=t * k, fill=-1)
        var rows = self.rows_.ptr()
        var filled = 0
        for e in range(count):
            self.starts[e] = filled
            for i in range(t * k):
                if Int(ids[unsafe_offset=i]) == first + e:
                    rows[unsafe_offset=filled] = Int32(i // k)
                    self.slot_of[i] = filled
                    filled += 1
            if filled > self.starts[e]:
                self.active.append(e)
        self.size = filled
        self.starts[count] = filled
        self.starts[count + 1] = filled + shared
        for r in range(shared):
            rows[unsafe_offset=filled + r] = Int32(r)
        if shared > 0:
            self.active.append(count)

    @always_inline
    def all(self) -> Int:
        return self.size + self.shared


def quantised(xq: F32P, xs: F32P, x: F32P, t: Int, d: Int, exact: Bool):
    """Rows x [t, d] through FP8: xq in natural order, xs with even columns first, for FP4 weights."""
    for r in range(t):
        qdq_fp8(xq.unsafe_offset(r * d), x.unsafe_offset(r * d), d, exact)
        evens_first(xs.unsafe_offset(r * d), xq.unsafe_offset(r * d), d)


def first_matmul(
    hidden: F32P, up: F32P, mut slots: Slots, x: F32P, t: Int, d: Int, inner: Int, w1: U8P, q1: U8P, w3: U8P, q3: U8P,
    s1: U8P, sq1: U8P, s3: U8P, sq3: U8P, exact: Bool, threads: Int,
):
    """Gate and up projections [slots, inner] of rows x [t, d]."""
    var memory = Scratch(2 * t * d)
    var xq = memory.ptr()
    var xs = xq.unsafe_offset(t * d)
    quantised(xq, xs, x, t, d, exact)
    var rows = slots.rows_.ptr()
    var starts = slots.starts.unsafe_ptr().unsafe_origin_cast[MutAnyOrigin]()
    var active = slots.active.unsafe_ptr().unsafe_origin_cast[MutAnyOrigin]()
    var shared = slots.count
    var chunks = (inner + CHUNK - 1) // CHUNK

    def item(i: Int) {imm}:
        var e = active[unsafe_offset=i // chunks]
        var n0 = i % chunks * CHUNK
        var n1 = min(n0 + CHUNK, inner)
        var begin = starts[unsafe_offset=e]
        var count = starts[unsafe_offset=e + 1] - begin
        var which = rows.unsafe_offset(begin)
        var hid = hidden.unsafe_offset(begin * inner)
        var upper = up.unsafe_offset(begin * inner)
        if e == shared:
            linear[E4M3](hid, inner, xq, d, which, count, s1, sq1, n0, n1, d)
            linear[E4M3](upper, inner, xq, d, which, count, s3, sq3, n0, n1, d)
        else:
            var w = e * inner * (d // 2)
            var s = e * inner * (d // 32)
            linear[E2M1](hid, inner, xs, d, which, count, w1.unsafe_offset(w), q1.unsafe_offset(s), n0, n1, d)
            linear[E2M1](upper, inner, xs, d, which, count, w3.unsafe_offset(w), q3.unsafe_offset(s), n0, n1, d)

    parallel(item, len(slots.active) * chunks, 2 * slots.all() * inner * d, threads)
    _ = memory^


def second_matmul(
    results: F32P, hidden: F32P, slots: Slots, inner: Int, d: Int, w2: U8P, q2: U8P, s2: U8P, sq2: U8P, threads: Int
):
    """Results [slots, d] of activated rows hidden [slots, inner], routed ones with even columns first."""
    var identity_ = Rows(slots.all())
    var identity = identity_.ptr()
    var starts = slots.starts.unsafe_ptr().unsafe_origin_cast[MutAnyOrigin]()
    var active = slots.active.unsafe_ptr().unsafe_origin_cast[MutAnyOrigin]()
    var shared = slots.count
    var chunks = (d + CHUNK - 1) // CHUNK

    def item(i: Int) {imm}:
        var e = active[unsafe_offset=i // chunks]
        var n0 = i % chunks * CHUNK
        var n1 = min(n0 + CHUNK, d)
        var begin = starts[unsafe_offset=e]
        var count = starts[unsafe_offset=e + 1] - begin
        var hid = hidden.unsafe_offset(begin * inner)
        var dst = results.unsafe_offset(begin * d)
        if e == shared:
            linear[E4M3](dst, d, hid, inner, identity, count, s2, sq2, n0, n1, inner)
        else:
            var w = e * d * (inner // 2)
            var s = e * d * (inner // 32)
            linear[E2M1](
                dst, d, hid, inner, identity, count, w2.unsafe_offset(w), q2.unsafe_offset(s), n0, n1, inner
            )

    parallel(item, len(slots.active) * chunks, slots.all() * inner * d, threads)
    _ = identity_^


def next_by_id(ids: I32P, k: Int, previous: Int) -> Int:
    """Which of a row's k choices has the lowest expert id above `previous`; there must be one."""
    var found = -1
    for j in range(k):
        var id = Int(ids[unsafe_offset=j])
        if id > previous and (found < 0 or id < Int(ids[unsafe_offset=found])):
            found = j
    return found


def add_rounded(dst: F32P, src: F32P, n: Int, exact: Bool):
    """Adds bf16(src) to dst."""
    bf16_row(src, n, exact)
    for i in range(0, n, W):
        st(dst, i, ld(dst, i) + ld(src, i))


def sum_slots(dst: F32P, results: F32P, slots: Slots, ids: I32P, r: Int, k: Int, d: Int, exact: Bool):
    """Row r's sum over its experts in ascending id, then the shared one, rounded."""
    for i in range(0, d, W):
        st(dst, i, Vec(0.0))
    var previous = -1
    for _ in range(k):
        var j = next_by_id(ids.unsafe_offset(r * k), k, previous)
        previous = Int(ids[unsafe_offset=r * k + j])
        add_rounded(dst, results.unsafe_offset(slots.slot_of[r * k + j] * d), d, exact)
    add_rounded(dst, results.unsafe_offset((slots.size + r) * d), d, exact)
    bf16_row(dst, d, exact)
