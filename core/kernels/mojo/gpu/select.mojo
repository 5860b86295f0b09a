"""The best entries of a row of scores, by a block: radix selection, then the kept ones in their order.

Scores come as order keys: unsigned integers of the same order, 16 bits where scores are bfloat16, else 32. The best
key of every GROUP entries is known, and of at least `want` groups it is no less than the want-th best of those: only
groups at or above that bound are looked at closely. Ties go to the earlier entry, whatever the row's length.
"""

from std.atomic import Atomic, Ordering
from std.collections import Array
from std.bit import count_trailing_zeros
from std.memory import AddressSpace, stack_allocation
from std.sys import size_of
from max.gpu import barrier, lane_id, thread_idx, warp_id
from max.gpu.primitives.warp import shuffle_idx, shuffle_up, vote
from ..common import I32P

comptime SELECT_THREADS = 1024
comptime GROUP = 16
comptime SharedInt = Pointer[Int32, MutAnyOrigin, address_space=AddressSpace.SHARED]
comptime CountUp = Atomic[Int32, scope="block"]
comptime KeyP[dtype: DType] = Pointer[Scalar[dtype], MutAnyOrigin]


@always_inline
def shared_ints[n: Int]() -> SharedInt:
    var p = stack_allocation[n, DType.int32, address_space=AddressSpace.SHARED, alignment=16]()
    return p.unsafe_origin_cast[MutAnyOrigin]()


@always_inline
def warp_scan(x: Int32) -> Int32:
    """The sum of a warp's values up to this lane's, its own included."""
    var v = x
    comptime for i in range(5):
        var before = shuffle_up(v, UInt32(1 << i))
        v += before if Int(lane_id()) >= 1 << i else Int32(0)
    return v


@always_inline
def block_scan(x: Int32, sums: SharedInt) -> Tuple[Int, Int]:
    """The sum over the threads before this one, and over all SELECT_THREADS; `sums` holds 32."""
    var upto = warp_scan(x)
    barrier()
    if lane_id() == 31:
        sums[unsafe_offset=Int(warp_id())] = upto
    barrier()
    var warps = warp_scan(sums[unsafe_offset=Int(lane_id())])
    var before = shuffle_idx(warps, UInt32(max(Int(warp_id()) - 1, 0)))
    var total = shuffle_idx(warps, UInt32(31))
    return (Int(upto - x) + (Int(before) if Int(warp_id()) > 0 else 0), Int(total))


@always_inline
def clear(counts: SharedInt):
    """Zeroes 256 counts, once nobody reads them any longer."""
    barrier()
    if Int(thread_idx.x) < 256:
        counts[unsafe_offset=Int(thread_idx.x)] = 0
    barrier()


@always_inline
def count_up(counts: SharedInt, digits: UInt32):
    """One more entry with this lowest digit. Barriers order it; an ordering of its own would cost a fence each."""
    _ = CountUp.fetch_add[ordering = Ordering.RELAXED](counts.unsafe_offset(Int(digits & 255)), Int32(1))


@always_inline
def digit_of(counts: SharedInt, left: Int) -> Tuple[Int, Int]:
    """The largest digit that has, with all above it, at least `left` entries, and how many of its own are wanted.

    Every warp finds it for itself, a lane taking eight digits.
    """
    barrier()
    var lane = Int(lane_id())
    var low = counts.unsafe_offset(248 - 8 * lane).unsafe_load[width=4, alignment=16]()
    var high = counts.unsafe_offset(252 - 8 * lane).unsafe_load[width=4, alignment=16]()
    var own = high.join(low)
    var upto = warp_scan(own.reduce_add())
    var rest = Int32(left) - (upto - own.reduce_add())
    var digit = Int32(255 - 8 * lane)
    var going = True
    comptime for i in range(8):
        # From the highest digit down: they lie at 3, 2, 1, 0, 7, 6, 5, 4.
        comptime place = 3 - i if i < 4 else 11 - i
        going = going and rest > own[place]
        rest -= own[place] if going else Int32(0)
        digit -= Int32(1) if going else Int32(0)
    var found = vote[DType.uint32](Int(upto) >= left)
    var source = UInt32(count_trailing_zeros(found | UInt32(0x80000000)))
    return (Int(shuffle_idx(digit, source)), Int(shuffle_idx(rest, source)))


@always_inline
def counts_here[step: Int, dtype: DType](key: UInt32, prefix: UInt32) -> Bool:
    """Whether a key starts like the prefix in all digits before this step's."""
    comptime if step == 0:
        return True
    else:
        comptime shift = UInt32(8 * (size_of[dtype]() - step))
        return key >> shift == prefix >> shift


