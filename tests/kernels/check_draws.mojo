"""Draws, truncation and acceptance: the CPU's tokens, for vocabularies of one part and of many."""

from std.utils import StaticTuple
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from kernels.common import F32P, I32P, at
from kernels.gpu.sampling import DRAW_THREADS
from kernels.gpu.truncate import last_kept, rank_of, row_logit
from kernels.gpu.verify import verify_gpu
from kernels.sampling import draw, is_finite, truncate
from report import Report
from room import Floats, Room

comptime NOTHING = Float32.MIN


@fieldwise_init
struct Law(Copyable, ImplicitlyCopyable, Movable):
    """How a request draws."""

    var heat: Float32
    var keep: Int
    var mass: Float32

    def text(self) -> String:
        return " temperature " + String(self.heat) + " top_k " + String(self.keep) + " top_p " + String(self.mass)


def logits_of(mut room: Room, rows: Int, v: Int, ties: Bool) raises -> Floats:
    """Noise; ties: in steps of a quarter, so that many tokens are equal."""
    var logits = room.floats(rows * v, 81, 4)
    if ties:
        for i in range(logits.n):
            logits.h()[unsafe_offset=i] = Float32(Int(logits.h()[unsafe_offset=i] * 4)) / 4
        room.send(logits)
    return logits


def drawn(mut room: Room, row: F32P, v: Int, law: Law, seed: Int, position: Int) -> Int:
    """The CPU's token."""
    var spare = room.host[DType.float32](v)
    for i in range(v):
        spare[unsafe_offset=i] = row[unsafe_offset=i]
    if law.keep > 0 or law.mass < 1:
        truncate(spare, v, law.heat, law.keep, law.mass)
    return draw(spare, v, law.heat, UInt64(seed), position)


def damage(logits: Floats, r: Int, v: Int, kind: Int):
    """Something that a row must not have (1 … 3), or may (4: a forbidden token)."""
    var row = logits.h().unsafe_offset(r * v)
    if kind == 1:
        row[unsafe_offset=v // 2] = Float32(0) / Float32(0)
    elif kind == 2:
        row[unsafe_offset=v - 1] = Float32.MAX * 2
    elif kind == 3:
        for i in range(v):
            row[unsafe_offset=i] = NOTHING
    elif kind == 4:
        row[unsafe_offset=0] = NOTHING


def check(
    mut room: Room, mut report: Report, b: Int, k: Int, v: Int, law: Law, ties: Bool = False, harm: Int = 0
) raises:
    """Requests of k drafts each, of which the first s % (k + 1) are what will be drawn; other drafts are wrong."""
    room.clear()
    var name = "verify B " + String(b) + " K " + String(k) + " V " + String(v) + law.text()
    report.begin(name + (" ties" if ties else "") + (" harm " + String(harm) if harm > 0 else ""))
    var logits = logits_of(room, b * (k + 1), v, ties)
    if harm > 0:
        damage(logits, 0, v, harm)
        damage(logits, b * (k + 1) - 1, v, harm)
        room.send(logits)
    var drafts = room.make[DType.int64](b * k)
    var accepted = room.make[DType.int64](b)
    var next = room.make[DType.int64](b)
    var finite = room.make[DType.int32](b)
    var seeds = room.make[DType.uint64](b)
    var heat = room.make[DType.float32](b)
    var keep = room.make[DType.int64](b)
    var mass = room.make[DType.float32](b)
    var offsets = room.make[DType.uint32](b + 1)
    var lengths = room.make[DType.uint32](b)
    for s in range(b):
        seeds.h()[unsafe_offset=s] = UInt64(s * 7919 + 5)
        heat.h()[unsafe_offset=s] = law.heat
        keep.h()[unsafe_offset=s] = Int64(law.keep)
        mass.h()[unsafe_offset=s] = law.mass
        offsets.h()[unsafe_offset=s + 1] = UInt32((s + 1) * 3)
        lengths.h()[unsafe_offset=s] = UInt32(100 * s)
        var fine = True
        var n = 0
        var token = 0
        var open = True
        for j in range(k + 1):
            var row = logits.h().unsafe_offset((s * (k + 1) + j) * v)
            var here = drawn(room, row, v, law, s * 7919 + 5, 100 * s + 3 + j)
            if open:
                fine = fine and is_finite(row, v)
                token = here
            if j < k:
                var right = j < s % (k + 1)
                drafts.h()[unsafe_offset=s * k + j] = Int64(here if right else (here + 1) % v)
                open = open and right
                n += 1 if open else 0
        accepted.h()[unsafe_offset=s] = Int64(n)
        next.h()[unsafe_offset=s] = Int64(token)
        finite.h()[unsafe_offset=s] = 1 if fine else 0
    room.send(drafts)
    room.send(seeds)
    room.send(heat)
    room.send(keep)
    room.send(mass)
    room.send(offsets)
    room.send(lengths)
    verify_gpu(
        room.ctx, accepted.d(), next.d(), finite.d(), logits.d(), drafts.d(), offsets.d(), lengths.d(), seeds.d(),
        heat.d(), keep.d(), mass.d(), b, k, v,
    )
    var got_accepted = room.fetch(accepted)
    var got_next = room.fetch(next)
    var got_finite = room.fetch(finite)
    for s in range(b):
        var request = "request " + String(s) + ": "
        var bad = finite.h()[unsafe_offset=s] == 0
        report.expect(request + "finite", got_finite[unsafe_offset=s] == finite.h()[unsafe_offset=s])
        if not bad:
            report.expect(request + "accepted", got_accepted[unsafe_offset=s] == accepted.h()[unsafe_offset=s])
            report.expect(request + "token", got_next[unsafe_offset=s] == next.h()[unsafe_offset=s])
    report.end()


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(DRAW_THREADS)))
def kept_kernel(kept: I32P, logits: F32P, vocabulary: Int32, heat: Float32, keep_: Int32, mass: Float32):
    """Marks the tokens that truncation leaves; a row a block."""
    var n = Int(vocabulary)
    var keep = Int(keep_)
    var z = logits.unsafe_offset(Int(block_idx.x) * n)
    var top = Float32(row_logit(z, n).value)
    var limit = UInt64.MAX
    if keep > 0 and keep < n:
        limit = last_kept[False](z, n, top, 1 / heat, limit, Float64(keep))
    if mass < 1:
        limit = last_kept[True](z, n, top, 1 / heat, limit, Float64(mass))
    for i in range(Int(thread_idx.x), n, DRAW_THREADS):
        kept[unsafe_offset=Int(block_idx.x) * n + i] = 1 if rank_of(at(z, i), i) <= limit else 0


