"""The drafter's head on one device of several: base logits come gathered, the rest is what one device does."""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from .attention_in import copy
from .common import Scratch
from .draft_head import draft_places
from .gpu.draft_head import draft_tokens_gpu, every_row_gpu
from .hyper import collapse
from .layout import EXACT, THREADS


@compiler.register("sd_draft_tokens")
struct DraftTokens:
    """Draft tokens, confidences and logits as `sd_draft_head` gives them, from base logits [N, V]."""

    @staticmethod
    def execute[target: StaticString](
        drafts: OutputTensor[dtype=DType.int64, rank=2, ...],
        confidence: OutputTensor[dtype=DType.float32, rank=2, ...],
        logits: OutputTensor[dtype=DType.float32, rank=2, ...],
        base: InputTensor[dtype=DType.float32, rank=2, ...],
        h: InputTensor[dtype=DType.float32, rank=3, ...],
        mix: InputTensor[dtype=DType.float32, rank=2, ...],
        slots: InputTensor[dtype=DType.int32, rank=1, ...],
        ids: InputTensor[dtype=DType.int64, rank=1, ...],
        pos: InputTensor[dtype=DType.int32, rank=1, ...],
        seed: InputTensor[dtype=DType.uint64, rank=1, ...],
        temperature: InputTensor[dtype=DType.float32, rank=1, ...],
        acceptance: InputTensor[dtype=DType.int32, rank=1, ...],
        norm: InputTensor[dtype=DType.float32, rank=1, ...],
        markov_embed: InputTensor[dtype=DType.bfloat16, rank=2, ...],
        markov_head: InputTensor[dtype=DType.bfloat16, rank=2, ...],
        confidence_proj: InputTensor[dtype=DType.bfloat16, rank=2, ...],
        model: InputTensor[dtype=DType.float32, rank=1, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        var n = h.dim_size(0)
        var c = h.dim_size(1)
        var d = h.dim_size(2)
        var m = mix.dim_size(1)
        var v = logits.dim_size(1)
        comptime if is_gpu[target]():
            draft_tokens_gpu(
                ctx, drafts.unsafe_ptr(), confidence.unsafe_ptr(), logits.unsafe_ptr(), base.unsafe_ptr(),
                h.unsafe_ptr(), mix.unsafe_ptr(), slots.unsafe_ptr(), ids.unsafe_ptr(), pos.unsafe_ptr(),
                seed.unsafe_ptr(), temperature.unsafe_ptr(), acceptance.unsafe_ptr(), norm.unsafe_ptr(),
                markov_embed.unsafe_ptr().unsafe_bitcast[UInt8](), markov_head.unsafe_ptr().unsafe_bitcast[UInt8](),
                confidence_proj.unsafe_ptr().unsafe_bitcast[UInt8](), drafts.dim_size(0), n, c, d, m, v,
                drafts.dim_size(1), markov_embed.dim_size(1), markov_embed.dim_size(0), model.unsafe_ptr(),
                mode.unsafe_ptr(),
            )
            return
        var memory = Scratch(n * d)
        var x = memory.ptr()
        for r in range(n):
            collapse(
                x.unsafe_offset(r * d), h.unsafe_ptr().unsafe_offset(r * c * d),
                mix.unsafe_ptr().unsafe_offset(r * m), c, d, mode.unsafe_ptr()[unsafe_offset=EXACT] != 0,
            )
        copy(logits.unsafe_ptr(), base.unsafe_ptr(), n * v)
        draft_places(
            drafts.unsafe_ptr(), confidence.unsafe_ptr(), logits.unsafe_ptr(), x, slots.unsafe_ptr(),
            ids.unsafe_ptr(), pos.unsafe_ptr(), seed.unsafe_ptr(), temperature.unsafe_ptr(), acceptance.unsafe_ptr(),
            markov_embed.unsafe_ptr().unsafe_bitcast[UInt8](), markov_head.unsafe_ptr().unsafe_bitcast[UInt8](),
            confidence_proj.unsafe_ptr().unsafe_bitcast[UInt8](), drafts.size(), n, d, v, drafts.dim_size(1),
            markov_embed.dim_size(1), Int(mode.unsafe_ptr()[unsafe_offset=THREADS]),
        )
        _ = memory^


@compiler.register("sd_every_row")
struct EveryRow:
    """0, 1, 2 …, as many as `like` has."""

    @staticmethod
    def execute[target: StaticString](
        rows: OutputTensor[dtype=DType.int32, rank=1, ...],
        like: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            every_row_gpu(ctx, rows.unsafe_ptr(), rows.dim_size(0))
            return
        for i in range(rows.dim_size(0)):
            rows.unsafe_ptr()[unsafe_offset=i] = Int32(i)