@always_inline
def best_of_all[dtype: DType](keys: KeyP[dtype], n: Int, want: Int, counts: SharedInt) -> Tuple[UInt32, Int]:
    """The want-th best of n >= want keys, and how many entries equal to it are wanted."""
    comptime ahead = 4
    var prefix = UInt32(0)
    var left = want
    comptime for step in range(size_of[dtype]()):
        comptime shift = UInt32(8 * (size_of[dtype]() - 1 - step))
        clear(counts)
        for first in range(Int(thread_idx.x), n, SELECT_THREADS * ahead):
            var some = Array[UInt32, ahead](fill=0)
            comptime for u in range(ahead):
                some[u] = UInt32(keys[unsafe_offset=min(first + u * SELECT_THREADS, n - 1)])
            comptime for u in range(ahead):
                if first + u * SELECT_THREADS < n and counts_here[step, dtype](some[u], prefix):
                    count_up(counts, some[u] >> shift)
        var found = digit_of(counts, left)
        prefix |= UInt32(found[0]) << shift
        left = found[1]
    return (prefix, left)


@always_inline
def group_keys[dtype: DType, G: Int](keys: KeyP[dtype], group: Int) -> SIMD[DType.uint32, G]:
    var home = keys.unsafe_offset(group * G)
    return home.unsafe_load[width=G, alignment = min(G * size_of[dtype](), 16)]().cast[DType.uint32]()


@always_inline
def best_in_groups[
    dtype: DType
](
    keys: KeyP[dtype], tops: KeyP[dtype], begin: Int, end: Int, low: UInt32, want: Int, counts: SharedInt
) -> Tuple[UInt32, Int]:
    """As `best_of_all`, of the keys in groups begin … end - 1 of every thread that are at least `low`."""
    var prefix = UInt32(0)
    var left = want
    comptime for step in range(size_of[dtype]()):
        comptime shift = UInt32(8 * (size_of[dtype]() - 1 - step))
        clear(counts)
        for group in range(begin, end):
            if UInt32(tops[unsafe_offset=group]) >= low:
                var v = group_keys[dtype, GROUP](keys, group)
                comptime for i in range(GROUP):
                    if v[i] >= low and counts_here[step, dtype](v[i], prefix):
                        count_up(counts, v[i] >> shift)
        var found = digit_of(counts, left)
        prefix |= UInt32(found[0]) << shift
        left = found[1]
    return (prefix, left)


@always_inline
def id_of(i: Int, blocks: I32P, size: Int) -> Int32:
    """Entry i is row i, or with size > 0 row i % size of blocks[i / size]."""
    if size == 0:
        return Int32(i)
    var block = UInt32(i) // UInt32(size)
    return blocks[unsafe_offset=Int(block)] * Int32(size) + Int32(UInt32(i) - block * UInt32(size))


@always_inline
def select_block[
    dtype: DType, G: Int
](
    out_ids: I32P, want: Int, keys: KeyP[dtype], tops: KeyP[dtype], n: Int, blocks: I32P, size: Int,
    counts: SharedInt, sums: SharedInt,
):
    """The `want` best of n entries as ids, ascending by place, then -1. Keys of a last group past n are 0.

    G: entries of a group, GROUP, or 1 and then tops are keys. counts holds 256, sums 32.
    """
    var thread = Int(thread_idx.x)
    if n <= want:
        for i in range(thread, want, SELECT_THREADS):
            out_ids[unsafe_offset=i] = id_of(i, blocks, size) if i < n else Int32(-1)
        return
    var groups = (n + G - 1) // G
    var share = (groups + SELECT_THREADS - 1) // SELECT_THREADS
    var begin = min(thread * share, groups)
    var end = min(begin + share, groups)
    var low = UInt32(0)
    var cut: UInt32
    var ties: Int
    comptime if G == 1:
        var found = best_of_all[dtype](keys, n, want, counts)
        low = found[0]
        cut = found[0]
        ties = found[1]
    else:
        if groups > want:
            low = best_of_all[dtype](tops, groups, want, counts)[0]
        var found = best_in_groups[dtype](keys, tops, begin, end, low, want, counts)
        cut = found[0]
        ties = found[1]
    var above = Int32(0)
    var equal = Int32(0)
    for group in range(begin, end):
        if UInt32(tops[unsafe_offset=group]) >= cut:
            var v = group_keys[dtype, G](keys, group)
            comptime for i in range(G):
                above += Int32(1) if v[i] > cut else Int32(0)
                equal += Int32(1) if v[i] == cut else Int32(0)
    var place = block_scan(above, sums)[0]
    var tied = block_scan(equal, sums)[0]
    for group in range(begin, end):
        if UInt32(tops[unsafe_offset=group]) >= cut:
            var v = group_keys[dtype, G](keys, group)
            comptime for i in range(G):
                if v[i] > cut:
                    out_ids[unsafe_offset=place + min(tied, ties)] = id_of(group * G + i, blocks, size)
                    place += 1
                elif v[i] == cut:
                    if tied < ties:
                        out_ids[unsafe_offset=place + tied] = id_of(group * G + i, blocks, size)
                    tied += 1
