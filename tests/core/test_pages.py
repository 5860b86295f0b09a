"""Pages are handed out once, in order, and what cannot fit is refused."""

from __future__ import annotations

import pytest

from specdecode.core.cache.pages import PageAllocator, dealt
from specdecode.core.errors import DeviceError, ExitCode


def test_pages_cover_positions_lowest_number_first():
    pages = PageAllocator(6, 4)
    assert [pages.pages_for(n) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    first, second = pages.allocate(5), pages.allocate(8)
    assert (first, second, pages.available) == ([0, 1], [2, 3], 2)
    pages.free(first)
    assert pages.allocate(12) == [0, 1, 4]


def test_too_few_free_pages_are_no_error_and_take_nothing():
    pages = PageAllocator(2, 4)
    assert pages.allocate(9) is None
    assert pages.available == 2


def test_a_page_is_freed_once():
    pages = PageAllocator(2, 4)
    [page] = pages.allocate(1)
    pages.free([page])
    with pytest.raises(ValueError, match="page 0 is not in use"):
        pages.free([page])


def test_what_never_fits_is_a_device_problem():
    with pytest.raises(DeviceError, match=r"^A request does not fit: it needs 3 cache pages") as caught:
        PageAllocator(2, 4).check_fits(9, "A request")
    assert caught.value.exit_code is ExitCode.DEVICE
    PageAllocator(3, 4).check_fits(9, "A request")


@pytest.mark.parametrize(("num_pages", "page_size"), [(0, 4), (4, 0)])
def test_a_cache_needs_pages(num_pages, page_size):
    with pytest.raises(ValueError, match="a cache needs pages"):
        PageAllocator(num_pages, page_size)


def test_a_request_s_pages_are_all_of_the_replica_with_most_free_ones():
    pages = PageAllocator(8, 4, replicas=2)
    assert [pages.allocate(8), pages.allocate(4), pages.allocate(4)] == [[0, 1], [4], [5]]
    assert [pages.replica(page) for page in (3, 4)] == [0, 1]
    assert pages.allocate(12) is None  # four are free, two of each
    pages.free([4, 5])
    assert pages.allocate(16) == [4, 5, 6, 7]
    with pytest.raises(DeviceError, match=r"it needs 5 cache pages \(17 positions\), and the cache has 4 pages"):
        pages.check_fits(17, "A request")
    with pytest.raises(ValueError, match="replicas=3"):
        PageAllocator(8, 4, replicas=3)


def test_equal_requests_are_dealt_out_replica_after_replica():
    assert dealt(3, 2, num_pages=8, replicas=2) == [(0, 1), (2, 3), (4, 5)]
    assert dealt(1, 4, num_pages=8, replicas=2) == [(0, 1, 2, 3)]
    assert dealt(5, 2, num_pages=8, replicas=2) is None
