"""Verification of the drafts: the target's law at every verified row, and the rule that accepts drafts under it."""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from .common import F32P, I32P, I64P, Scratch, at, held, lent
from .edits import Edits
from .gpu.verify import verify_gpu
from .law import Verified, law
from .ratio import MATCH, verify_ratio
from .sampling import draw


def verify_match(verified: Verified, s: Int, spare: F32P) -> Tuple[Int, Int, Bool]:
    """Accepted drafts, next token and finiteness by sample-and-match: drafts stay while they equal the draws."""
    var drafts = verified.drafts_of(s)
    var n = 0
    var fine = True
    while True:
        var row = law(verified, s, n, spare)
        fine = fine and row[1]
        var token = draw(
            row[0], verified.v, at(lent(verified.temperature), s), verified.seed[unsafe_offset=s], verified.start(s) + n
        )
        if n == verified.k or Int(drafts[unsafe_offset=n]) != token:
            return (n, token, fine)
        n += 1


def verify_cpu(verified: Verified, accepted: I64P, next_tokens: I64P, finite: I32P) raises:
    """Verifies every request; arguments as of `sd_verify`."""
    verified.check()
    var v = verified.v
    var ratios = verified.prob_rows > 0
    var memory = Scratch((verified.k + 1 if ratios else 1) * v)
    var spare = memory.ptr()
    for s in range(verified.b):
        var rule = verified.acceptance[unsafe_offset=s]
        var drafts = verified.drafts_of(s)
        if not ratios or rule == MATCH or verified.k == 0 or drafts[unsafe_offset=0] < 0:
            var out = verify_match(verified, s, spare)
            accepted[unsafe_offset=s] = Int64(out[0])
            next_tokens[unsafe_offset=s] = Int64(out[1])
            finite[unsafe_offset=s] = 1 if out[2] else 0
            continue
        # A ratio test may look at every row, so all of them have to be finite.
        var fine = True
        var n = 0
        while n < verified.k and drafts[unsafe_offset=n] >= 0:
            n += 1
        for j in range(n + 1):
            var home = spare.unsafe_offset(j * v)
            var row = law(verified, s, j, home)
            fine = fine and row[1]
            if row[0] != home:
                for i in range(v):
                    home[unsafe_offset=i] = at(row[0], i)
        var out = verify_ratio(
            spare, lent(verified.probs).unsafe_offset(s * verified.prob_rows * v), drafts, n, v,
            at(lent(verified.temperature), s), verified.seed[unsafe_offset=s], verified.start(s), rule,
        )
        accepted[unsafe_offset=s] = Int64(out[0])
        next_tokens[unsafe_offset=s] = Int64(out[1])
        finite[unsafe_offset=s] = 1 if fine else 0
    _ = memory^


