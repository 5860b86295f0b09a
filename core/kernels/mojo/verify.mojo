"""Verification of the drafts, and the grammar's mask before it."""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from .common import F32P, Scratch, U32P, at
from .gpu.step import mask_gpu
from .gpu.verify import verify_gpu
from .sampling import draw, is_finite, truncate


@compiler.register("sd_verify")
struct Verify:
    """Draws the target's token at every verified row and accepts drafts while they equal it.

    logits [B (K + 1), V]; row j of request b is the law of the token at position cache_length + tokens + j.
    A row with top_k or top_p is truncated first. Out: accepted [B], next_tokens [B] (the draw at the first
    mismatch, or the bonus), finite [B] (0: a row that was read holds NaN or inf).
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
        seed: InputTensor[dtype=DType.uint64, rank=1, ...],
        temperature: InputTensor[dtype=DType.float32, rank=1, ...],
        top_k: InputTensor[dtype=DType.int64, rank=1, ...],
        top_p: InputTensor[dtype=DType.float32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            verify_gpu(
                ctx, accepted.unsafe_ptr(), next_tokens.unsafe_ptr(), finite.unsafe_ptr(), logits.unsafe_ptr(),
                drafts.unsafe_ptr(), offsets.unsafe_ptr(), cache_lengths.unsafe_ptr(), seed.unsafe_ptr(),
                temperature.unsafe_ptr(), top_k.unsafe_ptr(), top_p.unsafe_ptr(), drafts.dim_size(0),
                drafts.dim_size(1), logits.dim_size(1),
            )
            return
        var k = drafts.dim_size(1)
        var v = logits.dim_size(1)
        var pl: F32P = logits.unsafe_ptr()
        var po: U32P = offsets.unsafe_ptr()
        var spare_ = Scratch(v)
        var spare = spare_.ptr()
        for s in range(drafts.dim_size(0)):
            var tokens = Int(po[unsafe_offset=s + 1]) - Int(po[unsafe_offset=s])
            var position = Int(cache_lengths.unsafe_ptr()[unsafe_offset=s]) + tokens
            var heat = temperature.unsafe_ptr()[unsafe_offset=s]
            var keep = Int(top_k.unsafe_ptr()[unsafe_offset=s])
            var mass = top_p.unsafe_ptr()[unsafe_offset=s]
            var n = 0
            var token = 0
            var fine = True
            while True:
                var row = pl.unsafe_offset((s * (k + 1) + n) * v)
                fine = fine and is_finite(row, v)
                if keep > 0 or mass < 1:
                    for i in range(v):
                        spare[unsafe_offset=i] = at(row, i)
                    row = spare
                    truncate(row, v, heat, keep, mass)
                token = draw(row, v, heat, seed.unsafe_ptr()[unsafe_offset=s], position + n)
                if n == k or Int(drafts.unsafe_ptr()[unsafe_offset=s * k + n]) != token:
                    break
                n += 1
            accepted.unsafe_ptr()[unsafe_offset=s] = Int64(n)
            next_tokens.unsafe_ptr()[unsafe_offset=s] = Int64(token)
            finite.unsafe_ptr()[unsafe_offset=s] = 1 if fine else 0
        _ = spare_^


@compiler.register("sd_mask")
struct Mask:
    """Logits [B (K + 1), V] with forbidden tokens at -inf: bit v of bitmask [B, P, V/32] row (b, j) allows token v."""

    @staticmethod
    def execute[target: StaticString](
        masked: OutputTensor[dtype=DType.float32, rank=2, ...],
        logits: InputTensor[dtype=DType.float32, rank=2, ...],
        bitmask: InputTensor[dtype=DType.int32, rank=3, ...],
        drafts: InputTensor[dtype=DType.int64, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        var k = drafts.dim_size(1)
        var v = logits.dim_size(1)
        var rows = bitmask.dim_size(1)
        var words = bitmask.dim_size(2)
        if rows < k + 1 or words * 32 < v:
            raise Error("sd_mask: the bitmask has fewer rows than verified tokens, or fewer bits than the vocabulary")
        comptime if is_gpu[target]():
            mask_gpu(
                ctx, masked.unsafe_ptr(), logits.unsafe_ptr(), bitmask.unsafe_ptr(), logits.dim_size(0), k + 1, v, rows,
                words,
            )
            return
        for r in range(logits.dim_size(0)):
            var bits = bitmask.unsafe_ptr().unsafe_offset((r // (k + 1) * rows + r % (k + 1)) * words)
            for i in range(v):
                var word = UInt32(bits[unsafe_offset=i // 32])
                var allowed = (word >> UInt32(i % 32)) & 1 == 1
                masked.unsafe_ptr()[unsafe_offset=r * v + i] = (
                    logits.unsafe_ptr()[unsafe_offset=r * v + i] if allowed else Float32.MIN
                )
