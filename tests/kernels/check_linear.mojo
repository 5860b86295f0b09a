"""Linear layers on stored weights: the CPU's values, and the same bits for a row in any batch."""

from kernels.common import F32P, I32P, bf16
from kernels.gpu.linear import linear_pair
from kernels.gpu.staged import stage
from kernels.quant import BF16, E2M1, E4M3
from report import Report, bits_off
from room import Floats, Room
from stored import Stored, stored, times

comptime TOLERANCE = Float32(5e-5)  # of the largest result: sums of up to 5120 products in another order


def label[fmt: Int](t: Int, n: Int, k: Int, exact: Bool) -> String:
    var name = String("E4M3" if fmt == E4M3 else ("E2M1" if fmt == E2M1 else "BF16"))
    return name + " T " + String(t) + " N " + String(n) + " K " + String(k) + (" exact" if exact else " plain")


def product[
    fmt: Int
](
    mut room: Room, y: F32P, x: Floats, first: Int, t: Int, w: Stored, rounded: Bool, mode: I32P, split: Int = 0
) raises:
    """Rows first … first + t - 1 of x [.., k] times w on the device; split 0 is the kernels' own choice."""
    var planes = room.planes(t, w.k).d()
    stage(room.ctx, planes, x.d().unsafe_offset(first * w.k), w.k, t, w.k, False, mode)
    linear_pair[fmt](
        room.ctx, planes, w.codes.d(), w.scales.d(), y, w.n, w.n, w.codes.d(), w.scales.d(), y, 0, 0, t,
        w.k, w.k, t * w.k, w.n, rounded, mode, split,
    )


def one_by_one[
    fmt: Int
](mut room: Room, x: Floats, t: Int, w: Stored, mode: I32P, split: Int = 0) raises -> F32P:
    """Results [t, n] of rows that were each alone in their batch."""
    var alone = room.make[DType.float32](t * w.n)
    for r in range(t):
        product[fmt](room, alone.d().unsafe_offset(r * w.n), x, r, 1, w, False, mode, split)
    return room.fetch(alone)


def check[fmt: Int](mut room: Room, mut report: Report, t: Int, n: Int, k: Int, exact: Bool) raises:
    room.clear()
    report.begin("linear " + label[fmt](t, n, k, exact))
    var mode = room.mode(exact)
    var x = room.floats(t * k, 1, 1, exact)
    var w = stored[fmt](room, n, k, 2)
    var y = room.make[DType.float32](t * n)
    product[fmt](room, y.d(), x, 0, t, w, False, mode)
    var got = room.fetch(y)
    times[fmt](y.h(), n, x.h(), k, t, w, 0, n)
    report.within("y", got, y.h(), t * n, TOLERANCE)
    report.same("every row alone:", one_by_one[fmt](room, x, t, w, mode), got, t * n)
    product[fmt](room, y.d(), x, 0, t, w, True, mode)
    for i in range(t * n):
        y.h()[unsafe_offset=i] = bf16(got[unsafe_offset=i], exact)
    report.same("rounded results:", room.fetch(y), y.h(), t * n)
    report.end()


def check_pair(mut room: Room, mut report: Report, t: Int, n1: Int, n2: Int, k: Int, exact: Bool) raises:
    """Two weights in one launch; their results lie side by side."""
    room.clear()
    report.begin("two weights " + label[E4M3](t, n1, k, exact) + " and N " + String(n2))
    var n = n1 + n2
    var mode = room.mode(exact)
    var x = room.floats(t * k, 3, 1, exact)
    var w1 = stored[E4M3](room, n1, k, 4)
    var w2 = stored[E4M3](room, n2, k, 6)
    var y = room.make[DType.float32](t * n)
    var alone = room.make[DType.float32](t * n)

    @__parameter
    def run(results: F32P, first: Int, rows: Int) raises:
        var planes = room.planes(rows, k).d()
        stage(room.ctx, planes, x.d().unsafe_offset(first * k), k, rows, k, False, mode)
        linear_pair[E4M3](
            room.ctx, planes, w1.codes.d(), w1.scales.d(), results, n1, n, w2.codes.d(), w2.scales.d(),
            results.unsafe_offset(n1), n2, n, rows, k, k, rows * k, n, False, mode,
        )

    run(y.d(), 0, t)
    for r in range(t):
        run(alone.d().unsafe_offset(r * n), r, 1)
    var got = room.fetch(y)
    times[E4M3](y.h(), n, x.h(), k, t, w1, 0, n1)
    times[E4M3](y.h().unsafe_offset(n1), n, x.h(), k, t, w2, 0, n2)
    report.within("y", got, y.h(), t * n, TOLERANCE)
    report.same("every row alone:", room.fetch(alone), got, t * n)
    report.end()


