"""The indexer's choice on the GPU: every query's best rows, and a candidate source's best blocks."""

from std.utils import StaticTuple
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, thread_idx
from ..common import I32P, U32P
from ..layout import CANDIDATES, CANDIDATE_BLOCK
from .base import is_exact
from .scores import visible_to
from .select import GROUP, KeyP, SELECT_THREADS, SharedInt, block_scan, select_block, shared_ints


@always_inline
def choose[
    dtype: DType
](
    chosen: I32P, blocks: I32P, keys: KeyP[dtype], tops: KeyP[dtype], best: KeyP[dtype], mine: I32P, top_k: Int,
    nb: Int, n: Int, visible: Int, size: Int, role: Int, counts: SharedInt, sums: SharedInt,
):
    """One row's chosen rows, or, in the second block of a candidate source's row, its published blocks."""
    if block_idx.y == 0:
        select_block[dtype, GROUP](chosen, top_k, keys, tops, n, mine, size if role == 2 else 0, counts, sums)
        return
    var count = (visible + size - 1) // size
    if count > nb:
        for b in range(Int(thread_idx.x), count, SELECT_THREADS):
            var top = Scalar[dtype](0)
            if size % GROUP == 0:
                for i in range(b * size // GROUP, min((visible + GROUP - 1) // GROUP, (b + 1) * size // GROUP)):
                    top = max(top, tops[unsafe_offset=i])
            else:
                for i in range(b * size, min(visible, (b + 1) * size)):
                    top = max(top, keys[unsafe_offset=i])
            # The block of the newest row always stays.
            best[unsafe_offset=b] = Scalar[dtype].MAX if b == (visible - 1) // size else top
        barrier()
    select_block[dtype, 1](blocks, nb, best, best, count, mine, 0, counts, sums)


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(SELECT_THREADS)))
def choose_kernel(
    chosen: I32P, blocks: I32P, scores: U32P, tops: U32P, best: U32P, candidates: I32P, pos: I32P, top_k: Int32,
    nb_: Int32, capacity: Int32, layer: I32P, mode: I32P,
):
    """Grid (T, 2): y = 0 the chosen rows, y = 1 the published blocks (a source) or those it was given."""
    var r = Int(block_idx.x)
    var nb = Int(nb_)
    var role = Int(layer[unsafe_offset=CANDIDATES])
    var size = max(Int(layer[unsafe_offset=CANDIDATE_BLOCK]), 1)
    var visible = visible_to(r, pos, layer)
    var mine = candidates.unsafe_offset(r * nb)
    if block_idx.y == 1 and role != 1:
        for i in range(Int(thread_idx.x), nb, SELECT_THREADS):
            blocks[unsafe_offset=r * nb + i] = mine[unsafe_offset=i]
        return
    var counts = shared_ints[256]()
    var sums = shared_ints[32]()
    var n = visible
    if role == 2:
        # The blocks come first and ascend; only the last of them, the newest, may be cut short.
        var some = Int32(0)
        for i in range(Int(thread_idx.x), nb, SELECT_THREADS):
            some += Int32(1) if mine[unsafe_offset=i] >= 0 else Int32(0)
        var filled = block_scan(some, sums)[1]
        n = 0
        if filled > 0:
            var newest = Int(mine[unsafe_offset=filled - 1])
            n = (filled - 1) * size + min(size, visible - newest * size)
    var keys = scores.unsafe_offset(r * Int(capacity))
    var groups = tops.unsafe_offset(r * (Int(capacity) // GROUP))
    var spare = best.unsafe_offset(r * Int(capacity))
    var out_rows = chosen.unsafe_offset(r * Int(top_k))
    var out_blocks = blocks.unsafe_offset(r * nb)
    if is_exact(mode):
        choose[DType.uint16](
            out_rows, out_blocks, keys.unsafe_bitcast[UInt16](), groups.unsafe_bitcast[UInt16](),
            spare.unsafe_bitcast[UInt16](), mine, Int(top_k), nb, n, visible, size, role, counts, sums,
        )
    else:
        choose[DType.uint32](
            out_rows, out_blocks, keys, groups, spare, mine, Int(top_k), nb, n, visible, size, role, counts, sums
        )
