"""Engram: hashed n-gram rows from a host table, gated into every residual copy before a layer.

The hash runs over compressed token ids; from the sequence start, or from an image token backwards, the pad id stands.
"""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from std.math import fma, sqrt
from .attention_in import CHUNK
from .common import F32P, I32P, I64P, Rows, Scratch, U8P, Vec, W, at, bf16, bf16_row, bf16v, ld, parallel, sigmoid, st
from .common import sum_squares
from .gpu.engram import engram_gpu, engram_rows_gpu
from .layout import EXACT, THREADS, RMS_EPS
from .linear import linear
from .quant import E4M3, block_scale, decode32, qdq_fp8


def token_before(
    tokens: I64P, seq: I32P, pos: I32P, lookback: I64P, depth: Int, r: Int, back: Int
) -> Int64:
    """The raw token `back` places before row r, or -1 before the sequence's start."""
    var p = Int(pos[unsafe_offset=r])
    if back > p:
        return -1
    var first = r
    for i in range(1, back + 1):
        if r - i < 0 or seq[unsafe_offset=r - i] != seq[unsafe_offset=r]:
            break
        first = r - i
    if r - first == back:
        return tokens[unsafe_offset=first]
    # The lookback window ends just before the first row of this step.
    var missing = back - (r - first)
    return lookback[unsafe_offset=Int(seq[unsafe_offset=r]) * depth + depth - missing]