def check_grouped(mut room: Room, mut report: Report, t: Int, groups: Int, each: Int, k: Int, exact: Bool) raises:
    """Each group of outputs takes its own columns of a row."""
    room.clear()
    var n = groups * each
    report.begin("grouped " + label[E4M3](t, n, k, exact) + " groups " + String(groups))
    var mode = room.mode(exact)
    var x = room.floats(t * groups * k, 7, 1, exact)
    var w = stored[E4M3](room, n, k, 8)
    var y = room.make[DType.float32](t * n)
    var alone = room.make[DType.float32](t * n)

    @__parameter
    def run(results: F32P, first: Int, rows: Int) raises:
        var ldx = groups * k
        var planes = room.planes(rows, ldx).d()
        stage(room.ctx, planes, x.d().unsafe_offset(first * ldx), ldx, rows, ldx, False, mode)
        linear_pair[E4M3](
            room.ctx, planes, w.codes.d(), w.scales.d(), results, n, n, w.codes.d(), w.scales.d(), results, 0, 0,
            rows, k, ldx, rows * ldx, each, False, mode,
        )

    run(y.d(), 0, t)
    for r in range(t):
        run(alone.d().unsafe_offset(r * n), r, 1)
    var got = room.fetch(y)
    for g in range(groups):
        times[E4M3](
            y.h(), n, x.h().unsafe_offset(g * k), groups * k, t, w, g * each, (g + 1) * each
        )
    report.within("y", got, y.h(), t * n, TOLERANCE)
    report.same("every row alone:", room.fetch(alone), got, t * n)
    report.end()


def check_twin(mut room: Room, mut report: Report, t: Int, n: Int, k: Int) raises:
    """A linear layer whose column spans follow from the batch, which the comparison above has to reject."""
    room.clear()
    report.begin("wrong twin, spans by T: " + label[E4M3](t, n, k, False))
    var mode = room.mode(False)
    var x = room.floats(t * k, 9, 1, False)
    var w = stored[E4M3](room, n, k, 10)
    var y = room.make[DType.float32](t * n)
    product[E4M3](room, y.d(), x, 0, t, w, False, mode, 8 if t == 1 else 2)
    var got = room.fetch(y)
    var alone = one_by_one[E4M3](room, x, t, w, mode, 8)
    times[E4M3](y.h(), n, x.h(), k, t, w, 0, n)
    report.within("y", got, y.h(), t * n, TOLERANCE)
    report.expect("rows alone differ in their bits", bits_off(alone, got, t * n) > t * n // 10)
    report.end()


def check_format[fmt: Int](mut room: Room, mut report: Report, exact: Bool) raises:
    # Chunks have 64 (E4M3), 128 (E2M1) and 32 columns (BF16), tiles 16 outputs.
    for t in [1, 6, 11, 40, 70]:
        check[fmt](room, report, t, 64, 192, exact)
        check[fmt](room, report, t, 50, 96, exact)
    check[fmt](room, report, 1, 32, 32, exact)
    check[fmt](room, report, 6, 7, 1312, exact)
    check[fmt](room, report, 40, 640, 2304, exact)
    if not report.small:
        check[fmt](room, report, 6, 1792, 5120, exact)
        check[fmt](room, report, 11, 8192, 1280, exact)
        check[fmt](room, report, 40, 16416, 160, exact)
        check[fmt](room, report, 70, 32768, 192, exact)


def main() raises:
    var room = Room()
    var report = Report()
    for exact in [True, False]:
        check_format[E4M3](room, report, exact)
        check_format[E2M1](room, report, exact)
        check_format[BF16](room, report, exact)
        check[BF16](room, report, 6, 24, 72, exact)
        for t in [1, 6, 11, 40, 70]:
            check_pair(room, report, t, 96, 64, 160, exact)
            check_pair(room, report, t, 48, 24, 640, exact)
            check_grouped(room, report, t, 4, 48, 96, exact)
            check_grouped(room, report, t, 3, 64, 320, exact)
        if not report.small:
            check_pair(room, report, 6, 1280, 512, 5120, exact)
            check_grouped(room, report, 40, 8, 1024, 512, exact)
    check_twin(room, report, 6, 64, 5120)
    check_twin(room, report, 40, 640, 2304)
    report.finish()
