"""The drafter's head with its Markov and confidence parts."""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from .common import F32P, I64P, Rows, Scratch, U8P, at, bf16_at, parallel, rms_norm
from .gpu.draft_head import draft_head_gpu
from .heads import VOCAB_CHUNK
from .hyper import collapse
from .layout import EXACT, THREADS, RMS_EPS
from .linear import linear
from .quant import BF16
from .ratio import draft_seed
from .sampling import draw


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
        var block = drafts.dim_size(1)
        var rank = markov_embed.dim_size(1)
        var exact = mode.unsafe_ptr()[unsafe_offset=EXACT] != 0
        var threads = Int(mode.unsafe_ptr()[unsafe_offset=THREADS])
        var eps = model.unsafe_ptr()[unsafe_offset=RMS_EPS]
        var requests = n // block
        var identity_ = Rows(max(n, 1))
        var identity = identity_.ptr()
        var memory = Scratch(2 * n * d + requests * rank + requests * v)
        var x = memory.ptr()
        var normed = x.unsafe_offset(n * d)
        var e = normed.unsafe_offset(n * d)
        var bias = e.unsafe_offset(requests * rank)
        var pl: F32P = logits.unsafe_ptr()
        var w: U8P = head.unsafe_ptr().unsafe_bitcast[UInt8]()
        var we: U8P = markov_embed.unsafe_ptr().unsafe_bitcast[UInt8]()
        var wm: U8P = markov_head.unsafe_ptr().unsafe_bitcast[UInt8]()
        var wc: U8P = confidence_proj.unsafe_ptr().unsafe_bitcast[UInt8]()
        var pd: I64P = drafts.unsafe_ptr()
        var pconf: F32P = confidence.unsafe_ptr()
        for i in range(drafts.size()):
            pd[unsafe_offset=i] = -1
            pconf[unsafe_offset=i] = 0
        for r in range(n):
            var row = x.unsafe_offset(r * d)
            collapse(
                row, h.unsafe_ptr().unsafe_offset(r * c * d), mix.unsafe_ptr().unsafe_offset(r * m), c, d, exact
            )
            rms_norm(normed.unsafe_offset(r * d), row, norm.unsafe_ptr(), d, eps, exact)
        var chunks = (v + VOCAB_CHUNK - 1) // VOCAB_CHUNK

        def base(item: Int) {imm}:
            var n0 = item * VOCAB_CHUNK
            linear[BF16](pl, v, normed, d, identity, n, w, w, n0, min(n0 + VOCAB_CHUNK, v), d)

        parallel(base, chunks, n * v * d, threads)
        for j in range(block):
            for i in range(requests):
                var r = i * block + j
                var s = Int(slots.unsafe_ptr()[unsafe_offset=r]) // block
                var token = Int(ids.unsafe_ptr()[unsafe_offset=r])
                if j > 0:
                    token = Int(pd[unsafe_offset=s * block + j - 1])
                var total = Float32(0)
                for q in range(rank):
                    var value = bf16_at(we, token * rank + q)
                    e[unsafe_offset=i * rank + q] = value
                    total += value * bf16_at(wc, d + q)
                for q in range(d):
                    total += at(x, r * d + q) * bf16_at(wc, q)
                pconf[unsafe_offset=s * block + j] = total

            def markov(item: Int) {imm}:
                var n0 = item * VOCAB_CHUNK
                linear[BF16](bias, v, e, rank, identity, requests, wm, wm, n0, min(n0 + VOCAB_CHUNK, v), rank)

            parallel(markov, chunks, requests * v * rank, threads)
            for i in range(requests):
                var r = i * block + j
                var s = Int(slots.unsafe_ptr()[unsafe_offset=r]) // block
                var row = pl.unsafe_offset(r * v)
                for q in range(v):
                    row[unsafe_offset=q] += at(bias, i * v + q)
                var key = draft_seed(
                    seed.unsafe_ptr()[unsafe_offset=s], acceptance.unsafe_ptr()[unsafe_offset=s],
                    Int(pos.unsafe_ptr()[unsafe_offset=i * block]) + 1,
                )
                var token = draw(
                    row, v, temperature.unsafe_ptr()[unsafe_offset=s], key, Int(pos.unsafe_ptr()[unsafe_offset=r]) + 1
                )
                pd[unsafe_offset=s * block + j] = Int64(token)
        _ = identity_^
        _ = memory^
