"""Products x Wᵀ on tensor cores for weights in their stored format, batch-invariant.

A warp owns 16 outputs and one of SPLIT spans of the columns. Each lane loads 16 bytes of two weight rows, decodes them
to bfloat16 in registers and feeds m16n8k16 MMAs; the order of the columns inside an MMA is free, so lanes keep the
bytes they loaded and pick the activations that belong to them. A result is formed by one chain of MMAs per span and
one sum over the spans, whatever the number of rows.

Legend: g = lane / 4 (row of a tile), q = lane % 4 (its part of the columns), NT tiles of eight activation rows.
"""

from std.collections import Array
from std.memory import AddressSpace, bitcast
from max.gpu import lane_id
from max.gpu.compute.mma import mma
from max.gpu.memory import async_copy, async_copy_commit_group, async_copy_wait_group, external_memory
from max.gpu.primitives.warp import shuffle_idx
from ..common import I32P, U8P
from ..linear import row_bytes, scale_row
from ..quant import BF16, E2M1, E4M3
from .base import BF16P
from .staged import PLANES

comptime Words = SIMD[DType.uint32, 4]
comptime Pair = SIMD[DType.bfloat16, 2]
comptime Acc = SIMD[DType.float32, 4]
comptime Ring = Pointer[UInt8, MutAnyOrigin, address_space=AddressSpace.SHARED]
comptime STAGES = 4  # chunks under way or in use per warp
comptime Weight = Pointer[UInt8, MutUntrackedOrigin]


@always_inline
def lane_columns[fmt: Int]() -> Int:
    """Columns in a lane's 16 bytes of one row."""
    comptime if fmt == E4M3:
        return 16
    elif fmt == E2M1:
        return 32
    else:
        return 8


@always_inline
def chunk_columns[fmt: Int]() -> Int:
    """Columns that four lanes load together."""
    return 4 * lane_columns[fmt]()


@always_inline
def load16(p: U8P) -> Words:
    return p.unsafe_bitcast[UInt32]().unsafe_load[width=4, alignment=16]()


@always_inline
def pair(bits: UInt32) -> Pair:
    return bitcast[DType.bfloat16, 2](bits)


@always_inline
def scaled(bits: UInt32, factor: UInt32) -> Pair:
    return pair(bits) * pair(factor)


@always_inline
def factor_of[fmt: Int](scale: UInt8) -> UInt32:
    """Two bfloat16 copies of the scale times the power of two that a decoder's exponents lack.

    Scales beyond 2^7 (E4M3) and 2 (E2M1) do not fit and saturate; a checkpoint with such weights is refused on load.
    """
    comptime bias = UInt32(120) if fmt == E4M3 else UInt32(126)
    var field = min(UInt32(scale) + bias, UInt32(254)) << 7
    return field | (field << 16)


