"""Where a row's keys lie, for attention on the GPU.

A row's slots are cut into tiles by place: its window's positions, its chosen rows, then a draft block's own rows, each
of the three starting a new tile. What a tile gives depends on nothing but the row and the tile.
"""

from std.memory import AddressSpace
from ..common import F32P, I32P, U32P
from ..layout import BLOCK, KV_OFFSET, LAYER, PAGE_SIZE, RATIO, WINDOW
from .vectors import Four

comptime TILE = 16
comptime MAX_K = 512
comptime MAX_WINDOW = 128  # positions of a window that scratch memory is sized for
comptime MAX_BLOCK = 32  # rows of a draft block, likewise
comptime MAX_TILES = 64
comptime GROUP = 32  # columns that a warp sums
comptime Key = Pointer[Float32, MutAnyOrigin, address_space=AddressSpace.GLOBAL]


@always_inline
def nothing() -> Float32:
    return Float32.MIN


@always_inline
def tiles_up_to(n: Int) -> Int:
    return Int((UInt32(n) + UInt32(TILE - 1)) // UInt32(TILE))


@always_inline
def tiles_of(n_chosen: Int, layer: I32P) -> Int:
    """Tiles of every row of a layer."""
    var near = tiles_up_to(Int(layer[unsafe_offset=WINDOW]))
    return near + tiles_up_to(n_chosen) + tiles_up_to(Int(layer[unsafe_offset=BLOCK]))


@always_inline
def key_at(address: Int) -> Key:
    return Key(unsafe_from_address=address)


@always_inline
def load_key(key: Key, i: Int) -> Four:
    return key.unsafe_offset(i).unsafe_load[width=4, alignment=16]()


@always_inline
def keys_of(
    tile: Int, g: Int, r: Int, newest: Int, window: F32P, layers: Int, slots: Int, rows_leaf: F32P, kv_slots: Int,
    chosen: I32P, n_chosen: Int, own: F32P, k: Int, pages: U32P, layer: I32P,
) -> Tuple[Int, Int]:
    """Addresses of the keys in slots g and g + 8 of a tile, or 0; pages: those of the row's sequence."""
    var span = Int(layer[unsafe_offset=WINDOW])
    var near = tiles_up_to(span)
    var far = tiles_up_to(n_chosen)
    if tile >= near + far:
        var block = max(UInt32(layer[unsafe_offset=BLOCK]), 1)
        var j = UInt32((tile - near - far) * TILE + g)
        var first = UInt32(r) // block * block + j
        var low = Int(own.unsafe_offset(Int(first) * k)) if j < block else 0
        var high = Int(own.unsafe_offset(Int(first + 8) * k)) if j + 8 < block else 0
        return (low, high)
    # Both keys' loads go out together, without a branch between them: each waits for two, and the keys for it.
    var page_size = Int(layer[unsafe_offset=PAGE_SIZE])
    var base = window
    var stride = layers * slots
    var first = Int(layer[unsafe_offset=LAYER]) * slots
    var rows = UInt32(page_size)
    var a = newest - span + 1 + tile * TILE + g
    var b = a + 8
    if tile < near:
        a = a if tile * TILE + g < span else -1
        b = b if tile * TILE + g + 8 < span else -1
    else:
        var ratio = Int(layer[unsafe_offset=RATIO])
        var j = (tile - near) * TILE + g
        a = Int(chosen[unsafe_offset=r * n_chosen + min(j, n_chosen - 1)])
        b = Int(chosen[unsafe_offset=r * n_chosen + min(j + 8, n_chosen - 1)])
        a = a if j < n_chosen and ratio > 0 else -1
        b = b if j + 8 < n_chosen and ratio > 0 else -1
        base = rows_leaf
        stride = kv_slots
        first = Int(layer[unsafe_offset=KV_OFFSET])
        rows = rows // UInt32(max(ratio, 1))
    var row_a = UInt32(max(a, 0))
    var row_b = UInt32(max(b, 0))
    var page_a = Int(pages[unsafe_offset=Int(row_a // rows)])
    var page_b = Int(pages[unsafe_offset=Int(row_b // rows)])
    var low = Int(base.unsafe_offset((page_a * stride + first + Int(row_a % rows)) * k))
    var high = Int(base.unsafe_offset((page_b * stride + first + Int(row_b % rows)) * k))
    return (low if a >= 0 else 0, high if b >= 0 else 0)
