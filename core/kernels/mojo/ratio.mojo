"""Acceptance by ratio tests against the drafter's own probabilities, the textbook rules.

Rejection (Leviathan et al. 2023, Chen et al. 2023): draft x stays with probability min(1, p(x) / q(x)); the token at
the first rejection comes from max(p - q, 0), normalised. Block verification (Sun et al. 2024): the longest prefix whose
joint test passes. Both commit tokens of the target's law, though not the tokens of plain decoding with the same seed.
Uniforms and draws are keyed by seed, round and position, apart from the drafts' own noise (`fresh`).
"""

from std.math import exp, log
from .common import F32P, I64P, at
from .sampling import GREEDY_BELOW, argmax, fresh, gumbel, stream, uniform_bits

comptime MATCH = Int32(0)  # sample-and-match, in verify.mojo
comptime REJECTION = Int32(1)
comptime BLOCK = Int32(2)
comptime DRAFTING = UInt64(0x6472616674)  # purposes of `fresh`
comptime TESTING = UInt64(0x74657374)
comptime CORRECTING = UInt64(0x636F7272)


@always_inline
def uniform(seed: UInt64, start: Int, place: Int) -> Float64:
    """The uniform that draft `place` of a round is tested with, within (0, 1)."""
    var bits = uniform_bits(stream(fresh(seed, start, TESTING), start + place), 0)
    return (Float64(bits) + 0.5) * 2.3283064365386963e-10


@always_inline
def draft_seed(seed: UInt64, rule: Int32, start: Int) -> UInt64:
    """The seed of the drafts of the round whose first verified position is `start`."""
    return seed if rule == MATCH else fresh(seed, start, DRAFTING)


struct Probabilities(Movable):
    """The target's probabilities of n + 1 rows of v tokens, from logits at a temperature."""

    var values: List[Float64]
    var v: Int

    def __init__(out self, logits: F32P, rows: Int, v: Int, temperature: Float32):
        self.values = List[Float64](length=rows * v, fill=0)
        self.v = v
        for r in range(rows):
            var z = logits.unsafe_offset(r * v)
            var best = argmax(z, v)
            if temperature < GREEDY_BELOW:
                self.values[r * v + best] = 1
                continue
            var scale = 1 / Float64(temperature)
            var total = Float64(0)
            for i in range(v):
                var e = exp((Float64(at(z, i)) - Float64(at(z, best))) * scale)
                self.values[r * v + i] = e
                total += e
            for i in range(v):
                self.values[r * v + i] /= total

    @always_inline
    def p(self, row: Int, token: Int) -> Float64:
        return self.values[row * self.v + token]

    def excess(self, row: Int, weight: Float64, q: F32P) -> Float64:
        """Sum over tokens of max(weight p - q, 0), q of that row."""
        var total = Float64(0)
        for i in range(self.v):
            total += max(weight * self.p(row, i) - Float64(at(q, i)), Float64(0))
        return total


def rejection(p: Probabilities, q: F32P, drafts: I64P, n: Int, seed: UInt64, start: Int) -> Int:
    """How many of n drafts stay, each tested by itself."""
    var v = p.v
    for i in range(n):
        var x = Int(drafts[unsafe_offset=i])
        var said = Float64(at(q, i * v + x))
        # A drafter that says 0 of its own draft is wrong, and taking such a draft would not give the target's law.
        if said <= 0 or uniform(seed, start, i) * said >= p.p(i, x):
            return i
    return n


def block(p: Probabilities, q: F32P, drafts: I64P, n: Int, seed: UInt64, start: Int) -> Tuple[Int, Float64]:
    """How many of n drafts stay, tested jointly, and the weight of the residual behind them."""
    var v = p.v
    var kept = 0
    var weight = Float64(1)
    var kept_weight = weight
    for i in range(n):
        var x = Int(drafts[unsafe_offset=i])
        var said = Float64(at(q, i * v + x))
        weight = min(Float64(1), weight * p.p(i, x) / said) if said > 0 else 0
        var passes = weight
        if i + 1 < n:
            var excess = p.excess(i + 1, weight, q.unsafe_offset((i + 1) * v))
            var whole = excess + 1 - weight
            passes = excess / whole if whole > 0 else 1
        if uniform(seed, start, i) < passes:
            kept = i + 1
            kept_weight = weight
    return (kept, kept_weight)


def correct(
    p: Probabilities, row: Int, weight: Float64, q: F32P, has_draft: Bool, seed: UInt64, start: Int
) -> Int:
    """The token at a row, from max(weight p - q, 0) where a draft was rejected there, else from p."""
    var key = stream(fresh(seed, start, CORRECTING), start + row)
    var left = has_draft and p.excess(row, weight, q) > 0
    var best = 0
    var top = Float64.MIN
    for i in range(p.v):
        var mass = p.p(row, i)
        if left:
            mass = weight * mass - Float64(at(q, i))
        if mass > 0:
            var value = log(mass) + gumbel(uniform_bits(key, i))
            if value > top:
                top = value
                best = i
    return best


def verify_ratio(
    logits: F32P, q: F32P, drafts: I64P, n: Int, v: Int, temperature: Float32, seed: UInt64, start: Int, rule: Int32
) -> Tuple[Int, Int]:
    """Accepted drafts and next token: n drafts, their law's n + 1 rows of logits, the drafter's n rows q.

    `start` is the position of the first draft.
    """
    var p = Probabilities(logits, n + 1, v, temperature)
    var weight = Float64(1)
    var kept = 0
    if rule == BLOCK:
        var joint = block(p, q, drafts, n, seed, start)
        kept = joint[0]
        weight = joint[1]
    else:
        kept = rejection(p, q, drafts, n, seed, start)
    return (kept, correct(p, kept, weight, q.unsafe_offset(kept * v), kept < n, seed, start))
