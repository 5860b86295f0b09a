"""Attention: a float64 reference's values, and the same bits for a row in any batch."""

from attention_case import Shape, attention_of, reference, run_attention
from report import Report
from room import Room


def check(mut room: Room, mut report: Report, s: Shape, exact: Bool) raises:
    room.clear()
    var name = "attention T " + String(s.t) + " heads " + String(s.heads) + " x " + String(s.k) + " window "
    name += String(s.window) + " chosen " + String(s.chosen) + " ratio " + String(s.ratio) + " block " + String(s.block)
    report.begin(name + (" near" if s.near else " far") + (" exact" if exact else " plain"))
    var a = attention_of(room, s, exact)
    var size = s.heads * s.k
    var o = room.make[DType.float32](s.t * size)
    run_attention(room, a, o.d(), 0, s.t)
    var got = room.fetch(o)
    # Rounded, values may be neighbours, and those of a pair that is turned back are rounded twice.
    report.within("o", got, reference(room, a), s.t * size, Float32(0.012) if exact else Float32(2e-5))
    for r in range(s.t):
        if a.pos.h()[unsafe_offset=r] < 0:
            for i in range(size):
                report.expect("zero without a position", got[unsafe_offset=r * size + i] == 0)
    var parts = room.make[DType.float32](s.t * size)
    for t in [1, 5, 10, 30]:
        # Batches are cut where no draft block is.
        if t > s.t or (s.block > 1 and t % s.block != 0):
            continue
        var rows = s.t // t * t
        for first in range(0, rows, t):
            run_attention(room, a, parts.d().unsafe_offset(first * size), first, t)
        report.same("in batches of " + String(t) + ":", room.fetch(parts), got, rows * size)
    report.end()


def main() raises:
    var room = Room()
    var report = Report()
    for exact in [True, False]:
        check(room, report, Shape(7, 4, 32, 4, 8, 16, 2, 0, True), exact)
        check(room, report, Shape(10, 4, 64, 8, 8, 16, 2, 5, True), exact)
        check(room, report, Shape(9, 20, 64, 16, 24, 20, 1, 0, True), exact)
        check(room, report, Shape(20, 6, 96, 16, 17, 7, 2, 0, False), exact)
        if not report.small:
            check(room, report, Shape(60, 6, 96, 16, 128, 0, 0, 5, False), exact)
            check(room, report, Shape(6, 64, 512, 32, 128, 512, 2, 0, False), exact)
            check(room, report, Shape(60, 64, 512, 32, 128, 512, 2, 5, False), exact)
            check(room, report, Shape(1, 64, 512, 32, 128, 512, 2, 0, True), exact)
            check(room, report, Shape(12, 64, 512, 32, 128, 512, 1, 0, True), exact)
    report.finish()
