"""Selecting the best entries by key: the CPU's choice, the earlier entry among equals."""

from std.math import ceildiv
from kernels.common import I32P, Rows, U32P, bf16
from kernels.gpu.select import GROUP, SELECT_THREADS, select_block, shared_ints
from kernels.indexer import order_key, select_top
from report import Report
from room import Room, word


def select_kernel[G: Int](ids: I32P, want: Int32, keys: U32P, tops: U32P, n: Int32):
    """16-bit keys in groups of G; one block."""
    var counts = shared_ints[256]()
    var sums = shared_ints[32]()
    select_block[DType.uint16, G](
        ids, Int(want), keys.unsafe_bitcast[UInt16](), tops.unsafe_bitcast[UInt16](), Int(n), ids, 0, counts, sums
    )


def check(mut room: Room, mut report: Report, n: Int, want: Int, kinds: Int) raises:
    """Scores of so many kinds, with few kinds many ties. Keys are looked through in groups, then one by one."""
    room.clear()
    report.begin("select " + String(want) + " of " + String(n) + " with " + String(kinds) + " kinds")
    var groups = ceildiv(n, GROUP)
    var keys = room.make[DType.uint16](groups * GROUP)
    var tops = room.make[DType.uint16](groups)
    var scores = room.host[DType.float32](n)
    for i in range(n):
        var kind = Int(word(91 + n, i) % UInt64(kinds))
        scores[unsafe_offset=i] = bf16(Float32(kind - kinds // 3) / 37.0, True)
        var key = UInt16(order_key(scores[unsafe_offset=i]) >> 16)
        keys.h()[unsafe_offset=i] = key
        tops.h()[unsafe_offset=i // GROUP] = max(tops.h()[unsafe_offset=i // GROUP], key)
    room.send(keys)
    room.send(tops)
    var grouped = room.make[DType.int32](want)
    var single = room.make[DType.int32](want)
    var all = keys.d().unsafe_bitcast[UInt32]()
    room.ctx.enqueue_function[select_kernel[GROUP]](
        grouped.d(), Int32(want), all, tops.d().unsafe_bitcast[UInt32](), Int32(n), grid_dim=1,
        block_dim=SELECT_THREADS,
    )
    room.ctx.enqueue_function[select_kernel[1]](
        single.d(), Int32(want), all, all, Int32(n), grid_dim=1, block_dim=SELECT_THREADS
    )
    var rows = Rows(n)
    var best = room.host[DType.int32](want)
    select_top(best, want, scores, rows.ptr(), n)
    _ = rows^
    var expected = List[Int]()
    for i in range(want):
        expected.append(Int(best[unsafe_offset=i]))
    report.same_ints("in groups", room.fetch(grouped), expected)
    report.same_ints("one by one", room.fetch(single), expected)
    report.end()


def main() raises:
    var room = Room()
    var report = Report()
    for n in [3, 40, 513, 1000, 4096, 20001, 65536]:
        if n <= 4096 or not report.small:
            check(room, report, n, 512, 100000)
            check(room, report, n, 512, 7)
            check(room, report, n, 16, 1)
            check(room, report, n, 37, 400)
    report.finish()
