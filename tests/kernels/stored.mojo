"""Random weights in the formats of a checkpoint, and the CPU's product with them."""

from std.math import ceildiv
from kernels.common import F32P, Rows, Scratch
from kernels.linear import linear, row_bytes
from kernels.quant import BF16, E2M1, E4M3, evens_first
from room import Codes, Room, word


@fieldwise_init
struct Stored(Copyable, ImplicitlyCopyable, Movable):
    """Weights [n, k] as they lie in a checkpoint: codes and power-of-two scales."""

    var codes: Codes
    var scales: Codes
    var n: Int
    var k: Int


def scale_count[fmt: Int](n: Int, k: Int) -> Int:
    comptime if fmt == E4M3:
        return ceildiv(n, 32) * (k // 32)
    elif fmt == E2M1:
        return n * (k // 32)
    else:
        return 1


def scale_for(k: Int) -> Int:
    """The middle of scale bytes that keep a product of k random codes of E2M1 near 1."""
    var log = 0
    while 4 << (2 * log) <= k:
        log += 1
    return 126 - log


def code_of[fmt: Int](bits: UInt64, i: Int) -> UInt8:
    """Any code but E4M3's NaN; bfloat16 values of ordinary size."""
    var byte = UInt8(bits & 255)
    comptime if fmt == E4M3:
        return UInt8(5) if byte & 127 == 127 else byte
    elif fmt == BF16:
        return byte if i % 2 == 0 else UInt8(0x3C) | (byte & 0x83)
    else:
        return byte


def stored[fmt: Int](mut room: Room, n: Int, k: Int, seed: Int, scale: Int = 120) raises -> Stored:
    """Random codes, scale bytes from scale - 2 to scale + 2."""
    var codes = room.make[DType.uint8](n * row_bytes[fmt](k))
    for i in range(codes.n):
        codes.h()[unsafe_offset=i] = code_of[fmt](word(seed, i), i)
    var scales = room.make[DType.uint8](scale_count[fmt](n, k))
    for i in range(scales.n):
        scales.h()[unsafe_offset=i] = UInt8(scale - 2 + Int(word(seed + 1, i) % 5))
    room.send(codes)
    room.send(scales)
    return Stored(codes, scales, n, k)


def times[fmt: Int](y: F32P, ldy: Int, x: F32P, ldx: Int, t: Int, w: Stored, n0: Int, n1: Int):
    """Rows x [t, k], ldx apart, times outputs n0 … n1 - 1 of w, as the CPU's kernels form them."""
    var rows = Rows(t)
    comptime if fmt == E2M1:
        var split = Scratch(t * w.k)
        for r in range(t):
            evens_first(split.ptr().unsafe_offset(r * w.k), x.unsafe_offset(r * ldx), w.k)
        linear[fmt](y, ldy, split.ptr(), w.k, rows.ptr(), t, w.codes.h(), w.scales.h(), n0, n1, w.k)
        _ = split^
    else:
        linear[fmt](y, ldy, x, ldx, rows.ptr(), t, w.codes.h(), w.scales.h(), n0, n1, w.k)
    _ = rows^
