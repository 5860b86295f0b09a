"""A server's memory: taken whole before the first request, given back when nobody asks for anything.

What a burst of requests leaves free in the heaps of its threads stays the process's otherwise. Resident MiB of the
embedded checkpoint, its largest step not yet taken, idle after 64 clients at a time had sent prompts of 900 kB thrice:

    with neither, before and after                 258, 1178
    with `release` alone                           258, 391
    with `bound_free_memory` alone                 252, 739
    with both                                      252, 259
"""

from __future__ import annotations

import ctypes
import gc

from specdecode.core.cache.pages import dealt
from specdecode.core.engine.scheduler import TOKEN_BUDGET
from specdecode.core.engine.step import StepModel, StepRow

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of `mallopt`, from glibc's malloc.h."""
_BOUND = 1 << 20


def bound_free_memory() -> None:
    """Let no thread's heap end in more than 1 MiB that is free; to be called before there are threads.

    glibc raises this bound by itself to twice the largest block that was freed, up to 64 MiB a thread, and
    `malloc_trim` reaches the end of the main thread's heap alone. Blocks beyond the same size have a mapping of their
    own, which freeing gives back. Steps do not pay for it: their arrays are kept from step to step, and the runtime's
    buffers have an allocator of their own. Nothing happens where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _BOUND)
        mallopt(_M_MMAP_THRESHOLD, _BOUND)


def settle() -> None:
    """What there is now stays: later collections need not look at it, which takes 30 ms for what a server imports."""
    gc.collect()
    gc.freeze()


def release() -> None:
    """Give back whatever is free; some milliseconds, in which others run except while garbage is collected."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def run_largest_step(model: StepModel, *, max_batch: int, token_budget: int = TOKEN_BUDGET) -> None:
    """Run a step as large as any that requests can ask for, at the end of the context; what the caches hold is lost.

    The runtime keeps what its steps once needed and has no call that gives it back. So it is asked for at the start,
    and too little memory is an error at the start, too. With the embedded checkpoint its pool has 24 MiB after one
    request and 44 to 61 after this step. Steps of many shapes fill it less densely: under load it came to 59, and to 83
    with long prompts. Nothing is run where the caches have no room for a block.
    """
    own = model.num_pages // model.replicas
    rows = min(max_batch, model.num_pages)
    each = min(-(-model.max_length // model.page_size), own // -(-rows // model.replicas))
    length, width = min(model.max_length, each * model.page_size), model.block_size
    tokens = min(max(1, token_budget // rows - width), length - width)
    pages = dealt(rows, each, num_pages=model.num_pages, replicas=model.replicas)
    if tokens < 1 or pages is None:
        return
    cached = length - width - tokens
    model.step(
        [
            StepRow(
                tokens=[1] * tokens,
                cache_length=cached,
                pages=pages[row],
                draft_tokens=[1] * width,
                lookback=[1] * min(model.lookback_length, cached),
                seed=row,
                temperature=1.0,
            )
            for row in range(rows)
        ],
        width=width,
        draft=True,
    )
