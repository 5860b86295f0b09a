"""The step around the model: merge, Engram lookback, embedding, and the draft block's inputs."""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from .common import F32P, I32P, I64P, U32P, U8P, bf16_at
from .engram import token_before
from .gpu.step import block_inputs_gpu, embed_gpu, history_gpu, lookback_gpu, merge_gpu


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
        comptime if is_gpu[target]():
            merge_gpu(
                ctx, merged.unsafe_ptr(), seq.unsafe_ptr(), pos.unsafe_ptr(), merged_offsets.unsafe_ptr(),
                logit_rows.unsafe_ptr(), chosen.unsafe_ptr(), blocks.unsafe_ptr(), tokens.unsafe_ptr(),
                offsets.unsafe_ptr(), drafts.unsafe_ptr(), cache_lengths.unsafe_ptr(), m, b,
                k, chosen.dim_size(1), blocks.dim_size(1),
            )
            return
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
        comptime if is_gpu[target]():
            lookback_gpu(
                ctx, window.unsafe_ptr(), ids.unsafe_ptr(), source.unsafe_ptr(), history.unsafe_ptr(),
                window.dim_size(0), window.dim_size(1), history.dim_size(0),
            )
            return
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
        comptime if is_gpu[target]():
            history_gpu(
                ctx, history.unsafe_ptr(), lookback.unsafe_ptr(), merged.unsafe_ptr(), seq.unsafe_ptr(),
                pos.unsafe_ptr(), logit_rows.unsafe_ptr(), accepted.unsafe_ptr(), history.dim_size(0),
                history.dim_size(1), logit_rows.dim_size(0) // max(history.dim_size(0), 1), merged.dim_size(0),
            )
            return
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
        comptime if is_gpu[target]():
            embed_gpu(
                ctx, h.unsafe_ptr(), mix.unsafe_ptr(), tokens.unsafe_ptr(), table.unsafe_ptr().unsafe_bitcast[UInt8](),
                h.dim_size(0), h.dim_size(1), h.dim_size(2), mix.dim_size(1), table.dim_size(0),
            )
            return
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
        comptime if is_gpu[target]():
            block_inputs_gpu(
                ctx, ids.unsafe_ptr(), seq.unsafe_ptr(), pos.unsafe_ptr(), last.unsafe_ptr(), slots.unsafe_ptr(),
                offsets.unsafe_ptr(), cache_lengths.unsafe_ptr(), accepted.unsafe_ptr(), next_tokens.unsafe_ptr(),
                block.unsafe_ptr(), ids.dim_size(0),
            )
            return
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
