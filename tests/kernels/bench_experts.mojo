"""Time of the experts at the released sizes; the runner compares builds with other spans of the second matmul.

The first one's spans are part of how its warps share out gate and up. Rows choose random experts, and calls take
turns among several such choices, so weights come from memory.
"""

from kernels.gpu.experts import SECOND_SPLIT, experts_gpu
from clocks import random_bytes, random_floats, rate, rounded, timed, warm
from grouping import Groups
from room import Room, word

comptime D = 5120
comptime INNER = 2304
comptime EXPERTS = 384
comptime CHOSEN = 6
comptime TURNS = 8  # choices that calls take turns among
comptime FP4 = INNER * D // 2 + INNER * D // 32  # bytes of one weight of an expert, with its scales


def random_choice(t: Int, seed: Int) -> List[Int]:
    """CHOSEN different experts for each row."""
    var ids = List[Int]()
    var draw = 0
    for r in range(t):
        while len(ids) < (r + 1) * CHOSEN:
            var e = Int(word(seed, draw) % EXPERTS)
            draw += 1
            var taken = False
            for i in range(r * CHOSEN, len(ids)):
                taken = taken or ids[i] == e
            if not taken:
                ids.append(e)
    return ids^


def bench(mut room: Room, t: Int, bandwidth: Float64) raises:
    room.clear()
    var ctx = room.ctx
    var routed = EXPERTS * INNER * D
    var w1 = random_bytes(room, routed // 2, 0, 256)
    var w3 = random_bytes(room, routed // 2, 0, 256)
    var w2 = random_bytes(room, routed // 2, 0, 256)
    var q1 = random_bytes(room, routed // 32, 117, 5)
    var q3 = random_bytes(room, routed // 32, 117, 5)
    var q2 = random_bytes(room, routed // 32, 117, 5)
    var s1 = random_bytes(room, INNER * D, 1, 100)
    var s3 = random_bytes(room, INNER * D, 1, 100)
    var s2 = random_bytes(room, INNER * D, 1, 100)
    var sq = random_bytes(room, INNER * D // 1024, 113, 5)
    var lists = List[Int]()
    var used = 0
    for turn in range(TURNS):
        var groups = Groups(random_choice(t, turn), EXPERTS, CHOSEN)
        used += len(groups.active)
        lists.extend(groups.lists(EXPERTS))
    var choices = room.ints(lists).d()
    var stride = len(lists) // TURNS
    var x = room.device[DType.bfloat16](3 * t * D)
    room.ctx.enqueue_memset(room.buffers[x.home], UInt8(0x3C))
    var planes = x.d()
    var slots = t * CHOSEN
    var hidden = room.planes(slots + t, INNER).d()
    var results = room.device[DType.float32]((slots + t) * D).d()
    var weights = random_floats(room, slots, 5).d()
    var model = room.constants([1e-6, 1e-6, 10, 2.5]).d()
    var mode = room.mode(True)

    def run(i: Int) raises {imm}:
        var own = choices.unsafe_offset(i % TURNS * stride)
        var starts = own.unsafe_offset(EXPERTS + 1)
        experts_gpu(
            ctx, results, hidden, planes, weights, own, starts, starts.unsafe_offset(EXPERTS + 1), w1, q1, w3, q3, w2,
            q2, s1, sq, s3, sq, s2, sq, model, mode, t, D, INNER, CHOSEN, EXPERTS,
        )

    var time = timed(ctx, run)
    var moved = used * 3 * FP4 // TURNS + 3 * INNER * D + 2 * t * D + (slots + t) * (2 * INNER + 4 * D)
    print(
        "experts T=" + String(t) + " spans " + String(SECOND_SPLIT) + ": " + rate(time, moved, bandwidth) + "; "
        + rounded(Float64(used) / TURNS, 1) + " experts"
    )


def main() raises:
    var room = Room()
    var bandwidth = warm(room, 300)
    for t in [1, 6, 48, 192]:
        bench(room, t, bandwidth)
