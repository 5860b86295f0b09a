"""Position-keyed draws on a GPU: a row's vocabulary is shared out to blocks, each of which names its best token.

A part's best and the best of the parts are maxima, the lowest id on ties, so neither the shares nor the order of the
comparisons can change a draw. NaN never wins.
"""

from std.math import ceildiv
from std.memory import AddressSpace, stack_allocation
from max.gpu import barrier, lane_id, thread_idx, warp_id
from max.gpu.primitives.warp import shuffle_idx, shuffle_xor
from ..common import F32P, I32P
from ..sampling import GREEDY_BELOW, gumbel, gumbel_bound, stream, uniform_bits
from .vectors import Four, load4

comptime F64P = Pointer[Float64, MutAnyOrigin]
comptime DRAW_WARPS = 32
comptime DRAW_THREADS = 32 * DRAW_WARPS
comptime PART = 4 * DRAW_THREADS  # tokens of one block
comptime LOWEST = Float64.MIN
comptime NO_TOKEN = Int32.MAX
comptime BAD = Int32(1)  # a logit of the part is NaN or +inf
comptime SOME = Int32(2)  # a logit of the part is above -inf


@fieldwise_init
struct Best(Copyable, ImplicitlyCopyable, Movable):
    """A token and its value."""

    var value: Float64
    var token: Int32

    @always_inline
    def offer(mut self, value: Float64, token: Int32):
        if value > self.value or (value == self.value and token < self.token):
            self.value = value
            self.token = token


def parts_of_vocabulary(v: Int) -> Int:
    return ceildiv(v, PART)


@always_inline
def four_logits(z: F32P, i: Int, n: Int) -> Four:
    """Logits i … i + 3, -inf beyond the last; rows of a vocabulary that four does not divide are not aligned."""
    if n % 4 == 0 and i < n:
        return load4(z, i)
    var v = Four(Float32.MIN)
    comptime for q in range(4):
        if i + q < n:
            v[q] = z[unsafe_offset=i + q]
    return v


@always_inline
def warp_best(mine: Best) -> Best:
    """The best over a warp's lanes, in every lane."""
    var best = mine
    comptime for i in range(5):
        best.offer(shuffle_xor(best.value, UInt32(16 >> i)), shuffle_xor(best.token, UInt32(16 >> i)))
    return best


@always_inline
def block_best(mine: Best) -> Best:
    """The best over a block of DRAW_THREADS, in every thread."""
    var values = stack_allocation[DRAW_WARPS, DType.float64, address_space=AddressSpace.SHARED]()
    var tokens = stack_allocation[DRAW_WARPS, DType.int32, address_space=AddressSpace.SHARED]()
    var best = warp_best(mine)
    if lane_id() == 0:
        values[unsafe_offset=Int(warp_id())] = best.value
        tokens[unsafe_offset=Int(warp_id())] = best.token
    barrier()
    best = warp_best(Best(values[unsafe_offset=Int(lane_id())], tokens[unsafe_offset=Int(lane_id())]))
    barrier()
    return best


@always_inline
def block_sum(mine: Float64) -> Float64:
    """The sum over a block of DRAW_THREADS, in every thread; always formed in the same tree."""
    var sums = stack_allocation[DRAW_WARPS, DType.float64, address_space=AddressSpace.SHARED]()
    var total = mine
    comptime for i in range(5):
        total += shuffle_xor(total, UInt32(16 >> i))
    if lane_id() == 0:
        sums[unsafe_offset=Int(warp_id())] = total
    barrier()
    total = sums[unsafe_offset=Int(lane_id())]
    comptime for i in range(5):
        total += shuffle_xor(total, UInt32(16 >> i))
    barrier()
    return total


@always_inline
def block_any(mine: Bool) -> Bool:
    """Whether it holds in a thread of the block."""
    return block_best(Best(Float64(1) if mine else Float64(0), 0)).value > 0


@always_inline
def offer_noisy(mut best: Best, logit: Float32, token: Int, scale: Float64, key: UInt64):
    """Offers a token with its Gumbel noise, which is formed only if it might win."""
    var bits = uniform_bits(key, token)
    var value = Float64(logit) * scale
    if value + gumbel_bound(bits) >= best.value:
        best.offer(value + gumbel(bits), Int32(token))


@always_inline
def with_noise(best: Best, scale: Float64, key: UInt64) -> Best:
    """A best logit as a candidate of the draw."""
    return Best(best.value * scale + gumbel(uniform_bits(key, Int(best.token))), best.token)


@always_inline
def part_logit(x: Four, part: Int) -> Best:
    """The best logit of a part, of which each thread holds four."""
    var first = part * PART + Int(thread_idx.x) * 4
    var best = Best(LOWEST, Int32(first))
    comptime for q in range(4):
        best.offer(Float64(x[q]), Int32(first + q))
    return block_best(best)


@always_inline
def part_draw(x: Four, part: Int, top: Best, heat: Float32, seed: UInt64, position: Int) -> Best:
    """The draw's candidate of a part whose best logit is `top`."""
    if heat < GREEDY_BELOW:
        return top
    var first = part * PART + Int(thread_idx.x) * 4
    var key = stream(seed, position)
    var scale = 1 / Float64(heat)
    var best = with_noise(top, scale, key)
    comptime for q in range(4):
        offer_noisy(best, x[q], first + q, scale, key)
    return block_best(best)


@always_inline
def store_part(values: F64P, marks: I32P, place: Int, best: Best, flags: Int32):
    """By one thread: the candidate of a part, values [places], marks [places, 2] = token, flags."""
    if thread_idx.x == 0:
        values[unsafe_offset=place] = best.value
        marks[unsafe_offset=2 * place] = best.token
        marks[unsafe_offset=2 * place + 1] = flags


@always_inline
def winner(values: F64P, marks: I32P, first: Int, parts: Int) -> Tuple[Int, Int32]:
    """By a whole warp: a row's token and the flags of its parts."""
    var best = Best(LOWEST, NO_TOKEN)
    var flags = Int32(0)
    for part in range(Int(lane_id()), parts, 32):
        best.offer(values[unsafe_offset=first + part], marks[unsafe_offset=2 * (first + part)])
        flags |= marks[unsafe_offset=2 * (first + part) + 1]
    best = warp_best(best)
    comptime for i in range(5):
        flags |= shuffle_xor(flags, UInt32(16 >> i))
    return (Int(shuffle_idx(best.token, UInt32(0))), flags)
