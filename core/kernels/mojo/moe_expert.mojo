"""The mixture of experts under expert parallelism: every device has some experts whole, and all rows come to it.

sd_route, gather of rows and routing, sd_experts_local into the device's buffer, sd_exchange back to the rows' home,
sd_experts_combine: bit for bit what one device computes.
"""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from extensibility import _MutableInputTensor as MutableTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from .attention_in import copy
from .common import F32P, I32P, Scratch, U8P, Vec, W, at, bf16_row, st
from .experts import Slots, activate, add_rounded, first_matmul, next_by_id, second_matmul
from .gpu.moe_expert import combine_gpu, exchange_gpu, local_gpu
from .hyper import expand
from .layout import EXACT, THREADS, SWIGLU_LIMIT
from .quant import evens_first


@compiler.register("sd_experts_local")
struct ExpertsLocal:
    """Results of the choices that fall on this device's experts, into rows r * k + j of its buffer [rows, D].

    x [T, D], ids, weights [T, k]: rows of all devices. first [1]: its first expert; w1, w3 [E', I, D/2], w2
    [E', D, I/2] FP4. Rows of other devices' experts stay as they are. Out: the number of rows, [1].
    """

    @staticmethod
    def execute[target: StaticString](
        used: OutputTensor[dtype=DType.int32, rank=1, ...],
        buffer: MutableTensor[dtype=DType.float32, rank=2, ...],
        x: InputTensor[dtype=DType.float32, rank=2, ...],
        ids: InputTensor[dtype=DType.int32, rank=2, ...],
        weights: InputTensor[dtype=DType.float32, rank=2, ...],
        first: InputTensor[dtype=DType.int32, rank=1, ...],
        w1: InputTensor[dtype=DType.uint8, rank=3, ...],
        w1_scale: InputTensor[dtype=DType.uint8, rank=3, ...],
        w3: InputTensor[dtype=DType.uint8, rank=3, ...],
        w3_scale: InputTensor[dtype=DType.uint8, rank=3, ...],
        w2: InputTensor[dtype=DType.uint8, rank=3, ...],
        w2_scale: InputTensor[dtype=DType.uint8, rank=3, ...],
        model: InputTensor[dtype=DType.float32, rank=1, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        var t = x.dim_size(0)
        var d = x.dim_size(1)
        var k = ids.dim_size(1)
        var inner = w1.dim_size(1)
        if t * k > buffer.dim_size(0):
            raise Error("sd_experts_local: more rows than the expert-parallel buffer has")
        comptime if is_gpu[target]():
            local_gpu(
                ctx, buffer.unsafe_ptr(), x.unsafe_ptr(), ids.unsafe_ptr(), weights.unsafe_ptr(), first.unsafe_ptr(),
                w1.unsafe_ptr(), w1_scale.unsafe_ptr(), w3.unsafe_ptr(), w3_scale.unsafe_ptr(), w2.unsafe_ptr(),
                w2_scale.unsafe_ptr(), model.unsafe_ptr(), mode.unsafe_ptr(), t, d, inner, k, w1.dim_size(0),
            )
            return
        used.unsafe_ptr()[unsafe_offset=0] = Int32(t * k)
        var exact = mode.unsafe_ptr()[unsafe_offset=EXACT] != 0
        var threads = Int(mode.unsafe_ptr()[unsafe_offset=THREADS])
        var limit = model.unsafe_ptr()[unsafe_offset=SWIGLU_LIMIT]
        var slots = Slots(ids.unsafe_ptr(), t, k, Int(first.unsafe_ptr()[unsafe_offset=0]), w1.dim_size(0), 0)
        if slots.size == 0:
            return
        var memory = Scratch(slots.size * (2 * inner + d))
        var hidden = memory.ptr()
        var up = hidden.unsafe_offset(slots.size * inner)
        var results = up.unsafe_offset(slots.size * inner)
        var none: U8P = w1.unsafe_ptr()  # there is no shared expert here
        first_matmul(
            hidden, up, slots, x.unsafe_ptr(), t, d, inner, w1.unsafe_ptr(), w1_scale.unsafe_ptr(), w3.unsafe_ptr(),
            w3_scale.unsafe_ptr(), none, none, none, none, exact, threads,
        )
        for i in range(t * k):
            if slots.slot_of[i] >= 0:
                var row = hidden.unsafe_offset(slots.slot_of[i] * inner)
                var upper = up.unsafe_offset(slots.slot_of[i] * inner)
                activate(row, upper, inner, at(weights.unsafe_ptr(), i), limit, exact)
                evens_first(row, row, inner)
        second_matmul(results, hidden, slots, inner, d, w2.unsafe_ptr(), w2_scale.unsafe_ptr(), none, none, threads)
        for i in range(t * k):
            if slots.slot_of[i] >= 0:
                copy(buffer.unsafe_ptr().unsafe_offset(i * d), results.unsafe_offset(slots.slot_of[i] * d), d)
        _ = memory^
        _ = slots^


@compiler.register("sd_exchange")
struct Exchange:
    """Rows of a buffer [rows, D] that belong to one device: part [M, k, D] from row starts[0] * k.

    `like` [M, k] gives the shape; used [1] comes from the kernel that filled the buffer, and keeps the order.
    """

    @staticmethod
    def execute[target: StaticString](
        part: OutputTensor[dtype=DType.float32, rank=3, ...],
        buffer: MutableTensor[dtype=DType.float32, rank=2, ...],
        used: InputTensor[dtype=DType.int32, rank=1, ...],
        start: InputTensor[dtype=DType.int32, rank=1, ...],
        like: InputTensor[dtype=DType.int32, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        var d = part.dim_size(2)
        var rows = part.dim_size(0) * part.dim_size(1)
        comptime if is_gpu[target]():
            exchange_gpu(
                ctx, part.unsafe_ptr(), buffer.unsafe_ptr(), start.unsafe_ptr(), rows, part.dim_size(1), d,
                buffer.dim_size(0),
            )
            return
        var first = Int(start.unsafe_ptr()[unsafe_offset=0]) * part.dim_size(1)
        if rows > 0 and first + rows > buffer.dim_size(0):
            raise Error("sd_exchange: rows beyond the expert-parallel buffer")
        copy(part.unsafe_ptr(), buffer.unsafe_ptr().unsafe_offset(first * d), rows * d)


@compiler.register("sd_experts_combine")
struct ExpertsCombine:
    """Gives h_out [T, C, D] and the output y [T, D] of a device's own rows.

    results [P, T, k, D]: what each of P groups of experts gave; expert e is in group e // share[0]. The shared expert
    (s1, s3 [I, D], s2 [D, I] FP8) is computed here.
    """

    @staticmethod
    def execute[target: StaticString](
        h_out: OutputTensor[dtype=DType.float32, rank=3, ...],
        y: OutputTensor[dtype=DType.float32, rank=2, ...],
        x: InputTensor[dtype=DType.float32, rank=2, ...],
        h: InputTensor[dtype=DType.float32, rank=3, ...],
        mix: InputTensor[dtype=DType.float32, rank=2, ...],
        ids: InputTensor[dtype=DType.int32, rank=2, ...],
        results: InputTensor[dtype=DType.float32, rank=4, ...],
        share: InputTensor[dtype=DType.int32, rank=1, ...],
        s1: InputTensor[dtype=DType.uint8, rank=2, ...],
        s1_scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        s3: InputTensor[dtype=DType.uint8, rank=2, ...],
        s3_scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        s2: InputTensor[dtype=DType.uint8, rank=2, ...],
        s2_scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        model: InputTensor[dtype=DType.float32, rank=1, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        var t = x.dim_size(0)
        var d = x.dim_size(1)
        var c = h.dim_size(1)
        var m = mix.dim_size(1)
        var k = ids.dim_size(1)
        var inner = s1.dim_size(0)
        comptime if is_gpu[target]():
            combine_gpu(
                ctx, h_out.unsafe_ptr(), y.unsafe_ptr(), x.unsafe_ptr(), h.unsafe_ptr(), mix.unsafe_ptr(),
                ids.unsafe_ptr(), results.unsafe_ptr(), share.unsafe_ptr(), s1.unsafe_ptr(), s1_scale.unsafe_ptr(),
                s3.unsafe_ptr(), s3_scale.unsafe_ptr(), s2.unsafe_ptr(), s2_scale.unsafe_ptr(), model.unsafe_ptr(),
                mode.unsafe_ptr(), t, d, c, m, inner, k,
            )
            return
        var exact = mode.unsafe_ptr()[unsafe_offset=EXACT] != 0
        var threads = Int(mode.unsafe_ptr()[unsafe_offset=THREADS])
        var limit = model.unsafe_ptr()[unsafe_offset=SWIGLU_LIMIT]
        var per = Int(share.unsafe_ptr()[unsafe_offset=0])
        var pids: I32P = ids.unsafe_ptr()
        var slots = Slots(pids, t, 0, 0, 0, t)  # the shared expert's alone
        var memory = Scratch(t * (2 * inner + d) + d)
        var hidden = memory.ptr()
        var up = hidden.unsafe_offset(t * inner)
        var own = up.unsafe_offset(t * inner)
        var term = own.unsafe_offset(t * d)
        first_matmul(
            hidden, up, slots, x.unsafe_ptr(), t, d, inner, s1.unsafe_ptr(), s1.unsafe_ptr(), s1.unsafe_ptr(),
            s1.unsafe_ptr(), s1.unsafe_ptr(), s1_scale.unsafe_ptr(), s3.unsafe_ptr(), s3_scale.unsafe_ptr(), exact,
            threads,
        )
        for r in range(t):
            activate(hidden.unsafe_offset(r * inner), up.unsafe_offset(r * inner), inner, 1, limit, exact)
        second_matmul(
            own, hidden, slots, inner, d, s2.unsafe_ptr(), s2.unsafe_ptr(), s2.unsafe_ptr(), s2_scale.unsafe_ptr(),
            threads,
        )
        for r in range(t):
            var row: F32P = y.unsafe_ptr().unsafe_offset(r * d)
            for i in range(0, d, W):
                st(row, i, Vec(0.0))
            var previous = -1
            for _ in range(k):
                var j = next_by_id(pids.unsafe_offset(r * k), k, previous)
                previous = Int(pids[unsafe_offset=r * k + j])
                copy(term, results.unsafe_ptr().unsafe_offset(((previous // per * t + r) * k + j) * d), d)
                add_rounded(row, term, d, exact)
            add_rounded(row, own.unsafe_offset(r * d), d, exact)
            bf16_row(row, d, exact)
            expand(
                h_out.unsafe_ptr().unsafe_offset(r * c * d), row, h.unsafe_ptr().unsafe_offset(r * c * d),
                mix.unsafe_ptr().unsafe_offset(r * m), c, d, exact,
            )
        _ = memory^
        _ = slots^
