"""Threads, warps and reductions that every GPU kernel shares.

A kernel reads its switches (`mode`, layer settings) on the device, so that a launch depends on shapes alone and a
captured step stays valid. Sums have one fixed order, whatever else is in the batch.
"""

from std.collections import Array
from std.math import ceildiv, fma, sqrt
from std.memory import AddressSpace, bitcast, stack_allocation
from std.sys.intrinsics import llvm_intrinsic
from max.gpu import barrier, block_dim, block_idx, lane_id, thread_idx, warp_id
from max.gpu.host import DeviceBuffer, DeviceContext
from max.gpu.primitives.warp import shuffle_xor
from ..common import F32P, I32P, U8P, at
from ..layout import EXACT

comptime BF16P = Pointer[BFloat16, MutAnyOrigin]
comptime Shared = Pointer[Float32, MutAnyOrigin, address_space=AddressSpace.SHARED]
comptime WARPS = 8
comptime BLOCK_THREADS = 32 * WARPS


@always_inline
def shared[n: Int]() -> Shared:
    """Shared memory of n float32, one per call site and block, aligned to 16 bytes."""
    var p = stack_allocation[n, DType.float32, address_space=AddressSpace.SHARED, alignment=16]()
    return p.unsafe_origin_cast[MutAnyOrigin]()


@always_inline
def warp_sum(x: Float32) -> Float32:
    """The sum over a warp's lanes, in every lane, always formed in the same tree."""
    var v = x
    comptime for i in range(5):
        v += shuffle_xor(v, UInt32(16 >> i))
    return v


@always_inline
def warp_max(x: Float32) -> Float32:
    var v = x
    comptime for i in range(5):
        v = max(v, shuffle_xor(v, UInt32(16 >> i)))
    return v


@always_inline
def warp_sums[n: Int](mut v: Array[Float32, n]) -> Float32:
    """Lane i gets the sum over a warp of v[i / (32 / n)], n a power of two up to 32; the same tree as `warp_sum`.

    Lanes swap halves of what they hold, so 32 sums take 31 shuffles and not 160; v is used up.
    """
    comptime for step in range(5):
        comptime bit = 16 >> step
        comptime half = n >> (step + 1)
        comptime if half > 0:
            var upper = Int(lane_id()) & bit != 0
            comptime for i in range(half):
                var kept = v[i + half] if upper else v[i]
                var sent = v[i] if upper else v[i + half]
                v[i] = kept + shuffle_xor(sent, UInt32(bit))
        else:
            v[0] += shuffle_xor(v[0], UInt32(bit))
    return v[0]


@always_inline
def warp_top(x: UInt32) -> UInt32:
    """The largest of a warp's values, in every lane."""
    return llvm_intrinsic["llvm.nvvm.redux.sync.umax", UInt32](x, Int32(-1))


@always_inline
def warp_least(x: UInt32) -> UInt32:
    """The smallest of a warp's values, in every lane."""
    return llvm_intrinsic["llvm.nvvm.redux.sync.umin", UInt32](x, Int32(-1))


@always_inline
def warp_total(x: UInt32) -> UInt32:
    """The sum of a warp's integers, in every lane."""
    return llvm_intrinsic["llvm.nvvm.redux.sync.add", UInt32](x, Int32(-1))


@always_inline
def reciprocal(x: Float32) -> Float32:
    """One over x to about an ulp, for x of ordinary size: the hardware's guess and a Newton step."""
    var guess = llvm_intrinsic["llvm.nvvm.rcp.approx.ftz.f", Float32](x)
    return fma(guess, fma(-x, guess, Float32(1)), guess)


@always_inline
def block_sum(x: Float32, spare: Shared) -> Float32:
    """The sum over a block of `BLOCK_THREADS`, in every thread; `spare` holds WARPS values and is free afterwards."""
    var v = warp_sum(x)
    if lane_id() == 0:
        spare[unsafe_offset=Int(warp_id())] = v
    barrier()
    var total = Float32(0)
    comptime for i in range(WARPS):
        total += spare[unsafe_offset=i]
    barrier()
    return total


@always_inline
def is_exact(mode: I32P) -> Bool:
    return mode[unsafe_offset=EXACT] != 0


@always_inline
def parts_of(exact: Bool) -> Int:
    """How many bfloat16 planes a staged activation has: its own rounding fits in one, a plain float32 takes three."""
    return 1 if exact else 3
