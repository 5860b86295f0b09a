"""The compressor of a kv source layer: one latent per group of RATIO tokens, its cached row and its index key.

A ratio-2 group whose first token was run in an earlier step finds that token's projections in the open-group leaf.
"""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from extensibility import _MutableInputTensor as MutableTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from std.math import exp
from .attention_in import CHUNK, copy
from .common import F32P, I32P, Rows, Scratch, U8P, at, bf16, bf16_row, parallel, rms_norm, rope, rope_table
from .gpu.compress import compress
from .layout import EXACT, THREADS, KEY_OFFSET, KV_OFFSET, Leaf, OPEN_LAYER, OWNS_KEYS, PAGE_SIZE, RATIO, RMS_EPS
from .linear import linear
from .quant import BF16, qdq_mxfp4, qdq_nvfp4


def pool(dst: F32P, kv0: F32P, gate0: F32P, kv1: F32P, gate1: F32P, k: Int):
    """Channelwise softmax of two gates over two projections."""
    for i in range(k):
        var top = max(at(gate0, i), at(gate1, i))
        var a = exp(at(gate0, i) - top)
        var b = exp(at(gate1, i) - top)
        var total = a + b
        dst[unsafe_offset=i] = a / total * at(kv0, i) + b / total * at(kv1, i)


