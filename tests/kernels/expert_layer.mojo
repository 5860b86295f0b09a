"""A layer's experts with random weights: on the device, and slot by slot with the CPU's functions."""

from kernels.common import F32P, I32P, bf16_row
from kernels.gpu.experts import experts_gpu
from kernels.gpu.staged import stage_both
from kernels.experts import activate
from kernels.quant import E2M1, E4M3, qdq_fp8
from grouping import Groups
from room import Floats, Planes, Room
from stored import Stored, scale_for, stored, times

comptime LIMIT = Float32(3)  # of a gate; low enough that it is met


@fieldwise_init
struct Experts(Copyable, ImplicitlyCopyable, Movable):
    """Routed experts (FP4; one below the other, as in a checkpoint) and the shared one (FP8)."""

    var count: Int
    var d: Int
    var inner: Int
    var w1: Stored
    var w3: Stored
    var w2: Stored
    var s1: Stored
    var s3: Stored
    var s2: Stored


def experts_of(mut room: Room, count: Int, d: Int, inner: Int) raises -> Experts:
    var first = scale_for(d)
    var second = scale_for(inner)
    # A random E4M3 code is far larger than one of E2M1, about 2^6 on average.
    return Experts(
        count, d, inner, stored[E2M1](room, count * inner, d, 20, first),
        stored[E2M1](room, count * inner, d, 22, first), stored[E2M1](room, count * d, inner, 24, second),
        stored[E4M3](room, inner, d, 26, first - 5), stored[E4M3](room, inner, d, 28, first - 5),
        stored[E4M3](room, d, inner, 30, second - 5),
    )


@fieldwise_init
struct Slots(Copyable, ImplicitlyCopyable, Movable):
    """What the two matmuls give: hidden [T k + T, I] in planes, results [T k + T, D]."""

    var hidden: Planes
    var results: Floats


def run_experts(
    mut room: Room, layer: Experts, x: F32P, weights: F32P, ids: List[Int], t: Int, k: Int, mode: I32P
) raises -> Slots:
    """Rows x [t, D] through their experts ids [t k] with `weights` [t k], on the device."""
    var e = layer.count
    var lists = room.ints(Groups(ids, e, k).lists(e)).d()
    var plain = room.planes(t, layer.d).d()
    var quantised = room.planes(t, layer.d).d()
    var hidden = room.planes(t * k + t, layer.inner)
    var results = room.make[DType.float32]((t * k + t) * layer.d)
    var model = room.constants([1e-6, 1e-6, LIMIT, 2.5]).d()
    stage_both(room.ctx, plain, quantised, x, t, layer.d, mode)
    experts_gpu(
        room.ctx, results.d(), hidden.d(), quantised, weights, lists, lists.unsafe_offset(e + 1),
        lists.unsafe_offset(2 * (e + 1)), layer.w1.codes.d(), layer.w1.scales.d(), layer.w3.codes.d(),
        layer.w3.scales.d(), layer.w2.codes.d(), layer.w2.scales.d(), layer.s1.codes.d(), layer.s1.scales.d(),
        layer.s3.codes.d(), layer.s3.scales.d(), layer.s2.codes.d(), layer.s2.scales.d(), model, mode, t, layer.d,
        layer.inner, k, e,
    )
    return Slots(hidden, results)


def host_hidden(
    mut room: Room, layer: Experts, x: F32P, weights: F32P, ids: List[Int], t: Int, k: Int, exact: Bool
) raises -> F32P:
    """Hidden rows [t k + t, I] of every slot, then of the shared expert."""
    var groups = Groups(ids, layer.count, k)
    var slots = t * k
    var inner = layer.inner
    var xq = room.host[DType.float32](t * layer.d)
    qdq_fp8(xq, x, t * layer.d, exact)
    var gate = room.host[DType.float32]((slots + t) * inner)
    var up = room.host[DType.float32](inner)
    for slot in range(slots + t):
        var row = gate.unsafe_offset(slot * inner)
        if slot < slots:
            var pair = groups.pairs[slot]
            var n0 = ids[pair] * inner
            var own = xq.unsafe_offset(pair // k * layer.d)
            # `times` counts outputs over all experts, results start at the expert's first.
            times[E2M1](row.unsafe_offset(-n0), inner, own, layer.d, 1, layer.w1, n0, n0 + inner)
            times[E2M1](up.unsafe_offset(-n0), inner, own, layer.d, 1, layer.w3, n0, n0 + inner)
            activate(row, up, inner, weights[unsafe_offset=pair], LIMIT, exact)
        else:
            var own = xq.unsafe_offset((slot - slots) * layer.d)
            times[E4M3](row, inner, own, layer.d, 1, layer.s1, 0, inner)
            times[E4M3](up, inner, own, layer.d, 1, layer.s3, 0, inner)
            activate(row, up, inner, 1, LIMIT, exact)
    return gate


def host_results(
    mut room: Room, layer: Experts, hidden: F32P, ids: List[Int], t: Int, k: Int, exact: Bool
) raises -> F32P:
    """Results [t k + t, D] of hidden rows."""
    var groups = Groups(ids, layer.count, k)
    var slots = t * k
    var d = layer.d
    var results = room.host[DType.float32]((slots + t) * d)
    for slot in range(slots + t):
        var row = results.unsafe_offset(slot * d)
        var own = hidden.unsafe_offset(slot * layer.inner)
        if slot < slots:
            var n0 = ids[groups.pairs[slot]] * d
            times[E2M1](row.unsafe_offset(-n0), d, own, layer.inner, 1, layer.w2, n0, n0 + d)
        else:
            times[E4M3](row, d, own, layer.inner, 1, layer.s2, 0, d)
    bf16_row(results, (slots + t) * d, exact)
    return results
