"""The drafter's head with its Markov and confidence parts."""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from .common import F32P, I32P, I64P, Rows, Scratch, U64P, U8P, at, bf16_at, parallel, rms_norm
from .gpu.draft_head import draft_head_gpu
from .heads import VOCAB_CHUNK
from .hyper import collapse
from .layout import EXACT, THREADS, RMS_EPS
from .linear import linear
from .quant import BF16
from .ratio import draft_seed
from .sampling import draw


def draft_places(
    drafts: I64P, confidence: F32P, logits: F32P, x: F32P, slots: I32P, ids: I64P, pos: I32P, seed: U64P,
    temperature: F32P, acceptance: I32P, embed: U8P, markov_head: U8P, confidence_proj: U8P, all: Int, n: Int, d: Int,
    v: Int, block: Int, rank: Int, threads: Int,
):
    """Left to right over the places of every block: Markov logits, the draw, the confidence.

    drafts, confidence [all / block, block] are set; logits [n, v] come in without their Markov part. x [n, d] un-normed.
    """
    var requests = n // block
    var identity_ = Rows(max(n, 1))
    var identity = identity_.ptr()
    var memory = Scratch(requests * (rank + v))
    var e = memory.ptr()
    var bias = e.unsafe_offset(requests * rank)
    for i in range(all):
        drafts[unsafe_offset=i] = -1
        confidence[unsafe_offset=i] = 0
    for j in range(block):
        for i in range(requests):
            var r = i * block + j
            var s = Int(slots[unsafe_offset=r]) // block
            var token = Int(ids[unsafe_offset=r])
            if j > 0:
                token = Int(drafts[unsafe_offset=s * block + j - 1])
            var total = Float32(0)
            for q in range(rank):
                var value = bf16_at(embed, token * rank + q)
                e[unsafe_offset=i * rank + q] = value
                total += value * bf16_at(confidence_proj, d + q)
            for q in range(d):
                total += at(x, r * d + q) * bf16_at(confidence_proj, q)
            confidence[unsafe_offset=s * block + j] = total

        def markov(item: Int) {imm}:
            var n0 = item * VOCAB_CHUNK
            linear[BF16](
                bias, v, e, rank, identity, requests, markov_head, markov_head, n0, min(n0 + VOCAB_CHUNK, v), rank
            )

        parallel(markov, (v + VOCAB_CHUNK - 1) // VOCAB_CHUNK, requests * v * rank, threads)
        for i in range(requests):
            var r = i * block + j
            var s = Int(slots[unsafe_offset=r]) // block
            var row = logits.unsafe_offset(r * v)
            for q in range(v):
                row[unsafe_offset=q] += at(bias, i * v + q)
            var key = draft_seed(
                seed[unsafe_offset=s], acceptance[unsafe_offset=s], Int(pos[unsafe_offset=i * block]) + 1
            )
            var token = draw(row, v, temperature[unsafe_offset=s], key, Int(pos[unsafe_offset=r]) + 1)
            drafts[unsafe_offset=s * block + j] = Int64(token)
    _ = identity_^
    _ = memory^


@compiler.register("sd_draft_head")
struct DraftHead:
    """Draft tokens and raw confidences [B, block] (-1 and 0 for requests that do not draft), logits [N, V].

    Left to right, logits_j = head x_j + markov_head markov_embed[t_j], t_0 the anchor; t_{j+1} is drawn with the
    target's own noise for its position, which makes it match as often as the two laws allow, or with noise of its own
    where acceptance [B] names a ratio test. The confidence reads the un-normed x_j and markov_embed[t_j]. h [N, C, D]
    after the last stage; slots, ids, pos [N].
    """

    @staticmethod
    def execute[target: StaticString](
        drafts: OutputTensor[dtype=DType.int64, rank=2, ...],
        confidence: OutputTensor[dtype=DType.float32, rank=2, ...],
        logits: OutputTensor[dtype=DType.float32, rank=2, ...],
        h: InputTensor[dtype=DType.float32, rank=3, ...],
        mix: InputTensor[dtype=DType.float32, rank=2, ...],
        slots: InputTensor[dtype=DType.int32, rank=1, ...],
        ids: InputTensor[dtype=DType.int64, rank=1, ...],
        pos: InputTensor[dtype=DType.int32, rank=1, ...],
        seed: InputTensor[dtype=DType.uint64, rank=1, ...],
        temperature: InputTensor[dtype=DType.float32, rank=1, ...],
        acceptance: InputTensor[dtype=DType.int32, rank=1, ...],
        norm: InputTensor[dtype=DType.float32, rank=1, ...],
        head: InputTensor[dtype=DType.bfloat16, rank=2, ...],
        markov_embed: InputTensor[dtype=DType.bfloat16, rank=2, ...],
        markov_head: InputTensor[dtype=DType.bfloat16, rank=2, ...],
        confidence_proj: InputTensor[dtype=DType.bfloat16, rank=2, ...],
        model: InputTensor[dtype=DType.float32, rank=1, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            draft_head_gpu(
                ctx, drafts.unsafe_ptr(), confidence.unsafe_ptr(), logits.unsafe_ptr(), h.unsafe_ptr(),
                mix.unsafe_ptr(), slots.unsafe_ptr(), ids.unsafe_ptr(), pos.unsafe_ptr(), seed.unsafe_ptr(),
                temperature.unsafe_ptr(), acceptance.unsafe_ptr(), norm.unsafe_ptr(),
                head.unsafe_ptr().unsafe_bitcast[UInt8](),
                markov_embed.unsafe_ptr().unsafe_bitcast[UInt8](), markov_head.unsafe_ptr().unsafe_bitcast[UInt8](),
                confidence_proj.unsafe_ptr().unsafe_bitcast[UInt8](), drafts.dim_size(0), h.dim_size(0), h.dim_size(1),
                h.dim_size(2), mix.dim_size(1), logits.dim_size(1), drafts.dim_size(1), markov_embed.dim_size(1),
                markov_embed.dim_size(0), model.unsafe_ptr(), mode.unsafe_ptr(),
            )
            return
        var n = h.dim_size(0)
        var c = h.dim_size(1)
        var d = h.dim_size(2)
        var m = mix.dim_size(1)
        var v = logits.dim_size(1)
        var exact = mode.unsafe_ptr()[unsafe_offset=EXACT] != 0
        var threads = Int(mode.unsafe_ptr()[unsafe_offset=THREADS])
        var eps = model.unsafe_ptr()[unsafe_offset=RMS_EPS]
        var identity_ = Rows(max(n, 1))
        var identity = identity_.ptr()
        var memory = Scratch(2 * n * d)
        var x = memory.ptr()
        var normed = x.unsafe_offset(n * d)
        var pl: F32P = logits.unsafe_ptr()
        var w: U8P = head.unsafe_ptr().unsafe_bitcast[UInt8]()
        for r in range(n):
            var row = x.unsafe_offset(r * d)
            collapse(
                row, h.unsafe_ptr().unsafe_offset(r * c * d), mix.unsafe_ptr().unsafe_offset(r * m), c, d, exact
            )
            rms_norm(normed.unsafe_offset(r * d), row, norm.unsafe_ptr(), d, eps, exact)

        def base(item: Int) {imm}:
            var n0 = item * VOCAB_CHUNK
            linear[BF16](pl, v, normed, d, identity, n, w, w, n0, min(n0 + VOCAB_CHUNK, v), d)

        parallel(base, (v + VOCAB_CHUNK - 1) // VOCAB_CHUNK, n * v * d, threads)
        draft_places(
            drafts.unsafe_ptr(), confidence.unsafe_ptr(), pl, x, slots.unsafe_ptr(), ids.unsafe_ptr(),
            pos.unsafe_ptr(), seed.unsafe_ptr(), temperature.unsafe_ptr(), acceptance.unsafe_ptr(),
            markov_embed.unsafe_ptr().unsafe_bitcast[UInt8](), markov_head.unsafe_ptr().unsafe_bitcast[UInt8](),
            confidence_proj.unsafe_ptr().unsafe_bitcast[UInt8](), drafts.size(), n, d, v, drafts.dim_size(1),
            markov_embed.dim_size(1), threads,
        )
        _ = identity_^
        _ = memory^