@compiler.register("sd_compress")
struct Compress:
    """Writes the compressed rows and index keys of every group that this step completes.

    latent [T, K]: at the row that completes a group, the group's normed latent (elsewhere unset).
    x [T, D] the layer's normed input; wkv, wgate [K, D] bf16 (wgate unused at ratio 1); norm [K]; wk [I, K] bf16,
    k_norm [I] (unused unless OWNS_KEYS).
    """

    @staticmethod
    def execute[target: StaticString](
        latent: OutputTensor[dtype=DType.float32, rank=2, ...],
        rows_leaf: MutableTensor[dtype=DType.float32, rank=6, ...],
        keys_leaf: MutableTensor[dtype=DType.float32, rank=6, ...],
        open_leaf: MutableTensor[dtype=DType.float32, rank=6, ...],
        x: InputTensor[dtype=DType.float32, rank=2, ...],
        seq: InputTensor[dtype=DType.int32, rank=1, ...],
        pos: InputTensor[dtype=DType.int32, rank=1, ...],
        table: InputTensor[dtype=DType.uint32, rank=2, ...],
        wkv: InputTensor[dtype=DType.bfloat16, rank=2, ...],
        wgate: InputTensor[dtype=DType.bfloat16, rank=2, ...],
        norm: InputTensor[dtype=DType.float32, rank=1, ...],
        wk: InputTensor[dtype=DType.bfloat16, rank=2, ...],
        k_norm: InputTensor[dtype=DType.float32, rank=1, ...],
        inv_freq: InputTensor[dtype=DType.float32, rank=1, ...],
        layer: InputTensor[dtype=DType.int32, rank=1, ...],
        model: InputTensor[dtype=DType.float32, rank=1, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            # Without a gate of its own (ratio 1) the layer hands over wkv twice.
            var gated = Int(wgate.unsafe_ptr()) != Int(wkv.unsafe_ptr())
            compress(
                ctx, latent.unsafe_ptr(), rows_leaf.unsafe_ptr(), keys_leaf.unsafe_ptr(), open_leaf.unsafe_ptr(),
                x.unsafe_ptr(), seq.unsafe_ptr(), pos.unsafe_ptr(), table.unsafe_ptr(),
                wkv.unsafe_ptr().unsafe_bitcast[UInt8](), wgate.unsafe_ptr().unsafe_bitcast[UInt8](), norm.unsafe_ptr(),
                wk.unsafe_ptr().unsafe_bitcast[UInt8](), k_norm.unsafe_ptr(), inv_freq.unsafe_ptr(), layer.unsafe_ptr(),
                model.unsafe_ptr(), mode.unsafe_ptr(), x.dim_size(0), x.dim_size(1), latent.dim_size(1), k_norm.dim_size(0),
                inv_freq.dim_size(0), rows_leaf.dim_size(3), keys_leaf.dim_size(3), open_leaf.dim_size(2),
                open_leaf.dim_size(3), table.dim_size(1), gated,
            )
            return
        var t = x.dim_size(0)
        var d = x.dim_size(1)
        var k = latent.dim_size(1)
        var nk = k_norm.dim_size(0)
        var half = inv_freq.dim_size(0)
        var exact = mode.unsafe_ptr()[unsafe_offset=EXACT] != 0
        var threads = Int(mode.unsafe_ptr()[unsafe_offset=THREADS])
        var eps = model.unsafe_ptr()[unsafe_offset=RMS_EPS]
        var settings: I32P = layer.unsafe_ptr()
        var ratio = Int(settings[unsafe_offset=RATIO])
        var owns_keys = settings[unsafe_offset=OWNS_KEYS] != 0
        var kv_offset = Int(settings[unsafe_offset=KV_OFFSET])
        var key_offset = Int(settings[unsafe_offset=KEY_OFFSET])
        var open_layer = Int(settings[unsafe_offset=OPEN_LAYER])
        var page_size = Int(settings[unsafe_offset=PAGE_SIZE])
        var pages: Pointer[UInt32, MutAnyOrigin] = table.unsafe_ptr()
        var width = table.dim_size(1)
        var kv_leaf = Leaf(rows_leaf.unsafe_ptr(), 1, rows_leaf.dim_size(3), k, pages, width, page_size)
        var key_leaf = Leaf(keys_leaf.unsafe_ptr(), 1, keys_leaf.dim_size(3), nk, pages, width, page_size)
        var ring = open_leaf.dim_size(3)
        var groups = Leaf(open_leaf.unsafe_ptr(), open_leaf.dim_size(2), ring, 2 * k, pages, width, page_size)
        var ids = Rows(t)
        var rows = ids.ptr()
        var memory = Scratch(t * 2 * k + t * nk + t * 2 * half)
        var projected = memory.ptr()  # [T, 2 K]: wkv x, wgate x
        var keys = projected.unsafe_offset(t * 2 * k)
        var turns = keys.unsafe_offset(t * nk)
        var px: F32P = x.unsafe_ptr()
        var pl: F32P = latent.unsafe_ptr()
        var pseq: I32P = seq.unsafe_ptr()
        var ppos: I32P = pos.unsafe_ptr()
        var freq: F32P = inv_freq.unsafe_ptr()
        var pn: F32P = norm.unsafe_ptr()
        var pkn: F32P = k_norm.unsafe_ptr()
        var w: U8P = wkv.unsafe_ptr().unsafe_bitcast[UInt8]()
        var g: U8P = wgate.unsafe_ptr().unsafe_bitcast[UInt8]()
        var wkey: U8P = wk.unsafe_ptr().unsafe_bitcast[UInt8]()
        var chunks = (k + CHUNK - 1) // CHUNK

        def project(item: Int) {imm}:
            var n = (item % chunks) * CHUNK
            var end = min(n + CHUNK, k)
            if item < chunks:
                linear[BF16](projected, 2 * k, px, d, rows, t, w, w, n, end, d)
            else:
                linear[BF16](projected.unsafe_offset(k), 2 * k, px, d, rows, t, g, g, n, end, d)

        parallel(project, chunks * (2 if ratio > 1 else 1), t * d * k * ratio, threads)

        def finish(r: Int) {imm}:
            var p = Int(ppos[unsafe_offset=r])
            if p < 0 or (p + 1) % ratio != 0:
                return
            var s = Int(pseq[unsafe_offset=r])
            var row = pl.unsafe_offset(r * k)
            var own = projected.unsafe_offset(r * 2 * k)
            if ratio == 1:
                copy(row, own, k)
            else:
                var here = r > 0 and Int(pseq[unsafe_offset=r - 1]) == s and Int(ppos[unsafe_offset=r - 1]) == p - 1
                var first = own.unsafe_offset(-2 * k) if here else groups.open_group(s, open_layer, p - 1)
                pool(row, first, first.unsafe_offset(k), own, own.unsafe_offset(k), k)
            bf16_row(row, k, exact)
            rms_norm(row, row, pn, k, eps, exact)
            var group = p // ratio
            var turn = turns.unsafe_offset(r * 2 * half)
            rope_table(turn, freq, group * ratio, half)
            var stored = kv_leaf.compressed(s, kv_offset, ratio, group)
            copy(stored, row, k)
            rope(stored.unsafe_offset(k - 2 * half), turn, half, 1, exact)
            qdq_nvfp4(stored, k, exact)
            if owns_keys:
                var key = key_leaf.compressed(s, key_offset, ratio, group)
                linear[BF16](keys.unsafe_offset(r * nk), nk, pl, k, rows.unsafe_offset(r), 1, wkey, wkey, 0, nk, k)
                copy(key, keys.unsafe_offset(r * nk), nk)
                bf16_row(key, nk, exact)
                rms_norm(key, key, pkn, nk, eps, exact)
                rope(key.unsafe_offset(nk - 2 * half), turn, half, 1, exact)
                qdq_mxfp4(key, nk, exact)

        parallel(finish, t, t * nk * k, threads)
        if ratio > 1:
            # After every group that reads the leaf; of a long chunk only its end can be asked for later.
            for r in range(t):
                var p = Int(ppos[unsafe_offset=r])
                if p >= 0 and p % 2 == 0 and last_position(pseq, ppos, r, t) - p < 2 * ring:
                    var own = projected.unsafe_offset(r * 2 * k)
                    copy(groups.open_group(Int(pseq[unsafe_offset=r]), open_layer, p), own, 2 * k)
        _ = ids^
        _ = memory^


def last_position(seq: I32P, pos: I32P, r: Int, t: Int) -> Int:
    """The last position, within this step and at most a ring away, of row r's sequence."""
    var last = Int(pos[unsafe_offset=r])
    for i in range(r + 1, min(t, r + 65)):
        if seq[unsafe_offset=i] != seq[unsafe_offset=r] or pos[unsafe_offset=i] < 0:
            break
        last = Int(pos[unsafe_offset=i])
    return last
