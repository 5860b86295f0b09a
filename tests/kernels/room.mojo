"""Memory of a check: arrays that lie on the host and on the device, and are freed together."""

from std.memory import unsafe_memcpy
from std.sys import size_of
from max.gpu.host import DeviceBuffer, DeviceContext
from kernels.common import F32P, I32P, bf16
from kernels.gpu.linear import pointer
from kernels.gpu.staged import PLANES
from kernels.sampling import GOLDEN, mix64

comptime U8P = Pointer[UInt8, MutAnyOrigin]


def word(seed: Int, i: Int) -> UInt64:
    """Random bits of element i of array `seed`."""
    return mix64(mix64(UInt64(seed) + GOLDEN) + UInt64(i) * GOLDEN)


def noise(seed: Int, i: Int) -> Float32:
    """About normal, variance 1: the sum of four uniform values."""
    var bits = word(seed, i)
    var total = Float32(0)
    comptime for part in range(4):
        total += Float32(Int((bits >> UInt64(16 * part)) & 0xFFFF)) / 65536.0 - 0.5
    return total * 1.7320508


@fieldwise_init
struct Memory[dtype: DType](Copyable, ImplicitlyCopyable, Movable):
    """An array of n values with a copy on the host and one on the device; a `Room` owns both."""

    var host: Pointer[Scalar[Self.dtype], MutUntrackedOrigin]
    var device: Pointer[Scalar[Self.dtype], MutUntrackedOrigin]
    var n: Int
    var home: Int

    def h(self) -> Pointer[Scalar[Self.dtype], MutAnyOrigin]:
        return self.host.unsafe_origin_cast[MutAnyOrigin]()

    def d(self) -> Pointer[Scalar[Self.dtype], MutAnyOrigin]:
        return self.device.unsafe_origin_cast[MutAnyOrigin]()

    def size(self) -> Int:
        return self.n * size_of[Scalar[Self.dtype]]()


comptime Floats = Memory[DType.float32]
comptime Ints = Memory[DType.int32]
comptime Codes = Memory[DType.uint8]
comptime Planes = Memory[DType.bfloat16]


struct Room(Movable):
    """Owns a check's arrays until `clear`, so that no pointer outlives what it points to."""

    var ctx: DeviceContext
    var buffers: List[DeviceBuffer[DType.uint8]]
    var hosts: List[List[UInt64]]

    def __init__(out self) raises:
        self.ctx = DeviceContext()
        self.buffers = List[DeviceBuffer[DType.uint8]]()
        self.hosts = List[List[UInt64]]()

    def clear(mut self) raises:
        self.ctx.synchronize()
        self.buffers.clear()
        self.hosts.clear()

    def host[dtype: DType](mut self, n: Int) -> Pointer[Scalar[dtype], MutAnyOrigin]:
        """Working memory of n zeros on the host alone."""
        self.hosts.append(List[UInt64](length=n * size_of[Scalar[dtype]]() // 8 + 1, fill=0))
        return (
            self.hosts[len(self.hosts) - 1].unsafe_ptr().unsafe_bitcast[Scalar[dtype]]().unsafe_origin_cast[
                MutAnyOrigin
            ]()
        )

    def device[dtype: DType](mut self, n: Int, held: Int = 0) raises -> Memory[dtype]:
        """An array of n zeros, of which the host holds only the first `held`."""
        var size = max(n, 1) * size_of[Scalar[dtype]]()
        self.buffers.append(self.ctx.enqueue_create_buffer[DType.uint8](size))
        var device = pointer(self.buffers[len(self.buffers) - 1]).unsafe_bitcast[Scalar[dtype]]()
        var made = Memory[dtype](
            self.host[dtype](held).unsafe_origin_cast[MutUntrackedOrigin](),
            device.unsafe_origin_cast[MutUntrackedOrigin](), n, len(self.buffers) - 1,
        )
        self.ctx.enqueue_memset(self.buffers[made.home], UInt8(0))
        return made

    def make[dtype: DType](mut self, n: Int) raises -> Memory[dtype]:
        """An array of n zeros."""
        return self.device[dtype](n, n)

    def send[dtype: DType](mut self, array: Memory[dtype]) raises:
        """Copies the host's values to the device."""
        with self.buffers[array.home].map_to_host() as there:
            unsafe_memcpy(
                dest=there.unsafe_ptr().unsafe_origin_cast[MutAnyOrigin](), src=array.h().unsafe_bitcast[UInt8](),
                count=array.size(),
            )

    def fetch[dtype: DType](mut self, array: Memory[dtype]) raises -> Pointer[Scalar[dtype], MutAnyOrigin]:
        """A copy of the device's values; the host's own stay as they are, to be compared with."""
        var got = self.host[dtype](array.n)
        with self.buffers[array.home].map_to_host() as there:
            unsafe_memcpy(
                dest=got.unsafe_bitcast[UInt8](), src=there.unsafe_ptr().unsafe_origin_cast[MutAnyOrigin](),
                count=array.size(),
            )
        return got

    def floats(mut self, n: Int, seed: Int, factor: Float32 = 1, exact: Bool = False) raises -> Floats:
        """Noise times `factor`, bfloat16 values if `exact`."""
        var made = self.make[DType.float32](n)
        for i in range(n):
            made.h()[unsafe_offset=i] = bf16(noise(seed, i) * factor, exact)
        self.send(made)
        return made

    def constants(mut self, values: List[Float32]) raises -> Floats:
        var made = self.make[DType.float32](len(values))
        for i in range(len(values)):
            made.h()[unsafe_offset=i] = values[i]
        self.send(made)
        return made

    def ints(mut self, values: List[Int]) raises -> Ints:
        var made = self.make[DType.int32](len(values))
        for i in range(len(values)):
            made.h()[unsafe_offset=i] = Int32(values[i])
        self.send(made)
        return made

    def mode(mut self, exact: Bool) raises -> I32P:
        """The switches of a run."""
        return self.ints([1 if exact else 0, 1]).d()

    def planes(mut self, t: Int, k: Int) raises -> Planes:
        """Planes [3, t, k] of staged activations."""
        return self.make[DType.bfloat16](PLANES * t * k)

    def unstaged(mut self, planes: Planes, exact: Bool) raises -> F32P:
        """What staged planes hold as float32: plane 0 in an exact run, else the sum of all three."""
        var there = self.fetch(planes)
        var n = planes.n // PLANES
        var values = self.host[DType.float32](n)
        for i in range(n):
            var v = there[unsafe_offset=i].cast[DType.float32]()
            if not exact:
                v = v + (
                    there[unsafe_offset=n + i].cast[DType.float32]()
                    + there[unsafe_offset=2 * n + i].cast[DType.float32]()
                )
            values[unsafe_offset=i] = v
        return values
