"""Rows of the caches: rotary embedding, the query latent and window rows, compressed rows and their index keys."""

from std.math import ceildiv, exp
from kernels.common import F32P, bf16, rms_norm, rope, rope_table
from kernels.compress import pool
from kernels.gpu.attention_in import latent_kernel
from kernels.gpu.compress import group_kernel
from kernels.gpu.rope import rope_heads
from kernels.quant import BF16, qdq_fp8, qdq_mxfp4, qdq_nvfp4
from report import Report
from room import Floats, Room
from stored import stored, times

comptime EPS = Float32(1e-6)


def frequencies(mut room: Room, half: Int) raises -> Floats:
    var values = List[Float32]()
    for i in range(half):
        values.append(exp(Float32(-0.3) * Float32(i)))
    return room.constants(values)


def backwards(pages: Int) -> List[Int]:
    """A sequence's page numbers, the last one first."""
    var numbers = List[Int]()
    for i in range(pages):
        numbers.append(pages - 1 - i)
    return numbers^


def turned(row: F32P, turn: F32P, freq: F32P, position: Int, half: Int, k: Int, exact: Bool):
    """Turns the end of a row of k values."""
    rope_table(turn, freq, position, half)
    rope(row.unsafe_offset(k - 2 * half), turn, half, 1, exact)


