"""Ratio tests on a GPU, a block a request; what they compute is said in the CPU's ratio.mojo."""

from std.math import exp, log
from std.utils import StaticTuple
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from ..common import F32P, Held, I32P, I64P, at, held, lent
from ..law import Verified
from ..ratio import BLOCK, CORRECTING, MATCH, uniform
from ..sampling import GREEDY_BELOW, fresh, gumbel, stream, uniform_bits
from .sampling import Best, DRAW_THREADS, LOWEST, NO_TOKEN, block_any, block_best, block_sum
from .truncate import last_rank, rank_of, row_logit


@fieldwise_init
struct RowLaw(Copyable, ImplicitlyCopyable, Movable):
    """The target's probabilities of one row."""

    var z: Held[DType.float32]
    var top: Float64
    var best: Int
    var scale: Float64
    var limit: UInt64
    var total: Float64

    @always_inline
    def p(self, token: Int) -> Float64:
        if self.scale == 0:
            return Float64(1) if token == self.best else Float64(0)
        if rank_of(at(lent(self.z), token), token) > self.limit:
            return 0
        return exp((Float64(at(lent(self.z), token)) - self.top) * self.scale) / self.total


def law_of(verified: Verified, s: Int, j: Int) -> RowLaw:
    """Row j of request s, by a whole block."""
    var n = verified.v
    var z = lent(verified.logits).unsafe_offset((s * (verified.k + 1) + j) * n)
    var best = row_logit(z, n)
    var heat = at(lent(verified.temperature), s)
    var law = RowLaw(held(z), best.value, Int(best.token), 0, UInt64.MAX, 1)
    if heat < GREEDY_BELOW:
        return law
    var keep = Int(verified.top_k[unsafe_offset=s])
    law.limit = last_rank(z, n, best.value, heat, keep, at(lent(verified.top_p), s), at(lent(verified.min_p), s))
    law.scale = 1 / Float64(heat)
    var mine = Float64(0)
    for i in range(Int(thread_idx.x), n, DRAW_THREADS):
        mine += law.p(i)
    law.total = block_sum(mine)
    return law


def finite_row(verified: Verified, s: Int, j: Int) -> Bool:
    """Whether a row holds no NaN or +inf, and something above -inf; by a whole block."""
    var n = verified.v
    var z = lent(verified.logits).unsafe_offset((s * (verified.k + 1) + j) * n)
    var bad = False
    var some = False
    for i in range(Int(thread_idx.x), n, DRAW_THREADS):
        bad = bad or not (at(z, i) < Float32.MAX)
        some = some or at(z, i) > Float32.MIN
    return block_any(some) and not block_any(bad)


def excess(law: RowLaw, weight: Float64, q: F32P, n: Int) -> Float64:
    """Sum over tokens of max(weight p - q, 0), by a whole block."""
    var mine = Float64(0)
    for i in range(Int(thread_idx.x), n, DRAW_THREADS):
        mine += max(weight * law.p(i) - Float64(at(q, i)), Float64(0))
    return block_sum(mine)


def correct(
    law: RowLaw, row: Int, weight: Float64, q: F32P, has_draft: Bool, n: Int, seed: UInt64, start: Int
) -> Int:
    """The token at a row, by a whole block."""
    var key = stream(fresh(seed, start, CORRECTING), start + row)
    var left = has_draft and excess(law, weight, q, n) > 0
    var best = Best(LOWEST, NO_TOKEN)
    for i in range(Int(thread_idx.x), n, DRAW_THREADS):
        var mass = law.p(i)
        if left:
            mass = weight * mass - Float64(at(q, i))
        if mass > 0:
            best.offer(log(mass) + gumbel(uniform_bits(key, i)), Int32(i))
    return Int(block_best(best).token)


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(DRAW_THREADS)))
def ratio_kernel(accepted: I64P, next_tokens: I64P, finite: I32P, verified: Verified):
    """Overwrites the results of the requests that test ratios and have drafts."""
    var s = Int(block_idx.x)
    var v = verified.v
    var rule = verified.acceptance[unsafe_offset=s]
    var drafts = verified.drafts_of(s)
    var n = 0
    while n < verified.k and drafts[unsafe_offset=n] >= 0:
        n += 1
    if rule == MATCH or n == 0:
        return
    var fine = True
    for j in range(n + 1):
        fine = finite_row(verified, s, j) and fine
    var q = lent(verified.probs).unsafe_offset(s * verified.prob_rows * v)
    var seed = verified.seed[unsafe_offset=s]
    var start = verified.start(s)
    var kept = 0
    var kept_weight = Float64(1)
    var weight = Float64(1)
    var law = law_of(verified, s, 0)
    for i in range(n):
        var x = Int(drafts[unsafe_offset=i])
        var said = Float64(at(q, i * v + x))
        var u = uniform(seed, start, i)
        var p = law.p(x)
        if rule != BLOCK:
            if said <= 0 or u * said >= p:
                break
            kept = i + 1
            law = law_of(verified, s, kept)
            continue
        weight = min(Float64(1), weight * p / said) if said > 0 else 0
        var passes = weight
        if i + 1 < n:
            law = law_of(verified, s, i + 1)
            var more = excess(law, weight, q.unsafe_offset((i + 1) * v), v)
            var whole = more + 1 - weight
            passes = more / whole if whole > 0 else 1
        if u < passes:
            kept = i + 1
            kept_weight = weight
    if rule == BLOCK:
        law = law_of(verified, s, kept)
    var token = correct(law, kept, kept_weight, q.unsafe_offset(kept * v), kept < n, v, seed, start)
    if thread_idx.x == 0:
        accepted[unsafe_offset=s] = Int64(kept)
        next_tokens[unsafe_offset=s] = Int64(token)
        finite[unsafe_offset=s] = 1 if fine else 0