@compiler.register("sd_verify")
struct Verify:
    """Draws or tests the target's token at every verified row.

    logits [B (K + 1), V]; row j of request b is the law of the token at position cache_length + tokens + j, after the
    edits (edits.mojo), min_p, top_k and top_p. acceptance [B]: sample-and-match, or a ratio test against draft_probs
    (ratio.mojo). Out: accepted [B], next_tokens [B] (corrected, or the bonus), finite [B] (0: a row that was read holds
    NaN or inf, or no token is left).
    """

    @staticmethod
    def execute[target: StaticString](
        accepted: OutputTensor[dtype=DType.int64, rank=1, ...],
        next_tokens: OutputTensor[dtype=DType.int64, rank=1, ...],
        finite: OutputTensor[dtype=DType.int32, rank=1, ...],
        logits: InputTensor[dtype=DType.float32, rank=2, ...],
        drafts: InputTensor[dtype=DType.int64, rank=2, ...],
        offsets: InputTensor[dtype=DType.uint32, rank=1, ...],
        cache_lengths: InputTensor[dtype=DType.uint32, rank=1, ...],
        draft_probs: InputTensor[dtype=DType.float32, rank=3, ...],
        seed: InputTensor[dtype=DType.uint64, rank=1, ...],
        temperature: InputTensor[dtype=DType.float32, rank=1, ...],
        top_k: InputTensor[dtype=DType.int64, rank=1, ...],
        top_p: InputTensor[dtype=DType.float32, rank=1, ...],
        min_p: InputTensor[dtype=DType.float32, rank=1, ...],
        acceptance: InputTensor[dtype=DType.int32, rank=1, ...],
        penalties: InputTensor[dtype=DType.float32, rank=2, ...],
        free_from: InputTensor[dtype=DType.uint32, rank=1, ...],
        edit_offsets: InputTensor[dtype=DType.uint32, rank=1, ...],
        edit_tokens: InputTensor[dtype=DType.int32, rank=1, ...],
        edit_marks: InputTensor[dtype=DType.int32, rank=1, ...],
        edit_bias: InputTensor[dtype=DType.float32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        var edits = Edits(
            held(edit_offsets.unsafe_ptr()), held(edit_tokens.unsafe_ptr()), held(edit_marks.unsafe_ptr()),
            held(edit_bias.unsafe_ptr()), held(penalties.unsafe_ptr()), held(free_from.unsafe_ptr()),
            edit_tokens.dim_size(0),
        )
        var verified = Verified(
            held(logits.unsafe_ptr()), held(drafts.unsafe_ptr()), held(offsets.unsafe_ptr()),
            held(cache_lengths.unsafe_ptr()), held(draft_probs.unsafe_ptr()), held(seed.unsafe_ptr()),
            held(temperature.unsafe_ptr()), held(top_k.unsafe_ptr()), held(top_p.unsafe_ptr()),
            held(min_p.unsafe_ptr()), held(acceptance.unsafe_ptr()), edits, held(edit_marks.unsafe_ptr()),
            drafts.dim_size(0), drafts.dim_size(1), logits.dim_size(1), draft_probs.dim_size(1), 0, 0,
        )
        comptime if is_gpu[target]():
            verify_gpu(ctx, verified, accepted.unsafe_ptr(), next_tokens.unsafe_ptr(), finite.unsafe_ptr())
        else:
            verify_cpu(verified, accepted.unsafe_ptr(), next_tokens.unsafe_ptr(), finite.unsafe_ptr())


@compiler.register("sd_verify_masked")
struct VerifyMasked:
    """`sd_verify` under grammars: bit v of bitmask [B, P, V/32] row (b, j) allows token v; P is 0, or K + 1 or more."""

    @staticmethod
    def execute[target: StaticString](
        accepted: OutputTensor[dtype=DType.int64, rank=1, ...],
        next_tokens: OutputTensor[dtype=DType.int64, rank=1, ...],
        finite: OutputTensor[dtype=DType.int32, rank=1, ...],
        logits: InputTensor[dtype=DType.float32, rank=2, ...],
        drafts: InputTensor[dtype=DType.int64, rank=2, ...],
        offsets: InputTensor[dtype=DType.uint32, rank=1, ...],
        cache_lengths: InputTensor[dtype=DType.uint32, rank=1, ...],
        draft_probs: InputTensor[dtype=DType.float32, rank=3, ...],
        seed: InputTensor[dtype=DType.uint64, rank=1, ...],
        temperature: InputTensor[dtype=DType.float32, rank=1, ...],
        top_k: InputTensor[dtype=DType.int64, rank=1, ...],
        top_p: InputTensor[dtype=DType.float32, rank=1, ...],
        min_p: InputTensor[dtype=DType.float32, rank=1, ...],
        acceptance: InputTensor[dtype=DType.int32, rank=1, ...],
        penalties: InputTensor[dtype=DType.float32, rank=2, ...],
        free_from: InputTensor[dtype=DType.uint32, rank=1, ...],
        edit_offsets: InputTensor[dtype=DType.uint32, rank=1, ...],
        edit_tokens: InputTensor[dtype=DType.int32, rank=1, ...],
        edit_marks: InputTensor[dtype=DType.int32, rank=1, ...],
        edit_bias: InputTensor[dtype=DType.float32, rank=1, ...],
        bitmask: InputTensor[dtype=DType.int32, rank=3, ...],
        ctx: DeviceContext,
    ) raises:
        var edits = Edits(
            held(edit_offsets.unsafe_ptr()), held(edit_tokens.unsafe_ptr()), held(edit_marks.unsafe_ptr()),
            held(edit_bias.unsafe_ptr()), held(penalties.unsafe_ptr()), held(free_from.unsafe_ptr()),
            edit_tokens.dim_size(0),
        )
        var verified = Verified(
            held(logits.unsafe_ptr()), held(drafts.unsafe_ptr()), held(offsets.unsafe_ptr()),
            held(cache_lengths.unsafe_ptr()), held(draft_probs.unsafe_ptr()), held(seed.unsafe_ptr()),
            held(temperature.unsafe_ptr()), held(top_k.unsafe_ptr()), held(top_p.unsafe_ptr()),
            held(min_p.unsafe_ptr()), held(acceptance.unsafe_ptr()), edits, held(bitmask.unsafe_ptr()),
            drafts.dim_size(0), drafts.dim_size(1), logits.dim_size(1), draft_probs.dim_size(1), bitmask.dim_size(1),
            bitmask.dim_size(2),
        )
        comptime if is_gpu[target]():
            verify_gpu(ctx, verified, accepted.unsafe_ptr(), next_tokens.unsafe_ptr(), finite.unsafe_ptr())
        else:
            verify_cpu(verified, accepted.unsafe_ptr(), next_tokens.unsafe_ptr(), finite.unsafe_ptr())
