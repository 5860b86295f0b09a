"""Draws, edits, grammars, truncation and acceptance: the CPU's tokens, for vocabularies of one part and of many."""

from std.utils import StaticTuple
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from kernels.common import F32P, I32P, at, held
from kernels.edits import Edits
from kernels.gpu.sampling import DRAW_THREADS
from kernels.gpu.truncate import last_rank, rank_of, row_logit
from kernels.gpu.verify import verify_gpu
from kernels.law import Verified, law as expected_law
from kernels.sampling import draw, truncate
from kernels.verify import verify_cpu
from report import Report
from room import Floats, Room

comptime NOTHING = Float32.MIN


@fieldwise_init
struct Law(Copyable, ImplicitlyCopyable, Movable):
    """How a request draws."""

    var heat: Float32
    var keep: Int
    var mass: Float32
    var least: Float32

    def text(self) -> String:
        return (
            " temperature " + String(self.heat) + " top_k " + String(self.keep) + " top_p " + String(self.mass)
            + " min_p " + String(self.least)
        )


@fieldwise_init
struct Shape(Copyable, ImplicitlyCopyable, Movable):
    """What is verified: b requests of k drafts over v tokens, and what else there is."""

    var b: Int
    var k: Int
    var v: Int
    var ties: Bool
    var harm: Int
    var edits: Bool
    var grammar: Bool
    var rule: Int

    def text(self) -> String:
        var name = "verify B " + String(self.b) + " K " + String(self.k) + " V " + String(self.v)
        name += (" ties" if self.ties else "") + (" edits" if self.edits else "") + (" grammar" if self.grammar else "")
        return name + (" harm " + String(self.harm) if self.harm > 0 else "") + " rule " + String(self.rule)


def logits_of(mut room: Room, rows: Int, v: Int, ties: Bool) raises -> Floats:
    """Noise; ties: in steps of a quarter, so that many tokens are equal."""
    var logits = room.floats(rows * v, 81, 4)
    if ties:
        for i in range(logits.n):
            logits.h()[unsafe_offset=i] = Float32(Int(logits.h()[unsafe_offset=i] * 4)) / 4
        room.send(logits)
    return logits


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


