"""Min-p, top-k and top-p on a GPU, one block a row, without sorting the vocabulary.

Tokens are ordered by (logit descending, id ascending), a 64-bit rank. The last token that stays is found digit by
digit of its rank, each digit from a histogram of the tokens that agree with the digits so far. The first digit is a
band of the logit's distance from the best one: near the top, bands are far narrower than a float's leading bits.
Masses are integers in units of 2^-45 of the best token's, so that their sums do not depend on an order.
"""

from std.atomic import Atomic, Ordering
from std.math import ceil, exp
from std.memory import AddressSpace, bitcast, stack_allocation
from max.gpu import barrier, lane_id, thread_idx, warp_id
from max.gpu.primitives.warp import shuffle_idx, shuffle_up
from ..common import F32P
from ..indexer import order_key
from ..sampling import min_p_floor, stream
from .sampling import Best, DRAW_THREADS, DRAW_WARPS, LOWEST, block_best, four_logits, offer_noisy, with_noise

comptime BINS = 2 * DRAW_THREADS
comptime DIGIT = 11  # bits of a rank that one histogram tells apart
comptime BANDS_A_UNIT = Float32(64)  # e^-31 of the best token's mass is the last to count; later bands have none
comptime UNIT = Float32(35184372088832.0)  # 2^45
comptime BATCH = 4 * DRAW_THREADS
comptime SharedU64 = Pointer[UInt64, MutAnyOrigin, address_space=AddressSpace.SHARED]


@always_inline
def shared_u64[n: Int]() -> SharedU64:
    return stack_allocation[n, DType.uint64, address_space=AddressSpace.SHARED]().unsafe_origin_cast[MutAnyOrigin]()


@always_inline
def rank_of(logit: Float32, token: Int) -> UInt64:
    """Ascending ranks: best logit first, lower id first among equals."""
    return (UInt64(~order_key(logit)) << 32) | UInt64(token)


@always_inline
def weight_of[by_mass: Bool](distance: Float32) -> UInt64:
    comptime if by_mass:
        return UInt64(exp(-distance) * UNIT)
    else:
        return 1


@always_inline
def band_of(distance: Float32) -> UInt64:
    var band = distance * BANDS_A_UNIT
    return UInt64(band) if band < Float32(BINS - 1) else UInt64(BINS - 1)


@always_inline
def warp_scan(x: UInt64) -> UInt64:
    """Sums over the lanes up to this one."""
    var v = x
    comptime for i in range(5):
        var below = shuffle_up(v, UInt32(1 << i))
        if Int(lane_id()) >= 1 << i:
            v += below
    return v


@always_inline
def scan_pairs(table: SharedU64, spare: SharedU64) -> Tuple[UInt64, UInt64]:
    """The sum over bins up to this thread's second, and over all of them; every thread owns two bins."""
    var i = 2 * Int(thread_idx.x)
    var running = warp_scan(table[unsafe_offset=i] + table[unsafe_offset=i + 1])
    var warp = Int(warp_id())
    if lane_id() == 31:
        spare[unsafe_offset=warp] = running
    barrier()
    var sums = warp_scan(spare[unsafe_offset=Int(lane_id())])
    var before = shuffle_idx(sums, UInt32(max(warp - 1, 0)))
    return (running + (before if warp > 0 else 0), shuffle_idx(sums, UInt32(DRAW_WARPS - 1)))