@always_inline
def decode[fmt: Int, j: Int](w: Words, factor: UInt32) -> Tuple[Pair, Pair]:
    """The four weights of one row that go into MMA j of a chunk."""
    comptime if fmt == E4M3:
        var odd = w[j]
        var even = odd << 8
        return (
            scaled((even & 0x80008000) | ((even & 0x7F007F00) >> 4), factor),
            scaled((odd & 0x80008000) | ((odd & 0x7F007F00) >> 4), factor),
        )
    elif fmt == E2M1:
        var a = w[j // 2] << UInt32(12 - 8 * (j % 2))
        var b = w[j // 2] << UInt32(8 - 8 * (j % 2))
        return (
            scaled((a & 0x80008000) | ((a & 0x70007000) >> 6), factor),
            scaled((b & 0x80008000) | ((b & 0x70007000) >> 6), factor),
        )
    else:
        return (pair(w[2 * j]), pair(w[2 * j + 1]))


@always_inline
def low_halves(a: UInt32, b: UInt32) -> UInt32:
    return (a & 0xFFFF) | (b << 16)


@always_inline
def high_halves(a: UInt32, b: UInt32) -> UInt32:
    return (a >> 16) | (b & 0xFFFF0000)


@always_inline
def activations[fmt: Int, j: Int](x: Words) -> SIMD[DType.bfloat16, 4]:
    """The activations that meet `decode[fmt, j]`; x holds the eight consecutive columns of MMAs j and its neighbour."""
    var first: UInt32
    var second: UInt32
    comptime if fmt == E4M3:
        comptime at = 2 * (j % 2)
        first = low_halves(x[at], x[at + 1])
        second = high_halves(x[at], x[at + 1])
    elif fmt == E2M1:
        comptime at = j % 2
        first = low_halves(x[at], x[at + 2])
        second = high_halves(x[at], x[at + 2])
    else:
        comptime at = 2 * (j % 2)
        first = x[at]
        second = x[at + 1]
    return pair(first).join(pair(second))


@always_inline
def block_memory() -> Ring:
    """The block's dynamic shared memory; a launch says how much."""
    var p = external_memory[UInt8, address_space=AddressSpace.SHARED, alignment=16]()
    return p.unsafe_origin_cast[MutAnyOrigin]()


struct Panels[fmt: Int, M: Int](Copyable, Movable):
    """Where a lane's weights of M tiles of 16 outputs lie (rows g and g + 8 of each), and where scales are loaded from.

    Bases are the same in all lanes and offsets have 32 bits, which saves registers: a matrix is below 4 GiB.
    """

    var weights: Array[Weight, Self.M]
    var scales: Array[Weight, Self.M]
    var weight_at: Array[UInt32, 2 * Self.M]
    var scale_at: Array[UInt32, Self.M]
    var words: Bool  # scales of four blocks may be loaded as one word

    def __init__(out self, k: Int):
        self.weights = Array[Weight, Self.M](uninitialized=True)
        self.scales = Array[Weight, Self.M](uninitialized=True)
        self.weight_at = Array[UInt32, 2 * Self.M](fill=0)
        self.scale_at = Array[UInt32, Self.M](fill=0)
        self.words = k % 128 == 0

    @always_inline
    def set(mut self, m: Int, w: U8P, s: U8P, n0: Int, n: Int, k: Int):
        """Panel m covers outputs n0 … n0 + 15 of weight w [n, k]; rows past the last output repeat it."""
        var lane = Int(lane_id())
        self.weights[m] = w.unsafe_origin_cast[MutUntrackedOrigin]()
        self.scales[m] = s.unsafe_origin_cast[MutUntrackedOrigin]()
        comptime for half in range(2):
            self.weight_at[2 * m + half] = UInt32(min(n0 + (lane >> 2) + 8 * half, n - 1) * row_bytes[Self.fmt](k))
        self.scale_at[m] = UInt32(scale_row[Self.fmt](min(n0 + (lane & 15), n - 1), k))

    @always_inline
    def weight(self, r: Int, column: Int32) -> Weight:
        """The bytes of a column in row r of the 2 M."""
        return self.weights[r // 2].unsafe_offset(Int(self.weight_at[r] + UInt32(row_bytes[Self.fmt](Int(column)))))

    @always_inline
    def scale_word(self, m: Int, i: Int32, begin: Int32, end: Int32) -> UInt32:
        """A lane's scales for chunks from the i-th on: each scale is loaded once in a warp, and shuffled from there.

        E4M3, 64 chunks: blocks lane, lane + 32, … of the one row of scales. E2M1, two chunks: the four blocks of
        chunk i + lane / 16 in row lane % 16.
        """
        var base = self.scales[m].unsafe_offset(Int(self.scale_at[m]))
        var word = UInt32(0)
        var last = (end - 1) // 32
        comptime if Self.fmt == E4M3:
            var first = begin // 32 + 2 * i + Int32(lane_id())
            comptime for byte in range(4):
                word |= UInt32(base[unsafe_offset=Int(min(first + Int32(32 * byte), last))]) << UInt32(8 * byte)
        elif Self.fmt == E2M1:
            var first = begin // 32 + 4 * (i + (Int32(lane_id()) >> 4))
            if self.words:
                return base.unsafe_offset(Int(min(first, last & ~3))).unsafe_bitcast[UInt32]()[]
            comptime for byte in range(4):
                word |= UInt32(base[unsafe_offset=Int(min(first + Int32(byte), last))]) << UInt32(8 * byte)
        return word


@always_inline
def scale_of[fmt: Int, half: Int](word: UInt32, i: UInt32) -> UInt8:
    """This lane's scale of chunk i in row g (half 0) or g + 8, from the words of a warp."""
    var lane = UInt32(lane_id())
    comptime if fmt == E4M3:
        var block = 2 * (i & 63) + ((lane & 3) >> 1)
        return UInt8((shuffle_idx(word, block & 31) >> (8 * (block >> 5))) & 255)
    else:
        var from_ = (lane >> 2) + UInt32(8 * half) + 16 * (i & 1)
        return UInt8((shuffle_idx(word, from_) >> (8 * (lane & 3))) & 255)


@always_inline
def stage_bytes[M: Int]() -> Int:
    """Bytes of one chunk of M panels in a warp's ring: 16 a lane and row."""
    return 2 * M * 32 * 16


@always_inline
def fetch[fmt: Int, M: Int](stage: Ring, panels: Panels[fmt, M], column: Int32):
    """Starts copying a lane's share of one chunk; the same lane reads it back, so no other has to wait for it."""
    comptime for r in range(2 * M):
        async_copy[16, l2_prefetch=256](
            panels.weight(r, column).unsafe_address_space_cast[AddressSpace.GLOBAL](), stage.unsafe_offset(r * 512)
        )


struct Walk[fmt: Int](Copyable, Movable):
    """A lane's way through columns begin … end - 1, chunk by chunk; past the end it stays at the first column."""

    var begin: Int32
    var end: Int32
    var own: Int32
    var count: Int32

    def __init__(out self, begin: Int, end: Int):
        self.begin = Int32(begin)
        self.end = Int32(end)
        self.own = self.begin + Int32(Int(lane_id()) & 3) * Int32(lane_columns[Self.fmt]())
        self.count = (self.end - self.begin + Int32(chunk_columns[Self.fmt]() - 1)) // Int32(chunk_columns[Self.fmt]())

    @always_inline
    def inside(self, i: Int32) -> Bool:
        return self.own + i * Int32(chunk_columns[Self.fmt]()) < self.end

    @always_inline
    def column(self, i: Int32) -> Int32:
        return self.own + i * Int32(chunk_columns[Self.fmt]()) if self.inside(i) else self.begin


@always_inline
def span[
    fmt: Int, M: Int, NT: Int
](
    mut acc: Array[Acc, M * NT], ring: Ring, panels: Panels[fmt, M], begin: Int, end: Int, x: BF16P,
    offsets: Array[Int, NT], plane: Int, parts: Int,
):
    """Adds columns begin … end - 1 of every panel to acc [M, NT].

    offsets[i]: where row g of activation tile i starts in a plane. Weights travel through a ring of STAGES chunks in
    shared memory: a weight is read once, from far away, and registers could not hold enough of them under way.
    """
    if begin >= end:
        return
    if parts == 1:
        run[fmt, M, NT, 1](acc, ring, panels, Walk[fmt](begin, end), x, offsets, plane)
    else:
        run[fmt, M, NT, PLANES](acc, ring, panels, Walk[fmt](begin, end), x, offsets, plane)


@always_inline
def run[
    fmt: Int, M: Int, NT: Int, P: Int
](
    mut acc: Array[Acc, M * NT], ring: Ring, panels: Panels[fmt, M], walk: Walk[fmt], x: BF16P,
    offsets: Array[Int, NT], plane: Int,
):
    """The loop of `span` over P planes."""
    comptime period = Int32(64 if fmt == E4M3 else 2)  # chunks whose scales a warp holds
    comptime stage = stage_bytes[M]()
    comptime V = lane_columns[fmt]() // 8
    var mine = ring.unsafe_offset(Int(lane_id()) * 16)
    var scales = Array[UInt32, M](fill=0)
    var next = Array[UInt32, M](fill=0)
    comptime if fmt != BF16:
        comptime for m in range(M):
            next[m] = panels.scale_word(m, 0, walk.begin, walk.end)
    comptime for i in range(STAGES - 1):
        if Int32(i) < walk.count:
            fetch[fmt, M](mine.unsafe_offset(i * stage), panels, walk.column(Int32(i)))
        async_copy_commit_group()
    # Few activations are loaded a chunk ahead; more would not fit beside the results.
    comptime ahead = P == 1 and V * NT <= 8
    var rows = Array[Words, V * NT](fill=Words(0))
    comptime if ahead:
        load_rows[fmt, NT](rows, x.unsafe_offset(Int(walk.column(0))), offsets)
    var head = Int32(0)
    var tail = Int32(STAGES - 1)
    for step in range(Int(walk.count)):
        var i = Int32(step)
        if i + Int32(STAGES - 1) < walk.count:
            fetch[fmt, M](mine.unsafe_offset(Int(tail) * stage), panels, walk.column(i + Int32(STAGES - 1)))
        async_copy_commit_group()
        comptime if fmt != BF16:
            if i % period == 0:
                comptime for m in range(M):
                    scales[m] = next[m]
                    next[m] = panels.scale_word(m, i + period, walk.begin, walk.end)
        var inside = walk.inside(i)
        var factors = Array[UInt32, 2 * M](fill=0)
        comptime if fmt != BF16:
            comptime for m in range(M):
                comptime for half in range(2):
                    var factor = factor_of[fmt](scale_of[fmt, half](scales[m], UInt32(i)))
                    factors[2 * m + half] = factor if inside else UInt32(0)
        async_copy_wait_group(Int32(STAGES - 1))
        var words = Array[Words, 2 * M](fill=Words(0))
        comptime for r in range(2 * M):
            var at = mine.unsafe_offset(Int(head) * stage + r * 512)
            words[r] = at.unsafe_bitcast[UInt32]().unsafe_load[width=4, alignment=16]()
            comptime if fmt == BF16:
                words[r] = words[r] if inside else Words(0)
        comptime for part in range(P):
            var now = rows.copy()
            comptime if ahead:
                load_rows[fmt, NT](rows, x.unsafe_offset(Int(walk.column(i + 1))), offsets)
            else:
                load_rows[fmt, NT](now, x.unsafe_offset(part * plane + Int(walk.column(i))), offsets)
            multiply[fmt, M, NT](acc, words, factors, now)
        head = head + 1 if head < Int32(STAGES - 1) else 0
        tail = tail + 1 if tail < Int32(STAGES - 1) else 0


@always_inline
def load_rows[fmt: Int, NT: Int](mut rows: Array[Words, lane_columns[fmt]() // 8 * NT], x: BF16P, offsets: Array[Int, NT]):
    """This lane's columns of its row in every activation tile, eight a vector."""
    comptime V = lane_columns[fmt]() // 8
    comptime for i in range(NT):
        comptime for v in range(V):
            var at = x.unsafe_offset(offsets[i] + v * 8).unsafe_bitcast[UInt32]()
            rows[i * V + v] = at.unsafe_load[width=4, alignment=16]()


@always_inline
def multiply[
    fmt: Int, M: Int, NT: Int
](
    mut acc: Array[Acc, M * NT], words: Array[Words, 2 * M], factors: Array[UInt32, 2 * M],
    rows: Array[Words, lane_columns[fmt]() // 8 * NT],
):
    """One chunk of weights times the activations that belong to it."""
    comptime V = lane_columns[fmt]() // 8
    comptime for j in range(2 * V):
        comptime for m in range(M):
            var top = decode[fmt, j](words[2 * m], factors[2 * m])
            var bottom = decode[fmt, j](words[2 * m + 1], factors[2 * m + 1])
            var a = top[0].join(bottom[0]).join(top[1].join(bottom[1]))
            comptime for i in range(NT):
                var d = acc[m * NT + i]
                mma(d, a, activations[fmt, j](rows[i * V + j // 2]), acc[m * NT + i])
                acc[m * NT + i] = d