def check(mut room: Room, mut report: Report, shape: Shape, law: Law) raises:
    """The CPU's results. Request s is given its own draws as drafts, right up to place s % (k + 1), then wrong ones."""
    room.clear()
    report.begin(shape.text() + law.text())
    var b = shape.b
    var k = shape.k
    var v = shape.v
    var logits = logits_of(room, b * (k + 1), v, shape.ties)
    if shape.harm > 0:
        damage(logits, 0, v, shape.harm)
        damage(logits, b * (k + 1) - 1, v, shape.harm)
        room.send(logits)
    var entries = 9 if shape.edits else 0
    var mask_rows = k + 1 if shape.grammar else 0
    var words = (v + 31) // 32
    var prob_rows = k if shape.rule > 0 else 0
    var drafts = room.make[DType.int64](b * k)
    var accepted = room.make[DType.int64](b)
    var next = room.make[DType.int64](b)
    var finite = room.make[DType.int32](b)
    var seeds = room.make[DType.uint64](b)
    var heat = room.make[DType.float32](b)
    var keep = room.make[DType.int64](b)
    var mass = room.make[DType.float32](b)
    var least = room.make[DType.float32](b)
    var rules = room.make[DType.int32](b)
    var offsets = room.make[DType.uint32](b + 1)
    var lengths = room.make[DType.uint32](b)
    var penalties = room.make[DType.float32](3 * b)
    var free_from = room.make[DType.uint32](b)
    var ends = room.make[DType.uint32](b + 1)
    var tokens = room.make[DType.int32](b * entries)
    var marks = room.make[DType.int32](b * entries)
    var bias = room.make[DType.float32](b * entries)
    var mask = room.make[DType.int32](b * mask_rows * words)
    var probs = room.make[DType.float32](b * prob_rows * v)
    for s in range(b):
        seeds.h()[unsafe_offset=s] = UInt64(s * 7919 + 5)
        heat.h()[unsafe_offset=s] = law.heat
        keep.h()[unsafe_offset=s] = Int64(law.keep)
        mass.h()[unsafe_offset=s] = law.mass
        least.h()[unsafe_offset=s] = law.least
        rules.h()[unsafe_offset=s] = Int32(shape.rule)
        offsets.h()[unsafe_offset=s + 1] = UInt32((s + 1) * 3)
        lengths.h()[unsafe_offset=s] = UInt32(100 * s)
        ends.h()[unsafe_offset=s + 1] = UInt32((s + 1) * entries)
        free_from.h()[unsafe_offset=s] = UInt32(100 * s + 3 + k // 2)
        penalties.h()[unsafe_offset=3 * s] = 1.25 if shape.edits else 1
        penalties.h()[unsafe_offset=3 * s + 1] = 0.5 if shape.edits else 0
        penalties.h()[unsafe_offset=3 * s + 2] = 0.25 if shape.edits else 0
        for e in range(entries):
            tokens.h()[unsafe_offset=s * entries + e] = Int32((e * 7 + s) % v)
            marks.h()[unsafe_offset=s * entries + e] = Int32(e % 3 + (4 * e if e % 2 == 0 else 0))
            bias.h()[unsafe_offset=s * entries + e] = Float32(e) * 0.5 - 1
    for i in range(b * mask_rows * words):
        mask.h()[unsafe_offset=i] = Int32(0x5B6D3F77)
    for r in range(b * prob_rows):
        for i in range(v):
            probs.h()[unsafe_offset=r * v + i] = Float32(2 * (i % 7) + 1) / Float32(7 * v)
    var given = Verified(
        held(logits.h()), held(drafts.h()), held(offsets.h()), held(lengths.h()), held(probs.h()), held(seeds.h()),
        held(heat.h()), held(keep.h()), held(mass.h()), held(least.h()), held(rules.h()),
        Edits(
            held(ends.h()), held(tokens.h()), held(marks.h()), held(bias.h()), held(penalties.h()),
            held(free_from.h()), b * entries,
        ),
        held(mask.h()), b, k, v, prob_rows, mask_rows, words,
    )
    var spare = room.host[DType.float32](v)
    for s in range(b):
        for j in range(k):
            var row = expected_law(given, s, j, spare)
            var token = draw(row[0], v, law.heat, UInt64(s * 7919 + 5), 100 * s + 3 + j)
            drafts.h()[unsafe_offset=s * k + j] = Int64(token if j < s % (k + 1) else (token + 1) % v)
    verify_cpu(given, accepted.h(), next.h(), finite.h())
    room.send(drafts)
    room.send(seeds)
    room.send(heat)
    room.send(keep)
    room.send(mass)
    room.send(least)
    room.send(rules)
    room.send(offsets)
    room.send(lengths)
    room.send(penalties)
    room.send(free_from)
    room.send(ends)
    room.send(tokens)
    room.send(marks)
    room.send(bias)
    room.send(mask)
    room.send(probs)
    var there = Verified(
        held(logits.d()), held(drafts.d()), held(offsets.d()), held(lengths.d()), held(probs.d()), held(seeds.d()),
        held(heat.d()), held(keep.d()), held(mass.d()), held(least.d()), held(rules.d()),
        Edits(
            held(ends.d()), held(tokens.d()), held(marks.d()), held(bias.d()), held(penalties.d()),
            held(free_from.d()), b * entries,
        ),
        held(mask.d()), b, k, v, prob_rows, mask_rows, words,
    )
    verify_gpu(room.ctx, there, accepted.d(), next.d(), finite.d())
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
def kept_kernel(kept: I32P, logits: F32P, vocabulary: Int32, heat: Float32, keep_: Int32, mass: Float32, least: Float32):
    """Marks the tokens that truncation leaves; a row a block."""
    var n = Int(vocabulary)
    var keep = Int(keep_)
    var z = logits.unsafe_offset(Int(block_idx.x) * n)
    var limit = last_rank(z, n, row_logit(z, n).value, heat, keep, mass, least)
    for i in range(Int(thread_idx.x), n, DRAW_THREADS):
        kept[unsafe_offset=Int(block_idx.x) * n + i] = 1 if rank_of(at(z, i), i) <= limit else 0


def check_truncation(mut room: Room, mut report: Report, rows: Int, v: Int, law: Law, ties: Bool) raises:
    """The kept tokens; a mass summed up in another way may end one token sooner or later."""
    room.clear()
    report.begin("truncate V " + String(v) + law.text() + (" ties" if ties else ""))
    var logits = logits_of(room, rows, v, ties)
    var kept = room.make[DType.int32](rows * v)
    room.ctx.enqueue_function[kept_kernel](
        kept.d(), logits.d(), Int32(v), law.heat, Int32(law.keep), law.mass, law.least, grid_dim=rows,
        block_dim=DRAW_THREADS,
    )
    var got = room.fetch(kept)
    var most = 0
    for r in range(rows):
        var row = logits.h().unsafe_offset(r * v)
        truncate(row, v, law.heat, law.keep, law.mass, law.least)
        var off = 0
        for i in range(v):
            off += 1 if (got[unsafe_offset=r * v + i] != 0) != (row[unsafe_offset=i] > NOTHING) else 0
        most = max(most, off)
    report.expect("kept tokens (" + String(most) + " differ in a row)", most <= (1 if law.mass < 1 else 0))
    report.end()


def laws() -> List[Law]:
    return [
        Law(0, 0, 1, 0), Law(0, 5, 0.9, 0), Law(1, 0, 1, 0), Law(0.7, 40, 1, 0), Law(0.7, 0, 0.9, 0),
        Law(1.3, 50, 0.6, 0), Law(1, 1, 1, 0), Law(2, 0, 0.05, 0), Law(0.3, 3, 0.999, 0), Law(1, 0, 1, 0.1),
        Law(0.7, 30, 0.8, 0.02), Law(1.5, 0, 0.9, 1),
    ]


def main() raises:
    var room = Room()
    var report = Report()
    for law in laws():
        for ties in [False, True]:
            # A part of a vocabulary has 4096 tokens; rows of odd ones are not aligned.
            for v in [5, 515, 4096, 4097, 20000]:
                check(room, report, Shape(3, 2, v, ties, 0, False, False, 0), law)
                if law.heat > 0:
                    check_truncation(room, report, 3, v, law, ties)
            if not report.small:
                check(room, report, Shape(48, 5, 4099, ties, 0, False, False, 0), law)
                check(room, report, Shape(2, 1, 129280, ties, 0, False, False, 0), law)
                if law.heat > 0:
                    check_truncation(room, report, 2, 129280, law, ties)
        for v in [70, 515, 4097]:
            if report.small and (v != 515 or law.heat != 0.7):
                continue
            for edits in [False, True]:
                for grammar in [False, True]:
                    for rule in range(3):
                        if edits or grammar or rule > 0:
                            check(room, report, Shape(7, 5, v, False, 0, edits, grammar, rule), law)
    for harm in range(1, 5):
        for v in [515, 5000]:
            for rule in range(3):
                check(room, report, Shape(2, 2, v, False, harm, False, False, rule), Law(1, 0, 1, 0))
                check(room, report, Shape(2, 0, v, False, harm, False, False, rule), Law(0, 0, 1, 0))
    report.finish()