@compiler.register("sd_engram_rows")
struct EngramRows:
    """Table rows [T, L, (N - 1) heads] of every Engram layer.

    tokens, seq, pos [T]; lookback [B, N - 1] raw ids before each sequence's first row; compressed [V];
    multipliers [L, N]; primes, offsets [L, N - 1, heads]; ids [2] = pad (compressed), image (raw).
    """

    @staticmethod
    def execute[target: StaticString](
        rows: OutputTensor[dtype=DType.int64, rank=3, ...],
        tokens: InputTensor[dtype=DType.int64, rank=1, ...],
        seq: InputTensor[dtype=DType.int32, rank=1, ...],
        pos: InputTensor[dtype=DType.int32, rank=1, ...],
        lookback: InputTensor[dtype=DType.int64, rank=2, ...],
        compressed: InputTensor[dtype=DType.int64, rank=1, ...],
        multipliers: InputTensor[dtype=DType.int64, rank=2, ...],
        primes: InputTensor[dtype=DType.int64, rank=3, ...],
        offsets: InputTensor[dtype=DType.int64, rank=3, ...],
        ids: InputTensor[dtype=DType.int64, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            engram_rows_gpu(
                ctx, rows.unsafe_ptr(), tokens.unsafe_ptr(), seq.unsafe_ptr(), pos.unsafe_ptr(), lookback.unsafe_ptr(),
                compressed.unsafe_ptr(), multipliers.unsafe_ptr(), primes.unsafe_ptr(), offsets.unsafe_ptr(),
                ids.unsafe_ptr(), tokens.dim_size(0), multipliers.dim_size(0), multipliers.dim_size(1),
                primes.dim_size(2), lookback.dim_size(1), compressed.dim_size(0),
            )
            return
        var t = tokens.dim_size(0)
        var layers = multipliers.dim_size(0)
        var n = multipliers.dim_size(1)
        var heads = primes.dim_size(2)
        var depth = lookback.dim_size(1)
        var per_layer = (n - 1) * heads
        var pr: I64P = rows.unsafe_ptr()
        var pt: I64P = tokens.unsafe_ptr()
        var pl: I64P = lookback.unsafe_ptr()
        var pc: I64P = compressed.unsafe_ptr()
        var pm: I64P = multipliers.unsafe_ptr()
        var pp: I64P = primes.unsafe_ptr()
        var po: I64P = offsets.unsafe_ptr()
        var pseq: I32P = seq.unsafe_ptr()
        var ppos: I32P = pos.unsafe_ptr()
        var pad = ids.unsafe_ptr()[unsafe_offset=0]
        var image = ids.unsafe_ptr()[unsafe_offset=1]
        var gram = List[Int64](length=n, fill=0)
        for r in range(t):
            if Int(ppos[unsafe_offset=r]) < 0:
                for i in range(layers * per_layer):
                    pr[unsafe_offset=r * layers * per_layer + i] = 0
                continue
            var blocked = False
            for s in range(n):
                var raw = token_before(pt, pseq, ppos, pl, depth, r, s)
                blocked = blocked or raw < 0 or raw == image
                gram[s] = pad if blocked else pc[unsafe_offset=Int(raw)]
            for layer in range(layers):
                var hash = gram[0] * pm[unsafe_offset=layer * n]
                for s in range(1, n):
                    hash = hash ^ (gram[s] * pm[unsafe_offset=layer * n + s])
                    for head in range(heads):
                        var i = (layer * (n - 1) + s - 1) * heads + head
                        # A floored remainder, as in the reference: hashes may be negative.
                        var prime = pp[unsafe_offset=i]
                        var rest = hash - (hash // prime) * prime
                        pr[unsafe_offset=r * layers * per_layer + i] = rest + po[unsafe_offset=i]


@compiler.register("sd_engram")
struct Engram:
    """Gives h_out [T, C, D] = h with the gated value added to every copy.

    rows [T, L, G]; which [1] this layer's place in L; table [R, E] FP8 and scale [R, E/32] in host memory;
    wkv [(C + 1) D, G E] FP8; q_weight, k_weight [C, D]; image token rows and rows without a position pass.
    """

    @staticmethod
    def execute[target: StaticString](
        h_out: OutputTensor[dtype=DType.float32, rank=3, ...],
        h: InputTensor[dtype=DType.float32, rank=3, ...],
        rows: InputTensor[dtype=DType.int64, rank=3, ...],
        pos: InputTensor[dtype=DType.int32, rank=1, ...],
        tokens: InputTensor[dtype=DType.int64, rank=1, ...],
        ids: InputTensor[dtype=DType.int64, rank=1, ...],
        which: InputTensor[dtype=DType.int32, rank=1, ...],
        table: InputTensor[dtype=DType.uint8, rank=2, ...],
        scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        wkv: InputTensor[dtype=DType.uint8, rank=2, ...],
        wkv_scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        q_weight: InputTensor[dtype=DType.float32, rank=2, ...],
        k_weight: InputTensor[dtype=DType.float32, rank=2, ...],
        model: InputTensor[dtype=DType.float32, rank=1, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            engram_gpu(
                ctx, h_out.unsafe_ptr(), h.unsafe_ptr(), rows.unsafe_ptr(), pos.unsafe_ptr(), tokens.unsafe_ptr(),
                ids.unsafe_ptr(), which.unsafe_ptr(), table.unsafe_ptr(), scale.unsafe_ptr(), wkv.unsafe_ptr(),
                wkv_scale.unsafe_ptr(), q_weight.unsafe_ptr(), k_weight.unsafe_ptr(), h.dim_size(0), h.dim_size(1),
                h.dim_size(2), rows.dim_size(1), rows.dim_size(2), table.dim_size(1), table.dim_size(0),
                model.unsafe_ptr(), mode.unsafe_ptr(),
            )
            return
        var t = h.dim_size(0)
        var c = h.dim_size(1)
        var d = h.dim_size(2)
        var layers = rows.dim_size(1)
        var g = rows.dim_size(2)
        var width = table.dim_size(1)
        var e = g * width
        var n = wkv.dim_size(0)
        var exact = mode.unsafe_ptr()[unsafe_offset=EXACT] != 0
        var threads = Int(mode.unsafe_ptr()[unsafe_offset=THREADS])
        var eps = model.unsafe_ptr()[unsafe_offset=RMS_EPS]
        var layer = Int(which.unsafe_ptr()[unsafe_offset=0])
        var image = ids.unsafe_ptr()[unsafe_offset=1]
        var identity_ = Rows(t)
        var identity = identity_.ptr()
        var memory = Scratch(t * e + t * n)
        var embedded = memory.ptr()
        var kv = embedded.unsafe_offset(t * e)
        var ph: F32P = h.unsafe_ptr()
        var po: F32P = h_out.unsafe_ptr()
        var pr: I64P = rows.unsafe_ptr()
        var pt: U8P = table.unsafe_ptr()
        var ps: U8P = scale.unsafe_ptr()
        var pw: U8P = wkv.unsafe_ptr()
        var pws: U8P = wkv_scale.unsafe_ptr()
        var pqw: F32P = q_weight.unsafe_ptr()
        var pkw: F32P = k_weight.unsafe_ptr()
        for r in range(t):
            for i in range(g):
                var row = Int(pr[unsafe_offset=(r * layers + layer) * g + i])
                var dst = embedded.unsafe_offset(r * e + i * width)
                for block in range(width // 32):
                    var v = decode32[E4M3](pt.unsafe_offset(row * width), block)
                    var factor = block_scale[E4M3](ps[unsafe_offset=row * (width // 32) + block])
                    comptime for q in range(4):
                        st(dst, block * 32 + q * W, v[q] * factor)
            qdq_fp8(embedded.unsafe_offset(r * e), embedded.unsafe_offset(r * e), e, exact)

        def project(item: Int) {imm}:
            var n0 = item * CHUNK
            linear[E4M3](kv, n, embedded, e, identity, t, pw, pws, n0, min(n0 + CHUNK, n), e)

        parallel(project, (n + CHUNK - 1) // CHUNK, t * n * e, threads)
        for r in range(t):
            var row = kv.unsafe_offset(r * n)
            bf16_row(row, n, exact)
            var passes = pos.unsafe_ptr()[unsafe_offset=r] < 0 or tokens.unsafe_ptr()[unsafe_offset=r] == image
            var value = row.unsafe_offset(c * d)
            for copy in range(c):
                var stream = ph.unsafe_offset((r * c + copy) * d)
                var dst = po.unsafe_offset((r * c + copy) * d)
                var gamma = Float32(0)
                if not passes:
                    gamma = gate(
                        stream, row.unsafe_offset(copy * d), pqw.unsafe_offset(copy * d),
                        pkw.unsafe_offset(copy * d), d, eps,
                    )
                for i in range(0, d, W):
                    st(dst, i, bf16v(fma(Vec(gamma), ld(value, i), ld(stream, i)), exact))
        _ = identity_^
        _ = memory^


def gate(h: F32P, key: F32P, q_weight: F32P, k_weight: F32P, d: Int, eps: Float32) -> Float32:
    """Gate of one copy: sigmoid of the signed square root of the normed, weighted dot product."""
    var acc = Vec(0.0)
    for i in range(0, d, W):
        acc = fma(ld(h, i) * (ld(q_weight, i) * ld(k_weight, i)), ld(key, i), acc)
    var n = Float32(d)
    var dot = acc.reduce_add() / sqrt(sum_squares(h, d) / n + eps) / sqrt(sum_squares(key, d) / n + eps) / sqrt(n)
    var root = sqrt(max(abs(dot), 1e-6))
    return sigmoid(-root if dot < 0 else (root if dot > 0 else 0))
