"""Hand out the pages of the paged caches.

A page is `page_size` consecutive positions of one request, in every cache leaf at once. A request gets
all pages that it can ever need when it starts, so it never stops half-way for lack of memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from specdecode.core.errors import DeviceError


class PageAllocator:
    """Free pages, handed out lowest number first so that equal runs get equal pages.

    Args:
        num_pages: of all replicas, each having the same number of consecutive ones.
        page_size: positions of a page.
        replicas: a request's pages are all of one of them, the one that has most free.
    """

    def __init__(self, num_pages: int, page_size: int, replicas: int = 1) -> None:
        if num_pages < 1 or page_size < 1 or num_pages % replicas:
            raise ValueError(f"a cache needs pages: num_pages={num_pages}, page_size={page_size}, replicas={replicas}")
        self.num_pages = num_pages
        self.page_size = page_size
        self._own = num_pages // replicas
        self._free = [list(range(first, first + self._own)) for first in range(0, num_pages, self._own)]
        self._used: set[int] = set()

    @property
    def available(self) -> int:
        """Pages that nobody owns."""
        return sum(map(len, self._free))

    def replica(self, page: int) -> int:
        """Whose page it is."""
        return page // self._own

    def pages_for(self, positions: int) -> int:
        """Pages that cover this many positions."""
        return -(-positions // self.page_size)

    def check_fits(self, positions: int, what: str) -> None:
        """Refuse what could not run even alone.

        Raises:
            DeviceError: the whole cache, or a replica's, has fewer pages.
        """
        needed = self.pages_for(positions)
        if needed > self._own:
            raise DeviceError(
                f"{what} does not fit: it needs {needed} cache pages ({positions} positions), and the "
                "cache has "
                f"{self._own} pages of {self.page_size}. Shorten the prompt, lower --max-tokens, "
                "or give the "
                "cache more pages."
            )

    def allocate(self, positions: int) -> list[int] | None:
        """Pages for this many positions, or None while too few are free."""
        needed = self.pages_for(positions)
        free = max(self._free, key=len)
        if needed > len(free):
            return None
        pages = [heapq.heappop(free) for _ in range(needed)]
        self._used.update(pages)
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Take pages back; each must have been handed out and not yet returned."""
        for page in pages:
            if page not in self._used:
                raise ValueError(f"page {page} is not in use")
            self._used.remove(page)
            heapq.heappush(self._free[self.replica(page)], page)


def dealt(requests: int, each: int, *, num_pages: int, replicas: int) -> list[tuple[int, ...]] | None:
    """Pages for requests of the same size, replica after replica; None where a replica has too few."""
    own = num_pages // replicas
    if -(-requests // replicas) * each > own:
        return None
    pages, free = [], [replica * own for replica in range(replicas)]
    for request in range(requests):
        replica = request * replicas // requests
        pages.append(tuple(range(free[replica], free[replica] + each)))
        free[replica] += each
    return pages
