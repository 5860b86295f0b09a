"""Activations on their way into planes, the quantisers, and what becomes of a NaN on the way."""

from std.memory import bitcast
from max.gpu import thread_idx
from kernels.common import F32P, bf16
from kernels.gpu.base import BF16P
from kernels.gpu.linear import linear_gpu
from kernels.gpu.probe import qdq_gpu
from kernels.gpu.staged import put, round_bf16, stage, stage_both
from kernels.gpu.vectors import load4, load4_bf16, put_many, round4, store4
from kernels.quant import BF16, E4M3, qdq_fp8, qdq_mxfp4, qdq_nvfp4
from report import Report
from room import Floats, Room, noise
from stored import stored, times

comptime NANS = 5


def nan(i: Int) -> Float32:
    """NaNs of several kinds: a GPU's own, the usual one, bfloat16 ones (one signalling), a negative one."""
    var kinds: List[UInt32] = [0x7FFFFFFF, 0x7FC00000, 0x7FC10000, 0x7F810000, 0xFFFFFFFF]
    return bitcast[DType.float32](kinds[i % NANS])


def rows_with(
    mut room: Room, t: Int, k: Int, ldx: Int, exact: Bool, every: Int
) raises -> Floats:
    """Rows whose groups of 32 differ in size, with a large value here and there, and a NaN in every `every` values."""
    var x = room.make[DType.float32](t * ldx)
    for i in range(x.n):
        var v = noise(31, i) * 3 * (Float32(1e-6) if i % 64 < 32 else Float32(1))
        v = bf16(v * 1000 if i % 977 == 4 else v, exact)
        x.h()[unsafe_offset=i] = nan(i // every) if every > 0 and i % every == 3 else v
    room.send(x)
    return x


def without_nan(mut room: Room, x: F32P, n: Int) -> F32P:
    """Zero in a NaN's place: a group's scale passes over NaN."""
    var clean = room.host[DType.float32](n)
    for i in range(n):
        var v = x[unsafe_offset=i]
        clean[unsafe_offset=i] = v if v == v else Float32(0)
    return clean


def put_back(values: F32P, x: F32P, n: Int):
    for i in range(n):
        if x[unsafe_offset=i] != x[unsafe_offset=i]:
            values[unsafe_offset=i] = x[unsafe_offset=i]


def check_stage(mut room: Room, mut report: Report, t: Int, k: Int, exact: Bool, every: Int) raises:
    """Rows with a stride into planes, plain and through FP8; then dense rows both ways at once."""
    room.clear()
    var name = "stage T " + String(t) + " K " + String(k) + (" exact" if exact else " plain")
    report.begin(name + (" with NaN" if every > 0 else ""))
    var n = t * k
    var ldx = k + 32
    var x = rows_with(room, t, k, ldx, exact, every)
    var mode = room.mode(exact)
    var dense = room.make[DType.float32](n)
    for i in range(n):
        dense.h()[unsafe_offset=i] = x.h()[unsafe_offset=i // k * ldx + i % k]
    room.send(dense)
    var quantised = room.host[DType.float32](n)
    qdq_fp8(quantised, without_nan(room, dense.h(), n), n, exact)
    put_back(quantised, dense.h(), n)
    var planes = room.planes(t, k)
    stage(room.ctx, planes.d(), x.d(), ldx, t, k, False, mode)
    report.close("plain", room.unstaged(planes, exact), dense.h(), n, 0)
    stage(room.ctx, planes.d(), x.d(), ldx, t, k, True, mode)
    report.close("fp8", room.unstaged(planes, exact), quantised, n, 0)
    var other = room.planes(t, k)
    stage_both(room.ctx, planes.d(), other.d(), dense.d(), t, k, mode)
    report.close("both: plain", room.unstaged(planes, exact), dense.h(), n, 0)
    report.close("both: fp8", room.unstaged(other, exact), quantised, n, 0)
    report.end()


def check_quantiser(mut room: Room, mut report: Report, kind: Int, t: Int, d: Int, every: Int) raises:
    """FP8, FP4 with power-of-two scales, FP4 with FP8 scales."""
    room.clear()
    var names: List[String] = ["fp8", "mxfp4", "nvfp4"]
    var name = "quantiser " + names[kind] + " T " + String(t) + " D " + String(d)
    report.begin(name + (" with NaN" if every > 0 else ""))
    var x = rows_with(room, t, d, d, False, every)
    var y = room.make[DType.float32](t * d)
    qdq_gpu(room.ctx, y.d(), x.d(), room.ints([kind]).d(), t, d)
    var want = without_nan(room, x.h(), t * d)
    if kind == 0:
        qdq_fp8(want, want, t * d, True)
    elif kind == 1:
        qdq_mxfp4(want, t * d, True)
    else:
        qdq_nvfp4(want, t * d, True)
    put_back(want, x.h(), t * d)
    report.close("values", room.fetch(y), want, t * d, 0)
    report.end()


def rounding_kernel(y: F32P, planes: BF16P, x: F32P, count: Int32):
    """Four values of x a thread through every way of rounding to bfloat16: y [5, count]."""
    var n = Int(count)
    var i = Int(thread_idx.x) * 4
    if i >= n:
        return
    var v = load4(x, i)
    put_many[4](planes, n, i, v, True)
    store4(y, i, round4(v, True))
    store4(y, n + i, load4_bf16(planes.unsafe_bitcast[UInt8](), i))
    comptime for e in range(4):
        y[unsafe_offset=2 * n + i + e] = bf16(v[e], True)
        y[unsafe_offset=3 * n + i + e] = round_bf16(v[e])
        put(planes, n, i + e, v[e], True)
        y[unsafe_offset=4 * n + i + e] = planes[unsafe_offset=i + e].cast[DType.float32]()


def check_rounding(mut room: Room, mut report: Report) raises:
    room.clear()
    report.begin("bfloat16 rounding")
    var n = 1024
    var x = room.floats(n, 41)
    for i in range(n):
        if i % 7 == 2:
            x.h()[unsafe_offset=i] = nan(i)
        elif i % 7 == 3:
            # Halfway between two bfloat16 values.
            x.h()[unsafe_offset=i] = bitcast[DType.float32](
                bitcast[DType.uint32](x.h()[unsafe_offset=i]) & 0xFFFF0000 | 0x8000
            )
        elif i % 7 == 4:
            x.h()[unsafe_offset=i] = Float32(1e38) * Float32(100 if i % 2 == 0 else -100)
    room.send(x)
    var y = room.make[DType.float32](5 * n)
    var planes = room.planes(1, n)
    room.ctx.enqueue_function[rounding_kernel](y.d(), planes.d(), x.d(), Int32(n), grid_dim=1, block_dim=256)
    var want = room.host[DType.float32](n)
    for i in range(n):
        want[unsafe_offset=i] = bf16(x.h()[unsafe_offset=i], True)
    var ways: List[String] = ["round4", "put_many", "bf16", "round_bf16", "put"]
    var got = room.fetch(y)
    for way in range(5):
        report.close(ways[way], got.unsafe_offset(way * n), want, n, 0)
    report.end()


def check_products[fmt: Int](mut room: Room, mut report: Report, exact: Bool, way: String) raises:
    """A NaN in a row reaches all of its results and no other row's; one in a bfloat16 weight reaches its output."""
    room.clear()
    report.begin("NaN through a linear layer, " + way + (" exact" if exact else " plain"))
    var t = 11
    var n = 64
    var k = 160
    var x = room.floats(t * k, 43, 1, exact)
    for r in range(NANS):
        x.h()[unsafe_offset=2 * r * k + 31 * r + 1] = nan(r)
    room.send(x)
    var w = stored[fmt](room, n, k, 44)
    comptime if fmt == BF16:
        w.codes.h()[unsafe_offset=2 * (9 * k + 5)] = 0x81
        w.codes.h()[unsafe_offset=2 * (9 * k + 5) + 1] = 0x7F
        room.send(w.codes)
    var mode = room.mode(exact)
    var planes = room.planes(t, k).d()
    stage(room.ctx, planes, x.d(), k, t, k, False, mode)
    var y = room.make[DType.float32](t * n)
    linear_gpu[fmt](room.ctx, y.d(), planes, t, k, w.codes.d(), w.scales.d(), n, True, mode)
    times[fmt](y.h(), n, x.h(), k, t, w, 0, n)
    var got = room.fetch(y)
    var top = Float32(0)
    for i in range(t * n):
        var v = abs(y.h()[unsafe_offset=i])
        top = v if v > top else top
    for i in range(t * n):
        y.h()[unsafe_offset=i] = y.h()[unsafe_offset=i] / top
        got[unsafe_offset=i] = got[unsafe_offset=i] / top
    report.close("y", got, y.h(), t * n, 0.009)
    report.end()


def main() raises:
    var room = Room()
    var report = Report()
    check_rounding(room, report)
    for every in [0, 977, 40]:
        for t in [1, 5, 70]:
            for k in [32, 96, 5120]:
                if k <= 96 or not report.small:
                    for exact in [True, False]:
                        check_stage(room, report, t, k, exact, every)
                    for kind in range(3):
                        check_quantiser(room, report, kind, t, k, every)
    for exact in [True, False]:
        check_products[BF16](room, report, exact, "BF16")
        check_products[E4M3](room, report, exact, "E4M3")
    report.finish()