def last_kept[
    by_mass: Bool
](z: F32P, n: Int, top: Float32, scale: Float32, limit: UInt64, share: Float64) -> UInt64:
    """The rank of the last token to keep among those of rank <= limit.

    by_mass: the fewest whose mass reaches `share` of all of theirs, at least one; else the first `share`. The token
    ids have at most 20 bits. By a whole block.
    """
    var table = shared_u64[BINS]()
    var spare = shared_u64[DRAW_WARPS]()
    var choice = shared_u64[3]()
    var thread = Int(thread_idx.x)
    var rank = UInt64(0)  # its digits so far, zeros behind them
    var band = UInt64(0)
    var target = UInt64(0 if by_mass else share)
    # The digits' lowest bits: the band's (none), three of the key's 32 bits with a bit of zero, two of the id's 20.
    var shift = 64
    for level in range(6):
        var above = shift
        if level > 0:
            shift = 9 if level == 4 else (0 if level == 5 else shift - DIGIT)
        for i in range(thread, BINS, DRAW_THREADS):
            table[unsafe_offset=i] = 0
        if thread < 3:
            choice[unsafe_offset=thread] = 0
        barrier()
        for begin in range(thread * 4, n, 2 * BATCH):
            var x = four_logits(z, begin, n).join(four_logits(z, begin + BATCH, n))
            comptime for q in range(8):
                comptime at = q % 4 + (BATCH if q > 3 else 0)
                var distance = (top - x[q]) * scale
                if level == 0 or band_of(distance) == band:
                    var mine = rank_of(x[q], begin + at)
                    # Before the second digit nothing is settled, and a shift by all 64 bits would be undefined.
                    if mine <= limit and (level < 2 or mine >> UInt64(above) == rank >> UInt64(above)):
                        var weight = weight_of[by_mass](distance)
                        if weight > 0:
                            var digit = band_of(distance) if level == 0 else (mine >> UInt64(shift)) & UInt64(BINS - 1)
                            # Levels end in a barrier, which orders what needs to be ordered.
                            _ = Atomic[scope="block"].fetch_add[ordering = Ordering.RELAXED](
                                table.unsafe_offset(Int(digit)), weight
                            )
        barrier()
        var sums = scan_pairs(table, spare)
        comptime if by_mass:
            if level == 0:
                target = UInt64(max(ceil(share * Float64(sums[1])), 1.0))
        var first = table[unsafe_offset=2 * thread]
        var second = table[unsafe_offset=2 * thread + 1]
        var before = sums[0] - first - second
        if before < target and target <= sums[0]:
            var in_first = before + first >= target
            choice[unsafe_offset=0] = UInt64(2 * thread + (0 if in_first else 1))
            choice[unsafe_offset=1] = before if in_first else before + first
            choice[unsafe_offset=2] = first if in_first else second
        barrier()
        var digit = choice[unsafe_offset=0]
        target -= choice[unsafe_offset=1]
        var here = choice[unsafe_offset=2]
        barrier()
        if level == 0:
            band = digit
        else:
            rank |= digit << UInt64(shift)
        if level == 3:
            # The logit is known. Unless eligible tokens that tie with it must go, ids need no look.
            var key = ~UInt32(rank >> 32)
            var logit = bitcast[DType.float32](key ^ 0x80000000 if (key >> 31) != 0 else ~key)
            if target + weight_of[by_mass]((top - logit) * scale) > here:
                return min(rank | 0x7FFFFFFF, limit)
    return rank


@always_inline
def rank_at(floor: Float64) -> UInt64:
    """The last rank whose logit is at least `floor`."""
    var logit = Float32(floor)
    var key = order_key(logit)
    if Float64(logit) < floor:
        key += 1
    if logit == 0:
        key = order_key(Float32(-0.0))
    return (UInt64(~key) << 32) | 0xFFFFFFFF


def last_rank(z: F32P, n: Int, top: Float64, heat: Float32, keep: Int, mass: Float32, least: Float32) -> UInt64:
    """The rank of the last token that top_k `keep`, min_p `least` and top_p `mass` leave, by a whole block."""
    var scale = Float32(1 / Float64(heat))
    var limit = UInt64.MAX
    if keep > 0 and keep < n:
        limit = last_kept[False](z, n, Float32(top), scale, limit, Float64(keep))
    if least > 0:
        limit = min(limit, rank_at(min_p_floor(top, heat, least)))
    if mass < 1:
        limit = last_kept[True](z, n, Float32(top), scale, limit, Float64(mass))
    return limit


def truncated_draw(
    z: F32P, n: Int, top: Best, heat: Float32, keep: Int, mass: Float32, least: Float32, seed: UInt64, position: Int
) -> Best:
    """The draw from a row's kept tokens, by a whole block; `top` is the row's best logit."""
    var scale = 1 / Float64(heat)
    var limit = last_rank(z, n, top.value, heat, keep, mass, least)
    var key = stream(seed, position)
    var best = with_noise(top, scale, key)
    for begin in range(Int(thread_idx.x) * 4, n, 2 * BATCH):
        var x = four_logits(z, begin, n).join(four_logits(z, begin + BATCH, n))
        comptime for q in range(8):
            comptime at = q % 4 + (BATCH if q > 3 else 0)
            if rank_of(x[q], begin + at) <= limit:
                offer_noisy(best, x[q], begin + at, scale, key)
    return block_best(best)


def row_logit(z: F32P, n: Int) -> Best:
    """A whole row's best logit, by a whole block."""
    var best = Best(LOWEST, Int32(Int(thread_idx.x) * 4))
    for begin in range(Int(thread_idx.x) * 4, n, 2 * BATCH):
        var x = four_logits(z, begin, n).join(four_logits(z, begin + BATCH, n))
        comptime for q in range(8):
            comptime at = q % 4 + (BATCH if q > 3 else 0)
            best.offer(Float64(x[q]), Int32(begin + at))
    return block_best(best)
