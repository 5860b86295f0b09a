"""Around a sublayer: its gates and input, the experts' sum, and spreading an output over the residual copies."""

from std.math import ceildiv, sqrt
from kernels.common import bf16, rms_norm, sum_squares
from kernels.gpu.expand import SPREAD_COLUMNS, SPREAD_THREADS
from kernels.gpu.expand import expand as expand_gpu
from kernels.gpu.hyper import sublayer_in
from kernels.gpu.moe import combine_kernel
from kernels.hyper import collapse, expand, gates
from report import Report
from room import Room

comptime ROUNDS = 20  # of the mixes' normalisation
comptime EPS = Float32(1e-6)


def settings(exact: Bool) -> String:
    return " exact" if exact else " plain"


def check_input(mut room: Room, mut report: Report, t: Int, c: Int, d: Int, exact: Bool) raises:
    """Mixes and the normed input of t rows of c copies; a row alone gives the same bits."""
    room.clear()
    report.begin("sublayer_in T " + String(t) + " copies " + String(c) + " D " + String(d) + settings(exact))
    var m = c * (c + 2)
    var cd = c * d
    var h = room.floats(t * cd, 11, 2)
    var before = room.floats(t * m, 12, 0.5)
    var weight = room.floats(m * cd, 13, 0.02)
    var scale = room.floats(3, 14)
    var base = room.floats(m, 15)
    var norm = room.floats(d, 16)
    var model = room.constants([EPS, EPS, 0, 0]).d()
    var layer = room.ints([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ROUNDS]).d()
    var mode = room.mode(exact)
    var mix = room.make[DType.float32](t * m)
    var x = room.make[DType.float32](t * d)
    sublayer_in(
        room.ctx, mix.d(), x.d(), h.d(), before.d(), weight.d(), scale.d(), base.d(), norm.d(), layer, model, mode, t,
        c, d, m,
    )
    for r in range(t):
        var row = mix.h().unsafe_offset(r * m)
        var u = h.h().unsafe_offset(r * cd)
        var inverse = Float32(1 / sqrt(Float64(sum_squares(u, cd)) / Float64(cd) + Float64(EPS)))
        for o in range(m):
            var total = Float64(0)
            for i in range(cd):
                total += Float64(u[unsafe_offset=i]) * Float64(weight.h()[unsafe_offset=o * cd + i])
            row[unsafe_offset=o] = Float32(total) * inverse
        gates(row, scale.h(), base.h(), c, ROUNDS, EPS)
        var made = x.h().unsafe_offset(r * d)
        collapse(made, u, before.h().unsafe_offset(r * m), c, d, exact)
        rms_norm(made, made, norm.h(), d, EPS, exact)
    var got_mix = room.fetch(mix)
    var got_x = room.fetch(x)
    report.close("mix", got_mix, mix.h(), t * m, 2e-5)
    report.close("x", got_x, x.h(), t * d, Float32(0.009) if exact else Float32(1e-5))
    var mix_alone = room.make[DType.float32](t * m)
    var x_alone = room.make[DType.float32](t * d)
    for r in range(t):
        sublayer_in(
            room.ctx, mix_alone.d().unsafe_offset(r * m), x_alone.d().unsafe_offset(r * d),
            h.d().unsafe_offset(r * cd), before.d().unsafe_offset(r * m), weight.d(), scale.d(), base.d(), norm.d(),
            layer, model, mode, 1, c, d, m,
        )
    report.same("mixes of rows alone:", room.fetch(mix_alone), got_mix, t * m)
    report.same("inputs of rows alone:", room.fetch(x_alone), got_x, t * d)
    report.end()


def check_combine(mut room: Room, mut report: Report, t: Int, c: Int, d: Int, k: Int, exact: Bool) raises:
    """A row's k experts and the shared one summed up, then spread; `expand` spreads the same sum to the same bits."""
    room.clear()
    var name = "combine T " + String(t) + " copies " + String(c) + " D " + String(d) + " k " + String(k)
    report.begin(name + settings(exact))
    var m = c * (c + 2)
    var h = room.floats(t * c * d, 41)
    var mix = room.floats(t * m, 42)
    var results = room.floats((t * k + t) * d, 43)
    var mode = room.mode(exact)
    var slots = List[Int]()
    for i in range(t * k):
        slots.append((i * 7 + 3) % (t * k) if (t * k) % 7 != 0 else i)
    var slot_of = room.ints(slots)
    var y = room.make[DType.float32](t * d)
    var spread = room.make[DType.float32](t * c * d)
    room.ctx.enqueue_function[combine_kernel](
        spread.d(), y.d(), results.d(), slot_of.d(), h.d(), mix.d(), Int32(t), Int32(c), Int32(d), Int32(m), Int32(k),
        mode, grid_dim=(t, ceildiv(d, SPREAD_COLUMNS)), block_dim=SPREAD_THREADS,
    )
    for r in range(t):
        for i in range(d):
            var total = Float32(0)
            for j in range(k):
                total += results.h()[unsafe_offset=slots[r * k + j] * d + i]
            total += results.h()[unsafe_offset=(t * k + r) * d + i]
            y.h()[unsafe_offset=r * d + i] = bf16(total, exact)
        expand(
            spread.h().unsafe_offset(r * c * d), y.h().unsafe_offset(r * d), h.h().unsafe_offset(r * c * d),
            mix.h().unsafe_offset(r * m), c, d, exact,
        )
    var got = room.fetch(spread)
    report.same("sums:", room.fetch(y), y.h(), t * d)
    report.close("spread", got, spread.h(), t * c * d, Float32(0.009) if exact else Float32(1e-4))
    var again = room.make[DType.float32](t * c * d)
    expand_gpu(room.ctx, again.d(), y.d(), h.d(), mix.d(), t, c, d, m, mode)
    report.same("expand:", room.fetch(again), got, t * c * d)
    report.end()


def main() raises:
    var room = Room()
    var report = Report()
    for exact in [True, False]:
        for t in [1, 3, 9]:
            check_input(room, report, t, 4, 32, exact)
            check_input(room, report, t, 4, 192, exact)
            check_input(room, report, t, 2, 64, exact)
            check_input(room, report, t, 6, 96, exact)
            check_input(room, report, t, 1, 32, exact)
        for t in [1, 5, 70]:
            check_combine(room, report, t, 4, 96, 2, exact)
            check_combine(room, report, t, 3, 64, 11, exact)
        if not report.small:
            for t in [1, 6, 13, 50, 192]:
                check_input(room, report, t, 4, 5120, exact)
            check_input(room, report, 9, 4, 6144, exact)
            for t in [1, 5, 70]:
                check_combine(room, report, t, 4, 5120, 6, exact)
    report.finish()
