"""Attention over random cache pages: the kernels, and a plain float64 reference that runs on the device as well."""

from std.math import ceildiv, exp, sqrt
from max.gpu import block_idx, thread_idx
from kernels.common import F32P, I32P, U32P, at, bf16
from kernels.gpu.attention import attend
from kernels.gpu.rope import turn_of
from kernels.layout import BLOCK, KV_OFFSET, LAYER, Leaf, PAGE_SIZE, RATIO, WINDOW
from room import Floats, Ints, Memory, Room

comptime PAGE = 16
comptime WIDTH = 96  # pages of a sequence
comptime LAYERS = 2
comptime KV_SLOTS = 20
comptime TOGETHER = 6  # rows of a sequence
comptime NOTHING = Float32.MIN


@fieldwise_init
struct Shape(Copyable, ImplicitlyCopyable, Movable):
    """Rows t with `heads` heads of k columns; a window, chosen compressed rows, and rows of a draft block.

    near: positions below 40, where windows and choices are cut short; otherwise around 1200.
    """

    var t: Int
    var heads: Int
    var k: Int
    var half: Int
    var window: Int
    var chosen: Int
    var ratio: Int
    var block: Int
    var near: Bool

    def slots(self) -> Int:
        return self.window + self.chosen + self.block

    def position(self, r: Int) -> Int:
        return (r * 7) % 40 if self.near else 1000 + r % TOGETHER + (r * 37) % 400


@fieldwise_init
struct Attention(Copyable, ImplicitlyCopyable, Movable):
    """All that the kernels read."""

    var shape: Shape
    var q: Floats
    var window: Floats
    var rows: Floats
    var own: Floats
    var sink: Floats
    var freq: Floats
    var seq: Ints
    var pos: Ints
    var last: Ints
    var chosen: Ints
    var table: Memory[DType.uint32]
    var layer: Ints
    var mode: Ints