def check_rope(mut room: Room, mut report: Report, t: Int, heads: Int, k: Int, half: Int, exact: Bool) raises:
    """Positions up to a million."""
    room.clear()
    var name = "rope T " + String(t) + " heads " + String(heads) + " K " + String(k) + " half " + String(half)
    report.begin(name + (" exact" if exact else " plain"))
    var q = room.floats(t * heads * k, 51, 1, exact)
    var freq = frequencies(room, half)
    var positions = List[Int]()
    for r in range(t):
        positions.append(r * 100003 % 1000000)
    rope_heads(room.ctx, q.d(), room.ints(positions).d(), freq.d(), t, heads * k, k, half, room.mode(exact))
    var turn = room.host[DType.float32](2 * half)
    for r in range(t):
        for head in range(heads):
            turned(q.h().unsafe_offset((r * heads + head) * k), turn, freq.h(), positions[r], half, k, exact)
    var tolerance = Float32(0.0079) if exact else Float32(3e-5)
    report.close("q", room.fetch(q), q.h(), q.n, tolerance, q.n // 200 if exact else 0)
    report.end()


def check_latent(mut room: Room, mut report: Report, t: Int, nq: Int, k: Int, half: Int, exact: Bool) raises:
    """The normed latent, its FP8 planes, and the window row, kept on its page if its position is not -1."""
    room.clear()
    var name = "latent T " + String(t) + " Q " + String(nq) + " K " + String(k)
    report.begin(name + (" exact" if exact else " plain"))
    var latent = room.floats(t * nq, 61)
    var kv = room.floats(t * k, 62)
    var q_norm = room.floats(nq, 63)
    var kv_norm = room.floats(k, 64)
    var freq = frequencies(room, half)
    var page = 4
    var pages = ceildiv(t, page)
    var numbers = backwards(pages)
    var positions = List[Int]()
    for r in range(t):
        positions.append(r if r != 2 else -1)
    var window = room.make[DType.float32](pages * page * k)
    var planes = room.planes(t, nq)
    var seq = room.make[DType.int32](t).d()
    var pos = room.ints(positions).d()
    var table = room.ints(numbers).d().unsafe_bitcast[UInt32]()
    var layer = room.ints([0, 0, 0, 0, 0, page, 8, 0, 0, 0, 0, 0, 20]).d()
    var model = room.constants([EPS, EPS, 0, 0]).d()
    room.ctx.enqueue_function[latent_kernel](
        latent.d(), planes.d(), kv.d(), window.d(), seq, pos, table, q_norm.d(), kv_norm.d(), freq.d(), Int32(nq),
        Int32(k), Int32(half), Int32(t * nq), Int32(1), Int32(page), Int32(pages), layer, model, room.mode(exact),
        grid_dim=(t, 2), block_dim=256,
    )
    var staged = room.host[DType.float32](t * nq)
    var turn = room.host[DType.float32](2 * half)
    for r in range(t):
        var a = latent.h().unsafe_offset(r * nq)
        rms_norm(a, a, q_norm.h(), nq, EPS, exact)
        qdq_fp8(staged.unsafe_offset(r * nq), a, nq, exact)
        var b = kv.h().unsafe_offset(r * k)
        rms_norm(b, b, kv_norm.h(), k, EPS, exact)
        turned(b, turn, freq.h(), positions[r], half, k, exact)
        qdq_fp8(b, b, k, exact)
        for i in range(k if positions[r] >= 0 else 0):
            window.h()[unsafe_offset=(numbers[r // page] * page + r % page) * k + i] = b[unsafe_offset=i]
    # Where a norm rounds the other way, its FP8 value may, too.
    var off = t * k // 200 + 1 if exact else 0
    report.close("latent", room.fetch(latent), latent.h(), t * nq, Float32(0.009) if exact else Float32(2e-5))
    report.close("planes", room.unstaged(planes, exact), staged, t * nq, 2e-5, t * nq // 500 if exact else 0)
    report.close("kv", room.fetch(kv), kv.h(), t * k, 5e-5, off)
    report.close("window", room.fetch(window), window.h(), window.n, 5e-5, off)
    report.end()


def check_compress(
    mut room: Room, mut report: Report, t: Int, k: Int, nk: Int, half: Int, ratio: Int, exact: Bool
) raises:
    """A sequence from position 1 on: with ratio 2, the first row completes a group that an earlier step opened."""
    room.clear()
    var name = "compress T " + String(t) + " K " + String(k) + " keys " + String(nk) + " ratio " + String(ratio)
    report.begin(name + (" exact" if exact else " plain"))
    var page = 64
    var rows = page // ratio
    var ring = 5
    var pages = ceildiv(t + 1, page)
    var numbers = backwards(pages)
    var positions = List[Int]()
    for r in range(t):
        positions.append(r + 1)
    # Among few rows the rows that open a group are kept by the same launch.
    var few = t < 2 * ring
    var projected = room.floats(t * 2 * k, 71)
    var norm = room.floats(k, 72)
    var k_norm = room.floats(nk, 73)
    var wk = stored[BF16](room, nk, k, 74)
    var freq = frequencies(room, half)
    var latent = room.make[DType.float32](t * k)
    var rows_leaf = room.make[DType.float32](pages * rows * k)
    var keys_leaf = room.make[DType.float32](pages * rows * nk)
    var open_leaf = room.floats(pages * ring * 2 * k, 75)
    var seq = room.make[DType.int32](t).d()
    var pos = room.ints(positions).d()
    var table = room.ints(numbers).d().unsafe_bitcast[UInt32]()
    var layer = room.ints([0, ratio, 0, 0, 0, page, 8, 0, 1, 0, 0, 0, 20]).d()
    var model = room.constants([EPS, EPS, 0, 0]).d()
    room.ctx.enqueue_function[group_kernel](
        latent.d(), rows_leaf.d(), keys_leaf.d(), open_leaf.d(), projected.d(), seq, pos, table, norm.d(), wk.codes.d(),
        k_norm.d(), freq.d(), Int32(k), Int32(nk), Int32(half), Int32(rows), Int32(rows), Int32(1), Int32(ring),
        Int32(pages), Int32(1 if few else 0), layer, model, room.mode(exact), grid_dim=t, block_dim=256,
    )
    var turn = room.host[DType.float32](2 * half)
    var got = room.fetch(latent)
    for r in range(t):
        if (r + 2) % ratio != 0:
            for i in range(k):
                got[unsafe_offset=r * k + i] = 0  # not written
            continue
        var own = projected.h().unsafe_offset(r * 2 * k)
        var first = open_leaf.h().unsafe_offset(numbers[0] * ring * 2 * k) if r == 0 else own.unsafe_offset(-2 * k)
        var row = latent.h().unsafe_offset(r * k)
        if ratio > 1:
            pool(row, first, first.unsafe_offset(k), own, own.unsafe_offset(k), k)
        for i in range(k):
            row[unsafe_offset=i] = bf16(row[unsafe_offset=i] if ratio > 1 else own[unsafe_offset=i], exact)
        rms_norm(row, row, norm.h(), k, EPS, exact)
        var g = (r + 1) // ratio
        var slot = numbers[g // rows] * rows + g % rows
        var kept = rows_leaf.h().unsafe_offset(slot * k)
        for i in range(k):
            kept[unsafe_offset=i] = row[unsafe_offset=i]
        turned(kept, turn, freq.h(), g * ratio, half, k, exact)
        qdq_nvfp4(kept, k, exact)
        var key = keys_leaf.h().unsafe_offset(slot * nk)
        times[BF16](key, nk, row, k, 1, wk, 0, nk)
        for i in range(nk):
            key[unsafe_offset=i] = bf16(key[unsafe_offset=i], exact)
        rms_norm(key, key, k_norm.h(), nk, EPS, exact)
        turned(key, turn, freq.h(), g * ratio, half, nk, exact)
        qdq_mxfp4(key, nk, exact)
    for r in range(t if few and ratio > 1 else 0):
        if (r + 1) % 2 == 0:
            var home = open_leaf.h().unsafe_offset((numbers[0] * ring + (r + 1) // 2 % ring) * 2 * k)
            for i in range(2 * k):
                home[unsafe_offset=i] = projected.h()[unsafe_offset=r * 2 * k + i]
    report.close("latent", got, latent.h(), t * k, Float32(0.02) if exact else Float32(5e-5), 2 if exact else 0)
    report.close("rows", room.fetch(rows_leaf), rows_leaf.h(), rows_leaf.n, 1e-4, t * k // 50 if exact else 0)
    report.close("keys", room.fetch(keys_leaf), keys_leaf.h(), keys_leaf.n, 5e-4, t * nk // 10 if exact else 0)
    if few or ratio == 1:
        report.same("open groups:", room.fetch(open_leaf), open_leaf.h(), open_leaf.n)
    report.end()


def main() raises:
    var room = Room()
    var report = Report()
    for exact in [True, False]:
        for t in [1, 7]:
            check_rope(room, report, t, 64, 512, 32, exact)
            check_rope(room, report, t, 5, 64, 8, exact)
            check_rope(room, report, t, 3, 192, 40, exact)
        for t in [1, 5, 70]:
            check_latent(room, report, t, 64, 32, 4, exact)
            for ratio in [1, 2]:
                check_compress(room, report, t, 64, 32, 8, ratio, exact)
            if not report.small:
                check_latent(room, report, t, 1280, 512, 32, exact)
                check_latent(room, report, t, 2560, 1536, 32, exact)
                for ratio in [1, 2]:
                    check_compress(room, report, t, 512, 128, 32, ratio, exact)
                    check_compress(room, report, t, 1536, 96, 16, ratio, exact)
    report.finish()
