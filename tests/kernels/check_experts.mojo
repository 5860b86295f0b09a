"""The experts' two matmuls: the CPU's values, and the same bits for a row in any batch."""

from kernels.common import F32P
from expert_layer import Experts, experts_of, host_hidden, host_results, run_experts
from grouping import Groups
from report import Report
from room import Floats, Room

comptime LOAD = 5  # experts 0 … 4 have 0, 1, 8, 9 rows and the rest


def choices(t: Int, k: Int, experts: Int) -> List[Int]:
    """Of each row k different experts: one of the first LOAD by quota, and k - 1 that every row takes.

    Rows name them in different orders, as a router's affinities would.
    """
    var ids = List[Int]()
    for r in range(t):
        var quota = 4
        if r < 1:
            quota = 1
        elif r < 9:
            quota = 2
        elif r < 18:
            quota = 3
        var first = r % k
        for j in range(k):
            ids.append(quota if j == first else LOAD + (j + k - first) % k - 1)
    return ids^


def spread(t: Int, k: Int, experts: Int) -> List[Int]:
    """Of each row k neighbouring experts, different ones from row to row."""
    var ids = List[Int]()
    for r in range(t):
        for j in range(k):
            ids.append((r * 5 + j) % experts)
    return ids^


def check_alone(
    mut room: Room, mut report: Report, layer: Experts, x: Floats, weights: Floats, ids: List[Int], t: Int, k: Int,
    exact: Bool, got: F32P,
) raises:
    """Every row alone gives the bits that it has among others."""
    var d = layer.d
    var mode = room.mode(exact)
    var groups = Groups(ids, layer.count, k)
    var among = room.host[DType.float32]((t * k + t) * d)
    var alone = room.host[DType.float32]((t * k + t) * d)
    var n = 0
    for r in range(t):
        var own = List[Int]()
        for j in range(k):
            own.append(ids[r * k + j])
        var one = run_experts(
            room, layer, x.d().unsafe_offset(r * d), weights.d().unsafe_offset(r * k), own, 1, k, mode
        )
        var result = room.fetch(one.results)
        for j in range(k + 1):
            var slot = groups.slot_of[r * k + j] if j < k else t * k + r
            for i in range(d):
                alone[unsafe_offset=n] = result[unsafe_offset=j * d + i]
                among[unsafe_offset=n] = got[unsafe_offset=slot * d + i]
                n += 1
    report.same("every row alone:", alone, among, n)


def compare_hidden(mut report: Report, what: String, got: F32P, want: F32P, n: Int, exact: Bool):
    if exact:
        # A sum that rounds to the next bfloat16 value may become the next FP8 value, or double its group's scale.
        report.close(what, got, want, n, 1e-6, n // 500 + 34)
    report.within(what, got, want, n, Float32(0.08) if exact else Float32(1e-4))


def compare_results(mut report: Report, what: String, got: F32P, want: F32P, n: Int, exact: Bool):
    if exact:
        report.close(what, got, want, n, 0.0079, n // 100 + 2)
    report.within(what, got, want, n, Float32(0.0079) if exact else Float32(5e-5))


def check(
    mut room: Room, mut report: Report, t: Int, d: Int, inner: Int, experts: Int, k: Int, quotas: Bool, exact: Bool
) raises:
    room.clear()
    var name = "experts T " + String(t) + " D " + String(d) + " I " + String(inner) + " k " + String(k) + " of "
    name += String(experts) + (" uneven" if quotas else " spread") + (" exact" if exact else " plain")
    report.begin(name)
    var ids = choices(t, k, experts) if quotas else spread(t, k, experts)
    var mode = room.mode(exact)
    var layer = experts_of(room, experts, d, inner)
    var x = room.floats(t * d, 1, 1, exact)
    var weights = room.floats(t * k, 2, 0.2)
    for i in range(t * k):
        weights.h()[unsafe_offset=i] = 0.05 + abs(weights.h()[unsafe_offset=i])
    room.send(weights)
    var got = run_experts(room, layer, x.d(), weights.d(), ids, t, k, mode)
    var hidden = room.unstaged(got.hidden, exact)
    var want = host_hidden(room, layer, x.h(), weights.h(), ids, t, k, exact)
    compare_hidden(report, "hidden", hidden, want, t * k * inner, exact)
    var shared = t * k * inner
    compare_hidden(report, "shared", hidden.unsafe_offset(shared), want.unsafe_offset(shared), t * inner, exact)
    # The second matmul is held to the hidden rows that it was given.
    var results = room.fetch(got.results)
    want = host_results(room, layer, hidden, ids, t, k, exact)
    compare_results(report, "results", results, want, t * k * d, exact)
    shared = t * k * d
    compare_results(report, "shared", results.unsafe_offset(shared), want.unsafe_offset(shared), t * d, exact)
    check_alone(room, report, layer, x, weights, ids, t, k, exact, results)
    report.end()


def main() raises:
    var room = Room()
    var report = Report()
    for exact in [True, False]:
        for t in [1, 6, 9, 70]:
            # Blocks have 32 hidden and 64 output columns; a chunk is 128 columns of FP4, 64 of FP8.
            check(room, report, t, 96, 96, 8, 3, True, exact)
            check(room, report, t, 256, 128, 8, 2, True, exact)
            check(room, report, t, 160, 32, 12, 6, False, exact)
        check(room, report, 9, 416, 224, 20, 6, False, exact)
        if not report.small:
            check(room, report, 6, 5120, 2304, 6, 2, True, exact)
            check(room, report, 20, 2048, 1056, 8, 3, True, exact)
    report.finish()