def attention_of(mut room: Room, s: Shape, exact: Bool) raises -> Attention:
    """Pages in disorder, rows without a position, and rows that chose fewer rows than they might."""
    var pages = ceildiv(s.t, TOGETHER) * WIDTH
    var seq = List[Int]()
    var pos = List[Int]()
    var last = List[Int]()
    var chosen = List[Int]()
    var most = PAGE // max(s.ratio, 1) * WIDTH
    for r in range(s.t):
        var p = s.position(r)
        seq.append(r // TOGETHER)
        pos.append(-1 if r % 11 == 7 else p)
        last.append(p)
        var complete = p // max(s.ratio, 1)
        var want = min(s.chosen, complete) // (3 if r % 13 == 4 else 1)
        var step = max(1, complete // max(want, 1))
        for i in range(s.chosen):
            chosen.append(min(i * step, most - 1) if i < want else -1)
    var table = room.make[DType.uint32](pages)
    for i in range(pages):
        table.h()[unsafe_offset=i] = UInt32((i * 5 + 3) % pages)
    room.send(table)
    return Attention(
        s, room.floats(s.t * s.heads * s.k, 1, 1, exact), room.floats(pages * LAYERS * PAGE * s.k, 77, 1, exact),
        room.floats(pages * KV_SLOTS * s.k, 12345, 1, exact), room.floats((s.t + 32) * s.k, 999, 1, exact),
        room.floats(s.heads, 5), room.floats(s.half, 6), room.ints(seq), room.ints(pos), room.ints(last),
        room.ints(chosen), table, room.ints([1, s.ratio, 3, 0, 0, PAGE, s.window, s.block, 1, 0, 8, 6, 20]),
        room.ints([1 if exact else 0, 1]),
    )


def run_attention(mut room: Room, a: Attention, o: F32P, first: Int, t: Int) raises:
    """Rows first … first + t - 1; first is where a draft block starts, if there are any."""
    var s = a.shape
    attend(
        room.ctx, o, a.window.d(), a.rows.d(), a.q.d().unsafe_offset(first * s.heads * s.k),
        a.chosen.d().unsafe_offset(first * s.chosen), a.own.d().unsafe_offset(first * s.k),
        a.seq.d().unsafe_offset(first), a.pos.d().unsafe_offset(first), a.last.d().unsafe_offset(first), a.table.d(),
        a.sink.d(), a.freq.d(), a.layer.d(), a.mode.d(), t, s.heads, s.k, s.half, s.chosen, LAYERS, PAGE, KV_SLOTS,
        WIDTH,
    )


@always_inline
def key_of(
    slot: Int, r: Int, window: F32P, rows: F32P, chosen: I32P, own: F32P, seq: I32P, last: I32P, table: U32P, k: Int,
    n_chosen: Int, layer: I32P,
) -> Int:
    """Address of the key in a slot of row r, 0 if there is none: window positions, chosen rows, a draft block's."""
    var span = Int(layer[unsafe_offset=WINDOW])
    var s = Int(seq[unsafe_offset=r])
    if slot < span:
        var position = Int(last[unsafe_offset=r]) - span + 1 + slot
        var near = Leaf(window, LAYERS, PAGE, k, table, WIDTH, Int(layer[unsafe_offset=PAGE_SIZE]))
        return Int(near.window(s, Int(layer[unsafe_offset=LAYER]), position)) if position >= 0 else 0
    if slot < span + n_chosen:
        var row = Int(chosen[unsafe_offset=r * n_chosen + slot - span])
        var ratio = Int(layer[unsafe_offset=RATIO])
        var far = Leaf(rows, 1, KV_SLOTS, k, table, WIDTH, Int(layer[unsafe_offset=PAGE_SIZE]))
        return Int(far.compressed(s, Int(layer[unsafe_offset=KV_OFFSET]), ratio, row)) if row >= 0 and ratio > 0 else 0
    var block = Int(layer[unsafe_offset=BLOCK])
    return Int(own.unsafe_offset((r // block * block + slot - span - n_chosen) * k))


def logit_kernel(
    logits: F32P, slots_: Int32, q: F32P, window: F32P, rows: F32P, chosen: I32P, own: F32P, seq: I32P, last: I32P,
    table: U32P, heads_: Int32, k_: Int32, n_chosen: Int32, layer: I32P,
):
    """Logits [T, H, slots], one a thread; grid (slots H / 256, T)."""
    var r = Int(block_idx.y)
    var i = Int(block_idx.x) * 256 + Int(thread_idx.x)
    var slots = Int(slots_)
    var heads = Int(heads_)
    var k = Int(k_)
    if i >= slots * heads:
        return
    var slot = i % slots
    var head = i // slots
    var address = key_of(slot, r, window, rows, chosen, own, seq, last, table, k, Int(n_chosen), layer)
    var logit = NOTHING
    if address != 0:
        var key = F32P(unsafe_from_address=address)
        var total = Float64(0)
        for c in range(k):
            total += Float64(at(q, (r * heads + head) * k + c)) * Float64(at(key, c))
        logit = Float32(total / Float64(sqrt(Float32(k))))
    logits[unsafe_offset=(r * heads + head) * slots + slot] = logit


def value_kernel(
    o: F32P, logits: F32P, slots_: Int32, pos: I32P, sink: F32P, freq: F32P, half: Int32, window: F32P, rows: F32P,
    chosen: I32P, own: F32P, seq: I32P, last: I32P, table: U32P, heads: Int32, k_: Int32, n_chosen: Int32,
    layer: I32P, mode: I32P,
):
    """Softmax with a sink, the sum of keys, and the turn back; grid (H, T), a pair of columns a thread."""
    var r = Int(block_idx.y)
    var head = Int(block_idx.x)
    var k = Int(k_)
    var c = 2 * Int(thread_idx.x)
    if c >= k:
        return
    var dst = o.unsafe_offset((r * Int(heads) + head) * k + c)
    var p = Int(pos[unsafe_offset=r])
    dst[unsafe_offset=0] = 0
    dst[unsafe_offset=1] = 0
    if p < 0:
        return
    var slots = Int(slots_)
    var row = logits.unsafe_offset((r * Int(heads) + head) * slots)
    var top = NOTHING
    for i in range(slots):
        top = max(top, at(row, i))
    var total = Float64(exp(at(sink, head) - top))
    var a = Float64(0)
    var b = Float64(0)
    for i in range(slots):
        var address = key_of(i, r, window, rows, chosen, own, seq, last, table, k, Int(n_chosen), layer)
        if address != 0:
            var e = Float64(exp(at(row, i) - top))
            var key = F32P(unsafe_from_address=address)
            total += e
            a += e * Float64(at(key, c))
            b += e * Float64(at(key, c + 1))
    var exact = mode[unsafe_offset=0] != 0
    var x = bf16(Float32(a / total), exact)
    var y = bf16(Float32(b / total), exact)
    var begin = k - 2 * Int(half)
    if c >= begin:
        var turn = turn_of(freq, p, (c - begin) // 2)
        var back = bf16(x * turn[0] + y * turn[1], exact)
        y = bf16(y * turn[0] - x * turn[1], exact)
        x = back
    dst[unsafe_offset=0] = x
    dst[unsafe_offset=1] = y


def reference(mut room: Room, a: Attention) raises -> F32P:
    """Outputs [T, H, K] of all rows."""
    var s = a.shape
    var o = room.make[DType.float32](s.t * s.heads * s.k)
    var logits = room.make[DType.float32](s.t * s.heads * s.slots())
    room.ctx.enqueue_function[logit_kernel](
        logits.d(), Int32(s.slots()), a.q.d(), a.window.d(), a.rows.d(), a.chosen.d(), a.own.d(), a.seq.d(),
        a.last.d(), a.table.d(), Int32(s.heads), Int32(s.k), Int32(s.chosen), a.layer.d(),
        grid_dim=(ceildiv(s.slots() * s.heads, 256), s.t), block_dim=256,
    )
    room.ctx.enqueue_function[value_kernel](
        o.d(), logits.d(), Int32(s.slots()), a.pos.d(), a.sink.d(), a.freq.d(), Int32(s.half), a.window.d(),
        a.rows.d(), a.chosen.d(), a.own.d(), a.seq.d(), a.last.d(), a.table.d(), Int32(s.heads), Int32(s.k),
        Int32(s.chosen), a.layer.d(), a.mode.d(), grid_dim=(s.heads, s.t), block_dim=ceildiv(s.k // 2, 32) * 32,
    )
    return room.fetch(o)