def check_truncation(mut room: Room, mut report: Report, rows: Int, v: Int, law: Law, ties: Bool) raises:
    """The kept tokens; a mass summed up in another way may end one token sooner or later."""
    room.clear()
    report.begin("truncate V " + String(v) + law.text() + (" ties" if ties else ""))
    var logits = logits_of(room, rows, v, ties)
    var kept = room.make[DType.int32](rows * v)
    room.ctx.enqueue_function[kept_kernel](
        kept.d(), logits.d(), Int32(v), law.heat, Int32(law.keep), law.mass, grid_dim=rows, block_dim=DRAW_THREADS
    )
    var got = room.fetch(kept)
    var most = 0
    for r in range(rows):
        var row = logits.h().unsafe_offset(r * v)
        truncate(row, v, law.heat, law.keep, law.mass)
        var off = 0
        for i in range(v):
            off += 1 if (got[unsafe_offset=r * v + i] != 0) != (row[unsafe_offset=i] > NOTHING) else 0
        most = max(most, off)
    report.expect("kept tokens (" + String(most) + " differ in a row)", most <= (1 if law.mass < 1 else 0))
    report.end()


def laws() -> List[Law]:
    return [
        Law(0, 0, 1), Law(0, 5, 0.9), Law(1, 0, 1), Law(0.7, 40, 1), Law(0.7, 0, 0.9), Law(1.3, 50, 0.6),
        Law(1, 1, 1), Law(2, 0, 0.05), Law(0.3, 3, 0.999),
    ]


def main() raises:
    var room = Room()
    var report = Report()
    for law in laws():
        for ties in [False, True]:
            # A part of a vocabulary has 4096 tokens; rows of odd ones are not aligned.
            for v in [5, 515, 4096, 4097, 20000]:
                check(room, report, 3, 2, v, law, ties)
                if law.heat > 0:
                    check_truncation(room, report, 3, v, law, ties)
            if not report.small:
                check(room, report, 48, 5, 4099, law, ties)
                check(room, report, 2, 1, 129280, law, ties)
                if law.heat > 0:
                    check_truncation(room, report, 2, 129280, law, ties)
    for harm in range(1, 5):
        for v in [515, 5000]:
            check(room, report, 2, 2, v, Law(1, 0, 1), False, harm)
            check(room, report, 2, 0, v, Law(0, 0, 1), False, harm)
    report.finish()
