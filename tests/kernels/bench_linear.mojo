"""The price of batch invariance in linear layers: the kernels' own column spans against the fastest for each T.

A layer's split follows from its weight alone. A kernel without the promise could take another for every number of
rows; here it may take the fastest of 1, 2, 4 and 8.
"""

from std.math import ceildiv
from kernels.gpu.linear import linear_pair, split_of
from kernels.gpu.matmul import chunk_columns
from kernels.linear import row_bytes
from kernels.quant import BF16, E4M3
from clocks import FAR, random_bytes, rate, rounded, timed, warm
from room import Room


def bench[fmt: Int](mut room: Room, n: Int, k: Int, t: Int, bandwidth: Float64) raises:
    room.clear()
    var ctx = room.ctx
    var size = n * row_bytes[fmt](k)
    var copies = max(2, ceildiv(FAR, size))
    var w = random_bytes(room, size * copies, 1 if fmt == E4M3 else 0x38, 100 if fmt == E4M3 else 8)
    var scale_size = n * k // 1024 if fmt == E4M3 else 0
    var s = random_bytes(room, max(scale_size, 1), 115, 5)
    var x = room.device[DType.bfloat16](3 * t * k)
    var planes = x.d()
    room.ctx.enqueue_memset(room.buffers[x.home], UInt8(0x3C))
    var y = room.device[DType.float32](t * n).d()
    var mode = room.mode(True)
    var own = split_of(chunk_columns[fmt](), ceildiv(n, 16), k)
    var fixed = Float64(0)
    var best = Float64(1e18)
    var best_spans = 0
    for spans in [1, 2, 4, 8]:

        def run(i: Int) raises {imm}:
            var p = w.unsafe_offset(i % copies * size)
            linear_pair[fmt](ctx, planes, p, s, y, n, n, p, s, y, 0, 0, t, k, k, t * k, n, True, mode, spans)

        var time = timed(ctx, run)
        if spans == own:
            fixed = time
        if time < best:
            best = time
            best_spans = spans
    var moved = size + scale_size + 2 * t * k + 4 * t * n
    var name = "price linear " + String(n) + "x" + String(k) + (" E4M3" if fmt == E4M3 else " BF16") + " T=" + String(t)
    print(
        name + ": own " + String(own) + " spans " + rate(fixed, moved, bandwidth) + "; fastest " + String(best_spans)
        + " spans " + rounded(best / 1000) + " us; ratio " + rounded(fixed / best, 3)
    )


def main() raises:
    var room = Room()
    var bandwidth = warm(room, 300)
    for t in [1, 6, 48, 192]:
        bench[E4M3](room, 1792, 5120, t, bandwidth)
        bench[E4M3](room, 32768, 1280, t, bandwidth)
        bench[E4M3](room, 8192, 4096, t, bandwidth)
        bench[E4M3](room, 5120, 8192, t, bandwidth)
        bench[BF16](room, 384, 5120, t, bandwidth)
        bench[BF16](room, 129280, 5120, t, bandwidth)
