"""The best entries of a row of scores, by a block: radix selection, then the kept ones in their order.

Ties go to the earlier entry, whatever the row's length.
"""

from std.atomic import Atomic
from std.memory import AddressSpace, stack_allocation
from std.bit import pop_count
from max.gpu import barrier, lane_id, thread_idx, warp_id
from max.gpu.primitives.warp import shuffle_xor, vote
from ..common import F32P, I32P, at
from ..indexer import order_key

comptime SELECT_THREADS = 1024
comptime SharedInt = Pointer[Int32, MutAnyOrigin, address_space=AddressSpace.SHARED]


@always_inline
def shared_ints[n: Int]() -> SharedInt:
    return stack_allocation[n, DType.int32, address_space=AddressSpace.SHARED]().unsafe_origin_cast[MutAnyOrigin]()


@always_inline
def threshold(scores: F32P, n: Int, want: Int, counts: SharedInt) -> Tuple[UInt32, Int]:
    """Order key of the want-th best of n > want scores, and how many entries equal to it are kept."""
    var prefix = UInt32(0)
    var left = want
    var thread = Int(thread_idx.x)
    for step in range(4):
        var shift = UInt32(24 - 8 * step)
        barrier()
        if thread < 256:
            counts[unsafe_offset=thread] = 0
        barrier()
        for i in range(thread, n, SELECT_THREADS):
            var key = order_key(at(scores, i))
            if step == 0 or (key >> (shift + 8)) == (prefix >> (shift + 8)):
                _ = Atomic.fetch_add(counts.unsafe_offset(Int((key >> shift) & 255)), Int32(1))
        barrier()
        # Every thread walks the 256 counts: broadcasts from shared memory, and no further barrier.
        var byte = 255
        while byte > 0 and Int(counts[unsafe_offset=byte]) < left:
            left -= Int(counts[unsafe_offset=byte])
            byte -= 1
        prefix |= UInt32(byte) << shift
    return (prefix, left)


@always_inline
def rank_in_block(flag: Bool, sums: SharedInt) -> Tuple[Int, Int]:
    """How many threads before this one have the flag, and how many in the block; `sums` holds 32."""
    var votes = vote[DType.uint32](flag)
    var before = Int(pop_count(votes & ((UInt32(1) << UInt32(lane_id())) - 1)))
    barrier()
    if lane_id() == 0:
        sums[unsafe_offset=Int(warp_id())] = Int32(pop_count(votes))
    barrier()
    var total = 0
    for w in range(SELECT_THREADS // 32):
        var some = Int(sums[unsafe_offset=w])
        if w < Int(warp_id()):
            before += some
        total += some
    return (before, total)


@always_inline
def select_block(
    out_ids: I32P, want: Int, scores: F32P, n: Int, blocks: I32P, size: Int, counts: SharedInt, sums: SharedInt
):
    """The `want` best of n scores as ids, ascending by place, then -1. size > 0: entry i is row i % size of blocks[i / size]."""
    var thread = Int(thread_idx.x)
    var cut = UInt32(0)
    var ties = n
    if n > want:
        var found = threshold(scores, n, want, counts)
        cut = found[0]
        ties = found[1]
    var filled = 0
    var tied = 0
    for first in range(0, n, SELECT_THREADS):
        var i = first + thread
        var key = order_key(at(scores, i)) if i < n else UInt32(0)
        var equal = i < n and n > want and key == cut
        var keep = i < n and (n <= want or key > cut)
        if n > want:
            var places = rank_in_block(equal, sums)
            keep = keep or (equal and tied + places[0] < ties)
            tied += places[1]
        var place = rank_in_block(keep, sums)
        if keep:
            var id = i
            if size > 0:
                id = Int(blocks[unsafe_offset=i // size]) * size + i % size
            out_ids[unsafe_offset=filled + place[0]] = Int32(id)
        filled += place[1]
    for i in range(filled + thread, want, SELECT_THREADS):
        out_ids[unsafe_offset=i] = -1
