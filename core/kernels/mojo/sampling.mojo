"""Position-keyed draws: the token at position t of a request with seed s is argmax(log p_t + g(s, t)).

g is Gumbel noise from a counter-based generator keyed by (seed, position, token id), so a draw depends on nothing
else: not on the batch, not on the step, not on whether the position was drafted. Target and drafter share it.
"""

from std.bit import count_leading_zeros
from std.math import exp, log
from .common import F32P, Vec, W, at, ld
from .indexer import order_key

comptime GOLDEN = UInt64(0x9E3779B97F4A7C15)
comptime GREEDY_BELOW = Float32(1e-5)  # a lower temperature is argmax, as in MAX and vLLM


@always_inline
def mix64(x: UInt64) -> UInt64:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014)."""
    var z = x
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@always_inline
def stream(seed: UInt64, position: Int) -> UInt64:
    return mix64(mix64(seed + GOLDEN) + UInt64(position) * GOLDEN)


@always_inline
def fresh(seed: UInt64, start: Int, purpose: UInt64) -> UInt64:
    """A seed of its own for one purpose of the round whose first verified position is `start`.

    Draws that a ratio test makes use of must be independent of the drafts that it tests, and of those of other rounds:
    a position may be drafted again after a rejection.
    """
    return mix64(stream(seed, start) ^ purpose)


@always_inline
def uniform_bits(key: UInt64, token: Int) -> UInt32:
    return UInt32(mix64(key + UInt64(token + 1) * GOLDEN) >> 32)


@always_inline
def gumbel(bits: UInt32) -> Float64:
    """Noise of a 32-bit uniform (bits + 1/2) / 2^32."""
    return -log(-log((Float64(bits) + 0.5) * 2.3283064365386963e-10))


@always_inline
def gumbel_bound(bits: UInt32) -> Float64:
    """A cheap upper bound of `gumbel`: -log(-log u) <= -log(1 - u)."""
    return Float64(Int(count_leading_zeros(~bits)) + 1) * 0.6931471805599454


def argmax(z: F32P, n: Int) -> Int:
    """The largest value's index, the lowest one on ties."""
    var top = Vec(Float32.MIN)
    for i in range(0, n // W * W, W):
        top = max(top, ld(z, i))
    var best = top.reduce_max()
    for i in range(n // W * W, n):
        best = max(best, at(z, i))
    for i in range(n):
        if at(z, i) == best:
            return i
    return 0  # only NaN: `is_finite` reports the row


def draw(z: F32P, n: Int, temperature: Float32, seed: UInt64, position: Int) -> Int:
    """The token drawn at `position` from logits z; -inf never wins."""
    var best = argmax(z, n)
    if temperature < GREEDY_BELOW:
        return best
    var key = stream(seed, position)
    var scale = 1 / Float64(temperature)
    var top = Float64(at(z, best)) * scale + gumbel(uniform_bits(key, best))
    for i in range(n):
        var bits = uniform_bits(key, i)
        var value = Float64(at(z, i)) * scale
        if value + gumbel_bound(bits) < top:
            continue
        value += gumbel(bits)
        if value > top or (value == top and i < best):
            top = value
            best = i
    return best


@always_inline
def min_p_floor(top: Float64, temperature: Float32, min_p: Float32) -> Float64:
    """The logit that a token of min_p times the best one's probability has."""
    return top + Float64(max(temperature, GREEDY_BELOW)) * log(Float64(min_p))


def truncate(z: F32P, n: Int, temperature: Float32, top_k: Int, top_p: Float32, min_p: Float32):
    """Sets logits to -inf outside the top_k best, or below min_p times the best one's probability, and then outside
    the smallest set of mass top_p (ties: the lower id stays).

    Probabilities are at `temperature`; the mass is taken over what min_p and top_k kept, as samplers in the field do.
    """
    var ranked = (top_k > 0 and top_k < n) or top_p < 1
    if not ranked and min_p <= 0:
        return
    var top = Float64(at(z, argmax(z, n)))
    var floor = min_p_floor(top, temperature, min_p) if min_p > 0 else Float64.MIN
    if not ranked:
        for i in range(n):
            if Float64(at(z, i)) < floor:
                z[unsafe_offset=i] = Float32.MIN
        return
    var order = List[UInt64](capacity=n)
    for i in range(n):
        # Ascending order: best logit first, lower id first among equals.
        order.append((UInt64(~order_key(at(z, i))) << 32) | UInt64(i))
    sort(order)
    var keep = top_k if top_k > 0 and top_k < n else n
    if min_p > 0:
        for i in range(1, keep):
            if Float64(at(z, Int(order[i] & 0xFFFFFFFF))) < floor:
                keep = i
                break
    if top_p < 1:
        var scale = 1 / Float64(max(temperature, GREEDY_BELOW))
        var total = Float64(0)
        for i in range(keep):
            total += exp((Float64(at(z, Int(order[i] & 0xFFFFFFFF))) - top) * scale)
        var mass = Float64(0)
        for i in range(keep):
            if i > 0 and mass >= Float64(top_p) * total:
                keep = i
                break
            mass += exp((Float64(at(z, Int(order[i] & 0xFFFFFFFF))) - top) * scale)
    for i in range(keep, n):
        z[unsafe_offset=Int(order[i] & 0xFFFFFFFF)] = Float32.MIN


def is_finite(z: F32P, n: Int) -> Bool:
    """Whether no logit is NaN or +inf, and not all are -inf (a mask's single -inf is fine)."""
    var bad = Vec(0.0)
    var some = False
    for i in range(0, n // W * W, W):
        var v = ld(z, i)
        bad = max(bad, v.lt(Vec(Float32.MAX)).select(Vec(0.0), Vec(1.0)))
        some = some or v.reduce_max() > Float32.MIN
    for i in range(n // W * W, n):
        if not (at(z, i) < Float32.MAX):
            return False
        some = some or at(z, i) > Float32.MIN
    return some and bad.reduce_max() == 0
