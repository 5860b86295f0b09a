"""The step around the model: merge, Engram lookback, embedding, verification, and the draft block's inputs."""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from .common import F32P, I32P, I64P, Scratch, U32P, U64P, U8P, at, bf16_at
from .engram import token_before
from .sampling import draw, is_finite, truncate


@compiler.register("sd_merge")
struct Merge:
    """Each request's tokens followed by its draft tokens, as one ragged batch of M = S + B K rows.

    tokens [S]; offsets [B + 1]; drafts [B, K], -1 where there is none (and after it); cache_lengths [B];
    rows [M] carries the size alone. Out: merged, seq, pos [M] (pos -1: dead row), merged_offsets [B + 1],
    logit_rows [B (K + 1)], and nothing-chosen fillers chosen [M, N], blocks [M, NB].
    """

    @staticmethod
    def execute[target: StaticString](
        merged: OutputTensor[dtype=DType.int64, rank=1, ...],
        seq: OutputTensor[dtype=DType.int32, rank=1, ...],
        pos: OutputTensor[dtype=DType.int32, rank=1, ...],
        merged_offsets: OutputTensor[dtype=DType.uint32, rank=1, ...],
        logit_rows: OutputTensor[dtype=DType.int32, rank=1, ...],
        chosen: OutputTensor[dtype=DType.int32, rank=2, ...],
        blocks: OutputTensor[dtype=DType.int32, rank=2, ...],
        tokens: InputTensor[dtype=DType.int64, rank=1, ...],
        offsets: InputTensor[dtype=DType.uint32, rank=1, ...],
        drafts: InputTensor[dtype=DType.int64, rank=2, ...],
        cache_lengths: InputTensor[dtype=DType.uint32, rank=1, ...],
        rows: InputTensor[dtype=DType.int8, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        var b = drafts.dim_size(0)
        var k = drafts.dim_size(1)
        var m = rows.dim_size(0)
        if tokens.dim_size(0) + b * k != m:
            raise Error("sd_merge: the placeholder's length is not tokens + batch * draft tokens")
        var out: I64P = merged.unsafe_ptr()
        var pseq: I32P = seq.unsafe_ptr()
        var ppos: I32P = pos.unsafe_ptr()
        var pm: U32P = merged_offsets.unsafe_ptr()
        var pr: I32P = logit_rows.unsafe_ptr()
        var pt: I64P = tokens.unsafe_ptr()
        var po: U32P = offsets.unsafe_ptr()
        var pd: I64P = drafts.unsafe_ptr()
        var row = 0
        pm[unsafe_offset=0] = 0
        for s in range(b):
            var length = Int(cache_lengths.unsafe_ptr()[unsafe_offset=s])
            var begin = Int(po[unsafe_offset=s])
            var count = Int(po[unsafe_offset=s + 1]) - begin
            for i in range(count):
                out[unsafe_offset=row] = pt[unsafe_offset=begin + i]
                pseq[unsafe_offset=row] = Int32(s)
                ppos[unsafe_offset=row] = Int32(length + i)
                row += 1
            pr[unsafe_offset=s * (k + 1)] = Int32(row - 1)
            var alive = True
            for i in range(k):
                var token = pd[unsafe_offset=s * k + i]
                alive = alive and token >= 0
                out[unsafe_offset=row] = token if alive else -1
                pseq[unsafe_offset=row] = Int32(s)
                ppos[unsafe_offset=row] = Int32(length + count + i) if alive else -1
                pr[unsafe_offset=s * (k + 1) + i + 1] = Int32(row)
                row += 1
            pm[unsafe_offset=s + 1] = UInt32(row)
        for i in range(chosen.size()):
            chosen.unsafe_ptr()[unsafe_offset=i] = -1
        for i in range(blocks.size()):
            blocks.unsafe_ptr()[unsafe_offset=i] = -1


@compiler.register("sd_lookback")
struct Lookback:
    """Windows [B, N - 1] before each chunk: row source[b] of history, or ids[b] where source is -1."""

    @staticmethod
    def execute[target: StaticString](
        window: OutputTensor[dtype=DType.int64, rank=2, ...],
        ids: InputTensor[dtype=DType.int64, rank=2, ...],
        source: InputTensor[dtype=DType.int64, rank=1, ...],
        history: InputTensor[dtype=DType.int64, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        var depth = window.dim_size(1)
        for s in range(window.dim_size(0)):
            var row = Int(source.unsafe_ptr()[unsafe_offset=s])
            for i in range(depth):
                window.unsafe_ptr()[unsafe_offset=s * depth + i] = (
                    ids.unsafe_ptr()[unsafe_offset=s * depth + i] if row
                    < 0 else history.unsafe_ptr()[unsafe_offset=row * depth + i]
                )


@compiler.register("sd_history")
struct History:
    """The window [B, N - 1] before each request's next anchor: what `sd_lookback` reads in the next step."""

    @staticmethod
    def execute[target: StaticString](
        history: OutputTensor[dtype=DType.int64, rank=2, ...],
        lookback: InputTensor[dtype=DType.int64, rank=2, ...],
        merged: InputTensor[dtype=DType.int64, rank=1, ...],
        seq: InputTensor[dtype=DType.int32, rank=1, ...],
        pos: InputTensor[dtype=DType.int32, rank=1, ...],
        logit_rows: InputTensor[dtype=DType.int32, rank=1, ...],
        accepted: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        var b = history.dim_size(0)
        var depth = history.dim_size(1)
        var width = logit_rows.dim_size(0) // max(b, 1)
        for s in range(b):
            var last = Int(logit_rows.unsafe_ptr()[unsafe_offset=s * width])
            last += Int(accepted.unsafe_ptr()[unsafe_offset=s])
            for i in range(depth):
                history.unsafe_ptr()[unsafe_offset=s * depth + i] = token_before(
                    merged.unsafe_ptr(), seq.unsafe_ptr(), pos.unsafe_ptr(), lookback.unsafe_ptr(), depth, last,
                    depth - 1 - i,
                )


@compiler.register("sd_embed")
struct Embed:
    """Residual copies h [T, C, D] of the token embeddings, and the first mix, whose pre reads copy 0 alone."""

    @staticmethod
    def execute[target: StaticString](
        h: OutputTensor[dtype=DType.float32, rank=3, ...],
        mix: OutputTensor[dtype=DType.float32, rank=2, ...],
        tokens: InputTensor[dtype=DType.int64, rank=1, ...],
        table: InputTensor[dtype=DType.bfloat16, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        var c = h.dim_size(1)
        var d = h.dim_size(2)
        var m = mix.dim_size(1)
        var ph: F32P = h.unsafe_ptr()
        var pt: U8P = table.unsafe_ptr().unsafe_bitcast[UInt8]()
        for r in range(h.dim_size(0)):
            var token = Int(tokens.unsafe_ptr()[unsafe_offset=r])
            if token >= table.dim_size(0):
                raise Error("sd_embed: token id beyond the vocabulary")
            for i in range(d):
                var v = bf16_at(pt, token * d + i) if token >= 0 else Float32(0)
                for copy in range(c):
                    ph[unsafe_offset=(r * c + copy) * d + i] = v
            for i in range(m):
                mix.unsafe_ptr()[unsafe_offset=r * m + i] = 1 if i == 0 else 0


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


@compiler.register("sd_block_inputs")
struct BlockInputs:
    """The draft block's rows [N]: the anchor (next token), then noise, at the positions after the last commit.

    slots [N] = request * block + place, for the requests that draft. Out: ids, seq, pos [N], and last [N], the
    last committed position that the target has run: the newest context row a draft may see.
    """

    @staticmethod
    def execute[target: StaticString](
        ids: OutputTensor[dtype=DType.int64, rank=1, ...],
        seq: OutputTensor[dtype=DType.int32, rank=1, ...],
        pos: OutputTensor[dtype=DType.int32, rank=1, ...],
        last: OutputTensor[dtype=DType.int32, rank=1, ...],
        slots: InputTensor[dtype=DType.int32, rank=1, ...],
        offsets: InputTensor[dtype=DType.uint32, rank=1, ...],
        cache_lengths: InputTensor[dtype=DType.uint32, rank=1, ...],
        accepted: InputTensor[dtype=DType.int64, rank=1, ...],
        next_tokens: InputTensor[dtype=DType.int64, rank=1, ...],
        block: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        var size = Int(block.unsafe_ptr()[unsafe_offset=0])
        var noise = block.unsafe_ptr()[unsafe_offset=1]
        for i in range(ids.dim_size(0)):
            var s = Int(slots.unsafe_ptr()[unsafe_offset=i]) // size
            var place = Int(slots.unsafe_ptr()[unsafe_offset=i]) % size
            var tokens = Int(offsets.unsafe_ptr()[unsafe_offset=s + 1]) - Int(offsets.unsafe_ptr()[unsafe_offset=s])
            var end = Int(cache_lengths.unsafe_ptr()[unsafe_offset=s]) + tokens
            end += Int(accepted.unsafe_ptr()[unsafe_offset=s])
            ids.unsafe_ptr()[unsafe_offset=i] = next_tokens.unsafe_ptr()[unsafe_offset=s] if place == 0 else noise
            seq.unsafe_ptr()[unsafe_offset=i] = Int32(s)
            pos.unsafe_ptr()[unsafe_offset=i] = Int32(end + place)
            last.unsafe_ptr()[unsafe_offset=i] = Int32(end - 1)


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
        for r in range(logits.dim_size(0)):
            var bits = bitmask.unsafe_ptr().unsafe_offset((r // (k + 1) * rows + r % (k + 1)) * words)
            for i in range(v):
                var word = UInt32(bits[unsafe_offset=i // 32])
                var allowed = (word >> UInt32(i % 32)) & 1 == 1
                masked.unsafe_ptr()[unsafe_offset=r * v + i] = (
                    logits.unsafe_ptr()[unsafe_offset=r * v + i] if allowed else Float32.MIN
                )
