"""Times of kernels at the device's own pace, and what they are held against.

Launches go into the queue of a device that still spins, so the host's pace does not show. Clocks are warm before the
first measurement, and operands rotate over copies that do not fit in the cache.
"""

from std.time import perf_counter_ns
from max.gpu import block_idx, thread_idx
from max.gpu.host import DeviceContext
from kernels.common import F32P, U8P
from kernels.gpu.linear import pointer
from room import Floats, Room, noise, word

comptime SPIN = 1500000  # steps, some milliseconds
comptime MOST_CALLS = 200  # below the depth of a launch queue
comptime ENOUGH = Float64(3e7)  # ns that a measurement lasts at most, about
comptime REPEATS = 3
comptime FAR = 400_000_000  # bytes that leave nothing of themselves in a cache of 50 MB


def spin_kernel(p: F32P, n: Int32):
    var v = Float32(1)
    for _ in range(Int(n)):
        v = v * 0.9999 + 0.5
    p[unsafe_offset=Int(thread_idx.x)] = v


def bytes_kernel(p: U8P, n: Int64, low: Int32, span: Int32):
    """Sixteen random bytes low … low + span - 1 a thread."""
    var first = (Int(block_idx.x) * 256 + Int(thread_idx.x)) * 16
    for i in range(first, min(first + 16, Int(n))):
        p[unsafe_offset=i] = UInt8(low + Int32(word(1, i) % UInt64(span)))


def noise_kernel(p: F32P, n: Int64, seed: Int32):
    var i = Int(block_idx.x) * 256 + Int(thread_idx.x)
    if i < Int(n):
        p[unsafe_offset=i] = noise(Int(seed), i)


def random_bytes(mut room: Room, n: Int, low: Int, span: Int) raises -> U8P:
    """Made on the device, where they stay."""
    var made = room.device[DType.uint8](n)
    room.ctx.enqueue_function[bytes_kernel](
        made.d(), Int64(n), Int32(low), Int32(span), grid_dim=(n + 4095) // 4096, block_dim=256
    )
    return made.d()


def random_floats(mut room: Room, n: Int, seed: Int) raises -> Floats:
    """Noise that is made on the device, where it stays."""
    var made = room.device[DType.float32](n)
    room.ctx.enqueue_function[noise_kernel](
        made.d(), Int64(n), Int32(seed), grid_dim=(n + 255) // 256, block_dim=256
    )
    return made


def spun(ctx: DeviceContext, p: F32P) raises -> Float64:
    """Nanoseconds of a spin."""
    ctx.synchronize()
    var start = perf_counter_ns()
    ctx.enqueue_function[spin_kernel](p, Int32(SPIN), grid_dim=1, block_dim=32)
    ctx.synchronize()
    return Float64(perf_counter_ns() - start)


def timed[F: def(Int) raises -> None](ctx: DeviceContext, body: F) raises -> Float64:
    """Nanoseconds of body(i), the least of REPEATS means; i counts calls, for operands that rotate."""
    var spare = ctx.enqueue_create_buffer[DType.float32](64)
    for i in range(3):
        body(i)
    ctx.synchronize()
    var start = perf_counter_ns()
    for i in range(5):
        body(3 + i)
    ctx.synchronize()
    var guess = Float64(perf_counter_ns() - start) / 5
    var calls = max(8, min(MOST_CALLS, Int(ENOUGH / guess)))
    var least = Float64(1e18)
    for repeat in range(REPEATS):
        var spin = spun(ctx, pointer(spare))
        start = perf_counter_ns()
        ctx.enqueue_function[spin_kernel](pointer(spare), Int32(SPIN), grid_dim=1, block_dim=32)
        for i in range(calls):
            body(repeat * calls + i)
        var queued = Float64(perf_counter_ns() - start)
        ctx.synchronize()
        var total = Float64(perf_counter_ns() - start) - spin
        # A host that was slower than the spin has held up the device.
        if queued > spin and queued > total:
            print("note: the host took", queued / 1000, "us to launch, the spin", spin / 1000)
        least = min(least, total / Float64(calls))
    _ = spare^
    return least


def warm(mut room: Room, milliseconds: Int) raises -> Float64:
    """Copies for so long; gives back the bandwidth of a copy, bytes read and written per ns (GB/s)."""
    var size = FAR
    var a = room.device[DType.uint8](size)
    var b = room.device[DType.uint8](size)
    var source = room.buffers[a.home]
    var target = room.buffers[b.home]
    var ctx = room.ctx
    var end = perf_counter_ns() + milliseconds * 1_000_000
    while perf_counter_ns() < end:
        for _ in range(20):
            ctx.enqueue_copy(target, source)
        ctx.synchronize()

    def copy(i: Int) raises {imm}:
        ctx.enqueue_copy(target, source)

    var bandwidth = Float64(2 * size) / timed(ctx, copy)
    print("copy bandwidth", bandwidth, "GB/s")
    return bandwidth


def rounded(x: Float64, digits: Int = 2) -> String:
    """A positive number with so many digits behind the point."""
    var unit = 10**digits
    var whole = Int(x * Float64(unit) + 0.5)
    var tail = String(whole % unit)
    while tail.byte_length() < digits:
        tail = "0" + tail
    return String(whole // unit) + "." + tail


def rate(ns: Float64, size: Int, bandwidth: Float64) -> String:
    """Time and throughput of a call that has to move `size` bytes."""
    var speed = Float64(size) / ns
    return (
        rounded(ns / 1000) + " us, " + String(Int(speed + 0.5)) + " GB/s, " + rounded(speed / bandwidth)
        + " of a copy"
    )
