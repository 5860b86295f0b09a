"""A target and a drafter that know the last token alone, with caches that hold the tokens themselves."""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from extensibility import _MutableInputTensor as MutableTensor
from max.gpu.host import DeviceContext


@compiler.register("toy_verify")
struct ToyVerify:
    """cache[seq, pos] = token + 1 for every live row; logits [R, V] = table[token of each logit row]."""

    @staticmethod
    def execute[target: StaticString](
        logits: OutputTensor[dtype=DType.float32, rank=2, ...],
        cache: MutableTensor[dtype=DType.float32, rank=2, ...],
        tokens: InputTensor[dtype=DType.int64, rank=1, ...],
        seq: InputTensor[dtype=DType.int32, rank=1, ...],
        pos: InputTensor[dtype=DType.int32, rank=1, ...],
        logit_rows: InputTensor[dtype=DType.int32, rank=1, ...],
        table: InputTensor[dtype=DType.float32, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        var v = table.dim_size(1)
        var t = cache.dim_size(1)
        for r in range(tokens.dim_size(0)):
            if pos.unsafe_ptr()[unsafe_offset=r] >= 0:
                var at = Int(seq.unsafe_ptr()[unsafe_offset=r]) * t + Int(pos.unsafe_ptr()[unsafe_offset=r])
                cache.unsafe_ptr()[unsafe_offset=at] = Float32(tokens.unsafe_ptr()[unsafe_offset=r] + 1)
        for i in range(logit_rows.dim_size(0)):
            var token = max(Int(tokens.unsafe_ptr()[unsafe_offset=Int(logit_rows.unsafe_ptr()[unsafe_offset=i])]), 0)
            for q in range(v):
                logits.unsafe_ptr()[unsafe_offset=i * v + q] = table.unsafe_ptr()[unsafe_offset=token * v + q]


@compiler.register("toy_store")
struct ToyStore:
    """cache[seq, pos] = token + 1 for every live row; stored: how many."""

    @staticmethod
    def execute[target: StaticString](
        stored: OutputTensor[dtype=DType.int32, rank=1, ...],
        cache: MutableTensor[dtype=DType.float32, rank=2, ...],
        tokens: InputTensor[dtype=DType.int64, rank=1, ...],
        seq: InputTensor[dtype=DType.int32, rank=1, ...],
        pos: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        var t = cache.dim_size(1)
        stored.unsafe_ptr()[unsafe_offset=0] = 0
        for r in range(tokens.dim_size(0)):
            if pos.unsafe_ptr()[unsafe_offset=r] >= 0:
                var at = Int(seq.unsafe_ptr()[unsafe_offset=r]) * t + Int(pos.unsafe_ptr()[unsafe_offset=r])
                cache.unsafe_ptr()[unsafe_offset=at] = Float32(tokens.unsafe_ptr()[unsafe_offset=r] + 1)
                stored.unsafe_ptr()[unsafe_offset=0] += 1


@compiler.register("toy_draft")
struct ToyDraft:
    """Each drafting request's likeliest token after the one that its cache holds at row at[s] (nothing there: token 0).

    `stored` is read so that what was stored before is seen.
    """

    @staticmethod
    def execute[target: StaticString](
        drafts: OutputTensor[dtype=DType.int64, rank=2, ...],
        confidence: OutputTensor[dtype=DType.float32, rank=2, ...],
        logits: OutputTensor[dtype=DType.float32, rank=2, ...],
        cache: MutableTensor[dtype=DType.float32, rank=2, ...],
        slots: InputTensor[dtype=DType.int32, rank=1, ...],
        at: InputTensor[dtype=DType.int32, rank=1, ...],
        table: InputTensor[dtype=DType.float32, rank=2, ...],
        stored: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        var v = table.dim_size(1)
        for s in range(drafts.dim_size(0)):
            drafts.unsafe_ptr()[unsafe_offset=s] = -1
            confidence.unsafe_ptr()[unsafe_offset=s] = 0
        for i in range(slots.dim_size(0)):
            var s = Int(slots.unsafe_ptr()[unsafe_offset=i])
            var row = s * cache.dim_size(1) + Int(at.unsafe_ptr()[unsafe_offset=i])
            var token = max(Int(cache.unsafe_ptr()[unsafe_offset=row]) - 1, 0)
            var best = 0
            for q in range(v):
                var value = table.unsafe_ptr()[unsafe_offset=token * v + q]
                logits.unsafe_ptr()[unsafe_offset=i * v + q] = value
                if value > table.unsafe_ptr()[unsafe_offset=token * v + best]:
                    best = q
            drafts.unsafe_ptr()[unsafe_offset=s] = Int64(best)


@compiler.register("toy_cross")
struct ToyCross:
    """As `toy_draft`, from the token that runs; but token 0 unless cache row pos[i] - step holds its `step + 1`th before.

    In this toy's texts each token is one more than the token before it.
    """

    @staticmethod
    def execute[target: StaticString](
        drafts: OutputTensor[dtype=DType.int64, rank=2, ...],
        confidence: OutputTensor[dtype=DType.float32, rank=2, ...],
        logits: OutputTensor[dtype=DType.float32, rank=2, ...],
        cache: MutableTensor[dtype=DType.float32, rank=2, ...],
        slots: InputTensor[dtype=DType.int32, rank=1, ...],
        ids: InputTensor[dtype=DType.int64, rank=1, ...],
        pos: InputTensor[dtype=DType.int32, rank=1, ...],
        step: InputTensor[dtype=DType.int32, rank=1, ...],
        table: InputTensor[dtype=DType.float32, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        var v = table.dim_size(1)
        var j = Int(step.unsafe_ptr()[unsafe_offset=0])
        for s in range(drafts.dim_size(0)):
            drafts.unsafe_ptr()[unsafe_offset=s] = -1
            confidence.unsafe_ptr()[unsafe_offset=s] = 0
        for i in range(slots.dim_size(0)):
            var s = Int(slots.unsafe_ptr()[unsafe_offset=i])
            var token = Int(ids.unsafe_ptr()[unsafe_offset=i])
            var row = s * cache.dim_size(1) + Int(pos.unsafe_ptr()[unsafe_offset=i]) - j
            if Int(cache.unsafe_ptr()[unsafe_offset=row]) - 1 + j + 1 != token:
                token = v - 1
            var best = 0
            for q in range(v):
                var value = table.unsafe_ptr()[unsafe_offset=token * v + q]
                logits.unsafe_ptr()[unsafe_offset=i * v + q] = value
                if value > table.unsafe_ptr()[unsafe_offset=token * v + best]:
                    best = q
            drafts.unsafe_ptr()[unsafe_offset=s] = Int64(best)
