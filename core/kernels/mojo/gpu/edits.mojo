"""Edits and grammar masks on a GPU: a copy of the logits in which they are applied."""

from std.math import ceildiv
from std.utils import StaticTuple
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.host import DeviceContext
from ..common import F32P, I64P, at, lent
from ..edits import occurrences
from ..law import Verified
from .base import BLOCK_THREADS
from .sampling import DRAW_THREADS, block_any

comptime COLUMNS = 4 * BLOCK_THREADS  # of one block


def copy_kernel(copy: F32P, verified: Verified):
    """Grid (logit rows, ceildiv(V, COLUMNS)): the logits, with -inf where a grammar forbids a token."""
    var r = Int(block_idx.x)
    var v = verified.v
    var s = r // (verified.k + 1)
    var j = r % (verified.k + 1)
    var begin = Int(block_idx.y) * COLUMNS
    for i in range(begin + Int(thread_idx.x), min(begin + COLUMNS, v), BLOCK_THREADS):
        var free = verified.mask_rows == 0 or verified.allowed(s, j, i)
        copy[unsafe_offset=r * v + i] = at(lent(verified.logits), r * v + i) if free else Float32.MIN


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(DRAW_THREADS)))
def edit_kernel(copy: F32P, verified: Verified):
    """A row a block. Entries name different tokens, and drafts are edited only where no entry names them."""
    var r = Int(block_idx.x)
    var s = r // (verified.k + 1)
    var j = r % (verified.k + 1)
    var z = copy.unsafe_offset(r * verified.v)
    var edits = verified.edits
    var drafts = verified.drafts_of(s)
    var begin = edits.begin(s)
    var end = edits.begin(s + 1)
    for e in range(begin + Int(thread_idx.x), end, DRAW_THREADS):
        var token = Int(edits.tokens[unsafe_offset=e])
        z[unsafe_offset=token] = edits.edited(
            s, e, at(z, token), verified.start(s) + j, occurrences(drafts, j, token)
        )
    if not edits.penalises(s):
        return
    for i in range(j):
        var token = Int(drafts[unsafe_offset=i])
        var known = token < 0 or occurrences(drafts, i, token) > 0
        for e in range(begin + Int(thread_idx.x), end, DRAW_THREADS):
            known = known or Int(edits.tokens[unsafe_offset=e]) == token
        if not block_any(known) and thread_idx.x == 0:
            z[unsafe_offset=token] = edits.penalised(s, at(z, token), True, occurrences(drafts, j, token))


def edit_gpu(ctx: DeviceContext, copy: F32P, verified: Verified) raises:
    """Two launches, one where there are no entries."""
    var rows = verified.b * (verified.k + 1)
    ctx.enqueue_function[copy_kernel](
        copy, verified, grid_dim=(rows, ceildiv(verified.v, COLUMNS)), block_dim=BLOCK_THREADS
    )
    if verified.edits.entries > 0:
        ctx.enqueue_function[edit_kernel](copy, verified, grid_dim=rows, block_dim=DRAW_THREADS)
