"""An indexer with random weights and keys, and its scores by the CPU's functions."""

from std.collections import Array
from std.math import ceildiv, sqrt
from kernels.common import F32P, I32P, W, at, bf16, bf16_row, rope, rope_table
from kernels.gpu.indexer import index
from kernels.indexer import score8
from kernels.layout import Leaf
from kernels.quant import BF16, E4M3, qdq_fp8, qdq_mxfp4
from room import Floats, Ints, Memory, Room
from stored import Stored, stored, times

comptime PAGE = 64
comptime OFFSET = 3  # key rows on a page before this source's own
comptime BEFORE = 6  # rows of a sequence


@fieldwise_init
struct Sizes(Copyable, ImplicitlyCopyable, Movable):
    """Rows t of d columns and a latent of nq, heads of dim columns, of which 2 half are turned; nb blocks of `size`.

    role: 0 none, 1 publishes candidate blocks, 2 chooses among candidate blocks.
    """

    var t: Int
    var d: Int
    var nq: Int
    var heads: Int
    var dim: Int
    var half: Int
    var top_k: Int
    var nb: Int
    var size: Int
    var role: Int
    var ratio: Int
    var context: Int

    def slots(self) -> Int:
        return PAGE // self.ratio + 8

    def width(self) -> Int:
        """Pages of a sequence."""
        return ceildiv(self.context + 1, PAGE) + 1

    def pages(self) -> Int:
        """Pages of all sequences."""
        return ceildiv(self.t, BEFORE) * self.width()


@fieldwise_init
struct Indexer(Copyable, ImplicitlyCopyable, Movable):
    """All that the kernel reads."""

    var sizes: Sizes
    var exact: Bool
    var keys: Floats
    var x: Floats
    var latent: Floats
    var query: Stored
    var weigh: Stored
    var freq: Floats
    var seq: Ints
    var pos: Ints
    var candidates: Ints
    var table: Memory[DType.uint32]


def indexer_of(mut room: Room, s: Sizes, exact: Bool) raises -> Indexer:
    """Keys are FP4 values in an exact run."""
    var keys = room.floats(s.pages() * s.slots() * s.dim, 71)
    qdq_mxfp4(keys.h(), keys.n, exact)
    room.send(keys)
    return indexer_with(room, s, exact, keys)


def indexer_with(mut room: Room, s: Sizes, exact: Bool, keys: Floats) raises -> Indexer:
    """Sequences of BEFORE rows near the end of a context, some rows without a position."""
    var pages = s.pages()
    var seq = List[Int]()
    var pos = List[Int]()
    var candidates = List[Int]()
    for r in range(s.t):
        var p = s.context - BEFORE + r % BEFORE - (r // BEFORE) * 5 if r % 11 != 9 else -1
        seq.append(r // BEFORE)
        pos.append(p)
        var newest = (max((p + 1) // s.ratio, 1) - 1) // s.size
        var have = min(s.nb, newest + 1) if p >= 0 else 0
        for i in range(s.nb):
            var block = newest if i == have - 1 else i * max(1, newest // max(have, 1))
            candidates.append(block if i < have else -1)
    var table = room.make[DType.uint32](pages)
    for i in range(pages):
        table.h()[unsafe_offset=i] = UInt32(pages - 1 - i)
    room.send(table)
    return Indexer(
        s, exact, keys, room.floats(s.t * s.d, 1, 1, exact), room.floats(s.t * s.nq, 2, 1, exact),
        stored[E4M3](room, s.heads * s.dim, s.nq, 3, 119), stored[BF16](room, s.heads, s.d, 5),
        room.floats(s.half, 6), room.ints(seq), room.ints(pos), room.ints(candidates), table,
    )


def run_index(mut room: Room, i: Indexer, chosen: I32P, blocks: I32P, first: Int, t: Int) raises:
    """Rows first … first + t - 1 on the device."""
    var s = i.sizes
    var layer = room.ints([0, s.ratio, 0, 0, OFFSET, PAGE, 128, 0, 1, s.role, s.size, 6, 20]).d()
    index(
        room.ctx, chosen, blocks, i.keys.d(), i.x.d().unsafe_offset(first * s.d),
        i.latent.d().unsafe_offset(first * s.nq), i.candidates.d().unsafe_offset(first * s.nb),
        i.seq.d().unsafe_offset(first), i.pos.d().unsafe_offset(first), i.table.d(), i.query.codes.d(),
        i.query.scales.d(), i.weigh.codes.d(), i.freq.d(), layer, room.mode(i.exact), t, s.d, s.nq, s.heads, s.dim,
        s.half, s.top_k, s.nb, s.slots(), s.width(), s.width() * s.slots(),
    )


@fieldwise_init
struct Scored(Copyable, Movable):
    """A row's eligible keys in ascending order, and their scores."""

    var ids: List[Int]
    var scores: List[Float32]


def host_scores(mut room: Room, i: Indexer, r: Int) raises -> Scored:
    """What row r may choose from; FP8 latent, FP4 query heads, weights over heads."""
    var s = i.sizes
    var leaf = Leaf(i.keys.h(), 1, s.slots(), s.dim, i.table.h(), s.width(), PAGE)
    var latent = room.host[DType.float32](s.nq)
    var query = room.host[DType.float32](s.heads * s.dim)
    var weights = room.host[DType.float32](s.heads)
    var turn = room.host[DType.float32](2 * s.half)
    var p = Int(i.pos.h()[unsafe_offset=r])
    qdq_fp8(latent, i.latent.h().unsafe_offset(r * s.nq), s.nq, i.exact)
    times[BF16](weights, s.heads, i.x.h().unsafe_offset(r * s.d), s.d, 1, i.weigh, 0, s.heads)
    var scale = 1 / sqrt(Float32(s.dim)) / sqrt(Float32(s.heads))
    for h in range(s.heads):
        weights[unsafe_offset=h] = bf16(bf16(at(weights, h), i.exact) * scale, i.exact)
    times[E4M3](query, s.heads * s.dim, latent, s.nq, 1, i.query, 0, s.heads * s.dim)
    rope_table(turn, i.freq.h(), p, s.half)
    for h in range(s.heads):
        var head = query.unsafe_offset(h * s.dim)
        bf16_row(head, s.dim, i.exact)
        rope(head.unsafe_offset(s.dim - 2 * s.half), turn, s.half, 1, i.exact)
        qdq_mxfp4(head, s.dim, i.exact)
    var visible = (p + 1) // s.ratio
    var ids = List[Int]()
    for b in range(s.nb if s.role == 2 else 1):
        var block = Int(i.candidates.h()[unsafe_offset=r * s.nb + b]) if s.role == 2 else 0
        if block < 0:
            break
        var end = min(visible, (block + 1) * s.size) if s.role == 2 else visible
        for j in range(block * s.size if s.role == 2 else 0, end):
            ids.append(j)
    var scores = List[Float32]()
    for first in range(0, len(ids), W):
        var some = Array[F32P, W](fill=query)
        comptime for lane in range(W):
            var row = ids[min(first + lane, len(ids) - 1)]
            some[lane] = leaf.compressed(Int(i.seq.h()[unsafe_offset=r]), OFFSET, s.ratio, row)
        var eight = score8(query, some, weights, s.heads, s.dim, i.exact)
        for lane in range(min(W, len(ids) - first)):
            scores.append(eight[lane])
    return Scored(ids^, scores^)
