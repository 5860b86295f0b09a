"""Routing and grouping: the CPU's choice of experts and weights, and the slots of every expert."""

from std.math import sqrt
from kernels.common import F32P
from kernels.gpu.routing import route_and_group
from kernels.experts import route, softplus
from grouping import Groups
from report import Report
from room import Floats, Ints, Room

comptime SCALING = Float32(2.5)


@fieldwise_init
struct Routed(Copyable, ImplicitlyCopyable, Movable):
    """Results of a launch; lists: active [E + 1], starts [E + 1], then slot_pairs, slot_of and spare [T k] each."""

    var ids: Ints
    var weights: Floats
    var lists: Ints


def run(mut room: Room, scores: F32P, bias: F32P, t: Int, experts: Int, k: Int) raises -> Routed:
    var slots = t * k
    var ids = room.make[DType.int32](slots)
    var weights = room.make[DType.float32](slots)
    var lists = room.make[DType.int32](2 * (experts + 1) + 3 * slots)
    var starts = lists.d().unsafe_offset(experts + 1)
    var pairs = starts.unsafe_offset(experts + 1)
    var model = room.constants([0, 0, 0, SCALING]).d()
    route_and_group(
        room.ctx, lists.d(), starts, pairs, pairs.unsafe_offset(slots), pairs.unsafe_offset(2 * slots), ids.d(),
        weights.d(), scores, bias, t, experts, k, model,
    )
    return Routed(ids, weights, lists)


def swaps(affinities: F32P, bias: F32P, a: Int, b: Int) -> Bool:
    """Whether two experts are so close that the last bit of a logarithm decides between them."""
    var x = affinities[unsafe_offset=a] + bias[unsafe_offset=a]
    var y = affinities[unsafe_offset=b] + bias[unsafe_offset=b]
    return x != y and abs(x - y) < 2e-6 * (1 + abs(x))


def check(mut room: Room, mut report: Report, t: Int, experts: Int, k: Int, ties: Bool) raises:
    """Ties: whole scores, of which many are equal; the lower id comes first."""
    room.clear()
    var name = "route T " + String(t) + " experts " + String(experts) + " k " + String(k)
    report.begin(name + (" ties" if ties else ""))
    var scores = room.floats(t * experts, 21, 2)
    var bias = room.floats(experts, 22, Float32(0) if ties else Float32(0.3))
    if ties:
        for i in range(scores.n):
            scores.h()[unsafe_offset=i] = Float32(Int(scores.h()[unsafe_offset=i]))
        room.send(scores)
    var routed = run(room, scores.d(), bias.d(), t, experts, k)
    var got_ids = room.fetch(routed.ids)
    var got_weights = room.fetch(routed.weights)
    var affinities = room.host[DType.float32](experts)
    var ids = List[Int]()
    var wrong = 0
    for r in range(t):
        for e in range(experts):
            affinities[unsafe_offset=e] = sqrt(softplus(scores.h()[unsafe_offset=r * experts + e]))
        var want = routed.ids.h().unsafe_offset(r * k)
        route(want, routed.weights.h().unsafe_offset(r * k), affinities, bias.h(), experts, k, SCALING)
        for j in range(k):
            var id = Int(got_ids[unsafe_offset=r * k + j])
            ids.append(id)
            var good = id >= 0 and id < experts
            if good and id != Int(want[unsafe_offset=j]):
                good = swaps(affinities, bias.h(), id, Int(want[unsafe_offset=j]))
            wrong += 0 if good else 1
    report.expect("ids (" + String(wrong) + " of " + String(t * k) + " wrong)", wrong == 0)
    report.close("weights", got_weights, routed.weights.h(), t * k, 1e-5)
    if wrong == 0:
        var groups = Groups(ids, experts, k)
        var lists = room.fetch(routed.lists)
        var starts = lists.unsafe_offset(experts + 1)
        var pairs = starts.unsafe_offset(experts + 1)
        report.same_ints("active experts", lists, groups.active)
        report.same_ints("their number", lists.unsafe_offset(experts), [len(groups.active)])
        report.same_ints("starts", starts, groups.starts)
        report.same_ints("pairs", pairs, groups.pairs)
        report.same_ints("slot_of", pairs.unsafe_offset(t * k), groups.slot_of)
    for r in range(0, t, max(t // 5, 1)):
        var one = run(room, scores.d().unsafe_offset(r * experts), bias.d(), 1, experts, k)
        report.same(
            "weights of row " + String(r) + " alone:", room.fetch(one.weights), got_weights.unsafe_offset(r * k), k
        )
        var own = List[Int]()
        for j in range(k):
            own.append(ids[r * k + j])
        report.same_ints("ids of row " + String(r) + " alone", room.fetch(one.ids), own)
    report.end()


def main() raises:
    var room = Room()
    var report = Report()
    for t in [1, 6, 32, 33, 192]:
        check(room, report, t, 384, 6, False)
        check(room, report, t, 384, 6, True)
        check(room, report, t, 8, 2, True)
        check(room, report, t, 128, 3, False)
        check(room, report, t, 1000, 8, False)
    check(room, report, 2, 32, 32, False)
    if not report.small:
        check(room, report, 500, 384, 6, True)
        check(room, report, 700, 384, 6, False)
        check(room, report, 700, 16, 6, True)
    report.finish()
