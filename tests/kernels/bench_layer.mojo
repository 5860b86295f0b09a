"""Times of attention, the indexer and a layer's small kernels at the released sizes."""

from std.math import ceildiv
from kernels.gpu.expand import SPREAD_COLUMNS, SPREAD_THREADS
from kernels.gpu.expand import expand as expand_gpu
from kernels.gpu.hyper import sublayer_in
from kernels.gpu.moe import combine_kernel
from kernels.gpu.rope import rope_heads
from kernels.gpu.routing import route_and_group
from kernels.gpu.staged import stage, stage_both
from kernels.gpu.attention import attend
from attention_case import KV_SLOTS, LAYERS, PAGE, Shape, WIDTH, attention_of
from clocks import random_floats, rounded, timed, warm
from index_layer import Sizes, indexer_with
from kernels.gpu.indexer import index
from room import Room

comptime D = 5120
comptime COPIES = 4  # residual copies
comptime MIXES = COPIES * (COPIES + 2)
comptime EXPERTS = 384
comptime CHOSEN = 6
comptime HEADS = 64
comptime K = 512
comptime FAR_COPIES = 32  # of the mixes' weight, which a step meets from far away


def told(name: String, t: Int, ns: Float64):
    print("time " + name + " T=" + String(t) + ": " + rounded(ns / 1000) + " us")


def bench_attention(mut room: Room, t: Int) raises:
    """A full window and 512 chosen rows."""
    room.clear()
    var ctx = room.ctx
    var a = attention_of(room, Shape(t, HEADS, K, 32, 128, 512, 2, 0, False), True)
    var o = room.device[DType.float32](t * HEADS * K).d()

    def run(i: Int) raises {imm}:
        attend(
            ctx, o, a.window.d(), a.rows.d(), a.q.d(), a.chosen.d(), a.own.d(), a.seq.d(), a.pos.d(), a.last.d(),
            a.table.d(), a.sink.d(), a.freq.d(), a.layer.d(), a.mode.d(), t, HEADS, K, 32, 512, LAYERS, PAGE, KV_SLOTS,
            WIDTH,
        )

    told("attention", t, timed(ctx, run))


def bench_index(mut room: Room, t: Int, context: Int, role: Int) raises:
    """Queries, scores and choice of 512 rows; ratio 2."""
    room.clear()
    var ctx = room.ctx
    var s = Sizes(t, D, 1280, 32, 128, 32, 512, 128, 64, role, 2, context)
    var keys = random_floats(room, s.pages() * s.slots() * s.dim, 71)
    var i = indexer_with(room, s, True, keys)
    var chosen = room.device[DType.int32](t * s.top_k).d()
    var blocks = room.device[DType.int32](t * s.nb).d()
    var layer = room.ints([0, s.ratio, 0, 0, 3, 64, 128, 0, 1, role, s.size, 6, 20]).d()
    var mode = room.mode(True)

    def run(call: Int) raises {imm}:
        index(
            ctx, chosen, blocks, i.keys.d(), i.x.d(), i.latent.d(), i.candidates.d(), i.seq.d(), i.pos.d(),
            i.table.d(), i.query.codes.d(), i.query.scales.d(), i.weigh.codes.d(), i.freq.d(), layer, mode, t, s.d,
            s.nq, s.heads, s.dim, s.half, s.top_k, s.nb, s.slots(), s.width(), s.width() * s.slots(),
        )

    told("index context " + String(context) + " role " + String(role), t, timed(ctx, run))


def bench_small(mut room: Room, t: Int) raises:
    room.clear()
    var ctx = room.ctx
    var h = random_floats(room, t * COPIES * D, 1).d()
    var spread = room.device[DType.float32](t * COPIES * D).d()
    var x = random_floats(room, t * D, 3).d()
    var y = random_floats(room, t * D, 4).d()
    var mix = random_floats(room, t * MIXES, 5).d()
    var small = random_floats(room, D, 6).d()
    var weight = random_floats(room, FAR_COPIES * MIXES * COPIES * D, 7).d()
    var layer = room.ints([0, 2, 0, 0, 0, 16, 128, 0, 1, 0, 8, 6, 20]).d()
    var mode = room.mode(True)
    var scores = random_floats(room, t * EXPERTS, 8).d()
    var results = random_floats(room, (t * CHOSEN + t) * D, 9).d()
    var weights = room.device[DType.float32](t * CHOSEN).d()
    var ids = room.device[DType.int32](t * CHOSEN).d()
    var active = room.device[DType.int32](2 * (EXPERTS + 1) + 3 * t * CHOSEN).d()
    var starts = active.unsafe_offset(EXPERTS + 1)
    var pairs = starts.unsafe_offset(EXPERTS + 1)
    var slot_of = pairs.unsafe_offset(t * CHOSEN)
    var plain = room.planes(t, HEADS * K).d()
    var quantised = room.planes(t, D).d()
    var q = random_floats(room, t * HEADS * K, 10).d()
    var pos = room.ints(List[Int](length=t, fill=1000)).d()

    def enter(i: Int) raises {imm}:
        var w = weight.unsafe_offset(i % FAR_COPIES * MIXES * COPIES * D)
        sublayer_in(
            ctx, mix, x, h, mix, w, small, small, small, layer, small, mode, t, COPIES, D, MIXES
        )

    def route(i: Int) raises {imm}:
        route_and_group(
            ctx, active, starts, pairs, slot_of, slot_of.unsafe_offset(t * CHOSEN), ids, weights, scores, small, t,
            EXPERTS, CHOSEN, small,
        )

    def stage_fp8(i: Int) raises {imm}:
        stage(ctx, plain, x, D, t, D, True, mode)

    def both(i: Int) raises {imm}:
        stage_both(ctx, plain, quantised, x, t, D, mode)

    def wide(i: Int) raises {imm}:
        stage(ctx, plain, q, HEADS * K, t, HEADS * K, False, mode)

    def combine(i: Int) raises {imm}:
        ctx.enqueue_function[combine_kernel](
            spread, y, results, slot_of, h, mix, Int32(t), Int32(COPIES), Int32(D), Int32(MIXES), Int32(CHOSEN), mode,
            grid_dim=(t, ceildiv(D, SPREAD_COLUMNS)), block_dim=SPREAD_THREADS,
        )

    def expand(i: Int) raises {imm}:
        expand_gpu(ctx, spread, y, h, mix, t, COPIES, D, MIXES, mode)

    def rope(i: Int) raises {imm}:
        rope_heads(ctx, q, pos, small, t, HEADS * K, K, 32, mode)

    told("sublayer_in", t, timed(ctx, enter))
    told("route and group", t, timed(ctx, route))
    told("stage fp8 5120", t, timed(ctx, stage_fp8))
    told("stage both 5120", t, timed(ctx, both))
    told("stage plain 32768", t, timed(ctx, wide))
    told("combine", t, timed(ctx, combine))
    told("expand", t, timed(ctx, expand))
    told("rope 64 heads", t, timed(ctx, rope))


def main() raises:
    var room = Room()
    _ = warm(room, 300)
    for t in [1, 6, 48, 192]:
        bench_attention(room, t)
        bench_index(room, t, 131072, 0)
        bench_index(room, t, 131072, 1)
        bench_index(room, t, 131072, 2)
        bench_index(room, t, 2000, 0)
        bench_small(room, t)
