"""The indexer: what it chooses is what scores best on the CPU, and a row chooses the same in any batch."""

from kernels.common import I32P
from index_layer import Scored, Sizes, host_scores, indexer_of, run_index
from report import Report
from room import Room

# Sums in another order may swap neighbours. An FP4 value of a query that rounds the other way moves a score by more.
comptime SHARE_EXACT = Float32(0.04)  # of the largest score
comptime SHARE_PLAIN = Float32(3e-5)


def judge(mut report: Report, what: String, got: I32P, want: Int, from_: Scored, slack: Float32) -> Int:
    """Expects the `want` best, ascending, then -1. Gives back how many are not among the best by the CPU's scores."""
    var n = len(from_.ids)
    var sorted_scores = from_.scores.copy()
    sort(sorted_scores)
    var cut = sorted_scores[n - want] if n > want else Float32.MIN
    var top = Float32(0)
    for score in from_.scores:
        # Infinite: the newest block, which is always kept.
        top = max(top, abs(score)) if abs(score) < Float32.MAX else top
    var filled = min(n, want)
    var place = 0
    var odd = 0
    for j in range(want):
        var id = Int(got[unsafe_offset=j])
        if j >= filled:
            report.expect(what + ": -1 at " + String(j), id == -1)
            continue
        while place < n and from_.ids[place] < id:
            place += 1
        if place >= n or from_.ids[place] != id:
            report.expect(what + ": " + String(id) + " at " + String(j) + " is eligible and in order", False)
            return odd
        var score = from_.scores[place]
        if score < cut:
            odd += 1
            report.expect(what + ": " + String(id) + " is among the best", score >= cut - slack * top)
        place += 1
    if want == 0 or n == 0:
        return odd
    for j in range(n):
        if from_.scores[j] == Float32.MAX:
            var found = False
            for i in range(filled):
                found = found or Int(got[unsafe_offset=i]) == from_.ids[j]
            report.expect(what + ": the newest block", found)
    return odd


def blocks_of(rows: Scored, size: Int) -> Scored:
    """Blocks with their best row's score; the last is the newest."""
    var ids = List[Int]()
    var scores = List[Float32]()
    for i in range(len(rows.ids)):
        if i % size == 0:
            ids.append(i // size)
            scores.append(rows.scores[i])
        scores[len(scores) - 1] = max(scores[len(scores) - 1], rows.scores[i])
    if len(scores) > 0:
        scores[len(scores) - 1] = Float32.MAX
    return Scored(ids^, scores^)


def check(mut room: Room, mut report: Report, s: Sizes, exact: Bool) raises:
    room.clear()
    var name = "index T " + String(s.t) + " heads " + String(s.heads) + " x " + String(s.dim)
    name += " top " + String(s.top_k) + " role " + String(s.role) + " blocks " + String(s.nb) + " of " + String(s.size)
    report.begin(name + " context " + String(s.context) + (" exact" if exact else " plain"))
    var layer = indexer_of(room, s, exact)
    var chosen = room.make[DType.int32](s.t * s.top_k)
    var blocks = room.make[DType.int32](s.t * s.nb)
    run_index(room, layer, chosen.d(), blocks.d(), 0, s.t)
    var got = room.fetch(chosen)
    var got_blocks = room.fetch(blocks)
    var slack = SHARE_EXACT if exact else SHARE_PLAIN
    var odd = 0
    for r in range(s.t):
        var row = "row " + String(r)
        var scored = host_scores(room, layer, r)
        odd += judge(report, row, got.unsafe_offset(r * s.top_k), s.top_k, scored, slack)
        var own = got_blocks.unsafe_offset(r * s.nb)
        if s.role == 1:
            odd += judge(report, row + " blocks", own, s.nb, blocks_of(scored, s.size), slack)
        else:
            for i in range(s.nb):
                report.expect(
                    row + " passes its candidates on",
                    own[unsafe_offset=i] == layer.candidates.h()[unsafe_offset=r * s.nb + i],
                )
    report.detail += " | " + String(odd) + " of " + String(s.t * s.top_k) + " near ties"
    report.expect("few near ties", odd <= s.t * s.top_k // 50 + 2)
    var alone = room.make[DType.int32](s.t * s.top_k)
    var blocks_alone = room.make[DType.int32](s.t * s.nb)
    for n in [1, 5, 6]:
        var rows = s.t // n * n
        for first in range(0, rows, n):
            run_index(
                room, layer, alone.d().unsafe_offset(first * s.top_k), blocks_alone.d().unsafe_offset(first * s.nb),
                first, n,
            )
        var off = 0
        var some = room.fetch(alone)
        for i in range(rows * s.top_k):
            off += 1 if some[unsafe_offset=i] != got[unsafe_offset=i] else 0
        some = room.fetch(blocks_alone)
        for i in range(rows * s.nb):
            off += 1 if some[unsafe_offset=i] != got_blocks[unsafe_offset=i] else 0
        report.expect("the same in batches of " + String(n) + " (" + String(off) + " differ)", off == 0)
    report.end()


def main() raises:
    var room = Room()
    var report = Report()
    for exact in [True, False]:
        check(room, report, Sizes(7, 64, 64, 4, 32, 8, 16, 8, 8, 0, 2, 120), exact)
        check(room, report, Sizes(7, 64, 64, 4, 32, 8, 16, 8, 8, 1, 2, 300), exact)
        check(room, report, Sizes(13, 256, 128, 20, 64, 16, 16, 6, 8, 2, 2, 300), exact)
        check(room, report, Sizes(13, 72, 96, 5, 96, 16, 24, 6, 12, 1, 1, 200), exact)
        if not report.small:
            check(room, report, Sizes(13, 512, 320, 32, 128, 32, 64, 20, 64, 1, 2, 5000), exact)
            check(room, report, Sizes(13, 512, 320, 32, 128, 32, 64, 20, 64, 2, 1, 5000), exact)
    report.finish()
