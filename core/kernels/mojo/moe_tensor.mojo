"""The mixture of experts under tensor parallelism: every device has some rows of each matrix.

sd_route, sd_experts_hidden, gather, sd_experts_rows, gather: bit for bit what one device computes.
"""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from .attention_in import copy
from .common import F32P, Scratch, at
from .experts import Slots, activate, first_matmul, route_rows, second_matmul, sum_slots
from .gpu.moe_tensor import hidden_gpu, route_gpu, rows_gpu
from .layout import EXACT, THREADS, ROUTED_SCALING, SWIGLU_LIMIT
from .quant import evens_first


@compiler.register("sd_route")
struct Route:
    """The routing of rows x [T, D]: expert ids and weights [T, k]; gate [E, D] bf16, bias [E]."""

    @staticmethod
    def execute[target: StaticString](
        ids: OutputTensor[dtype=DType.int32, rank=2, ...],
        weights: OutputTensor[dtype=DType.float32, rank=2, ...],
        x: InputTensor[dtype=DType.float32, rank=2, ...],
        gate: InputTensor[dtype=DType.bfloat16, rank=2, ...],
        bias: InputTensor[dtype=DType.float32, rank=1, ...],
        model: InputTensor[dtype=DType.float32, rank=1, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        comptime if is_gpu[target]():
            route_gpu(
                ctx, ids.unsafe_ptr(), weights.unsafe_ptr(), x.unsafe_ptr(),
                gate.unsafe_ptr().unsafe_bitcast[UInt8](), bias.unsafe_ptr(), x.dim_size(0), x.dim_size(1),
                gate.dim_size(0), ids.dim_size(1), model.unsafe_ptr(), mode.unsafe_ptr(),
            )
            return
        route_rows(
            ids.unsafe_ptr(), weights.unsafe_ptr(), x.unsafe_ptr(), gate.unsafe_ptr().unsafe_bitcast[UInt8](),
            bias.unsafe_ptr(), x.dim_size(0), x.dim_size(1), gate.dim_size(0), ids.dim_size(1),
            model.unsafe_ptr()[unsafe_offset=ROUTED_SCALING],
        )


@compiler.register("sd_experts_hidden")
struct ExpertsHidden:
    """Some inner columns of every choice: hidden [T, k + 1, N], the shared expert last, as w2 takes them.

    x [T, D], ids, weights [T, k]; w1, w3 [E, N, D/2] FP4, s1, s3 [N, D] FP8, these columns' rows of the matrices.
    """

    @staticmethod
    def execute[target: StaticString](
        hidden: OutputTensor[dtype=DType.float32, rank=3, ...],
        x: InputTensor[dtype=DType.float32, rank=2, ...],
        ids: InputTensor[dtype=DType.int32, rank=2, ...],
        weights: InputTensor[dtype=DType.float32, rank=2, ...],
        w1: InputTensor[dtype=DType.uint8, rank=3, ...],
        w1_scale: InputTensor[dtype=DType.uint8, rank=3, ...],
        w3: InputTensor[dtype=DType.uint8, rank=3, ...],
        w3_scale: InputTensor[dtype=DType.uint8, rank=3, ...],
        s1: InputTensor[dtype=DType.uint8, rank=2, ...],
        s1_scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        s3: InputTensor[dtype=DType.uint8, rank=2, ...],
        s3_scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        model: InputTensor[dtype=DType.float32, rank=1, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        var t = x.dim_size(0)
        var d = x.dim_size(1)
        var k = ids.dim_size(1)
        var n = hidden.dim_size(2)
        comptime if is_gpu[target]():
            hidden_gpu(
                ctx, hidden.unsafe_ptr(), x.unsafe_ptr(), ids.unsafe_ptr(), weights.unsafe_ptr(), w1.unsafe_ptr(),
                w1_scale.unsafe_ptr(), w3.unsafe_ptr(), w3_scale.unsafe_ptr(), s1.unsafe_ptr(), s1_scale.unsafe_ptr(),
                s3.unsafe_ptr(), s3_scale.unsafe_ptr(), model.unsafe_ptr(), mode.unsafe_ptr(), t, d, n, k,
                w1.dim_size(0),
            )
            return
        var exact = mode.unsafe_ptr()[unsafe_offset=EXACT] != 0
        var limit = model.unsafe_ptr()[unsafe_offset=SWIGLU_LIMIT]
        var slots = Slots(ids.unsafe_ptr(), t, k, 0, w1.dim_size(0), t)
        var memory = Scratch(2 * slots.all() * n)
        var gates = memory.ptr()
        var up = gates.unsafe_offset(slots.all() * n)
        first_matmul(
            gates, up, slots, x.unsafe_ptr(), t, d, n, w1.unsafe_ptr(), w1_scale.unsafe_ptr(), w3.unsafe_ptr(),
            w3_scale.unsafe_ptr(), s1.unsafe_ptr(), s1_scale.unsafe_ptr(), s3.unsafe_ptr(), s3_scale.unsafe_ptr(),
            exact, Int(mode.unsafe_ptr()[unsafe_offset=THREADS]),
        )
        for r in range(t):
            for j in range(k + 1):
                var slot = slots.slot_of[r * k + j] if j < k else slots.size + r
                var weight = at(weights.unsafe_ptr(), r * k + j) if j < k else Float32(1)
                var row = gates.unsafe_offset(slot * n)
                activate(row, up.unsafe_offset(slot * n), n, weight, limit, exact)
                copy(hidden.unsafe_ptr().unsafe_offset((r * (k + 1) + j) * n), row, n)
        _ = memory^
        _ = slots^


@compiler.register("sd_experts_rows")
struct ExpertsRows:
    """Some of the sublayer's output columns: y [T, N] of all inner columns hidden [T, k + 1, I].

    ids [T, k]; w2 [E, N, I/2] FP4 and s2 [N, I] FP8, these columns' rows of the matrices.
    """

    @staticmethod
    def execute[target: StaticString](
        y: OutputTensor[dtype=DType.float32, rank=2, ...],
        hidden: InputTensor[dtype=DType.float32, rank=3, ...],
        ids: InputTensor[dtype=DType.int32, rank=2, ...],
        w2: InputTensor[dtype=DType.uint8, rank=3, ...],
        w2_scale: InputTensor[dtype=DType.uint8, rank=3, ...],
        s2: InputTensor[dtype=DType.uint8, rank=2, ...],
        s2_scale: InputTensor[dtype=DType.uint8, rank=2, ...],
        mode: InputTensor[dtype=DType.int32, rank=1, ...],
        ctx: DeviceContext,
    ) raises:
        var t = hidden.dim_size(0)
        var k = ids.dim_size(1)
        var inner = hidden.dim_size(2)
        var n = y.dim_size(1)
        comptime if is_gpu[target]():
            rows_gpu(
                ctx, y.unsafe_ptr(), hidden.unsafe_ptr(), ids.unsafe_ptr(), w2.unsafe_ptr(), w2_scale.unsafe_ptr(),
                s2.unsafe_ptr(), s2_scale.unsafe_ptr(), mode.unsafe_ptr(), t, n, inner, k, w2.dim_size(0),
            )
            return
        var exact = mode.unsafe_ptr()[unsafe_offset=EXACT] != 0
        var slots = Slots(ids.unsafe_ptr(), t, k, 0, w2.dim_size(0), t)
        var memory = Scratch(slots.all() * (inner + n))
        var rows = memory.ptr()
        var results = rows.unsafe_offset(slots.all() * inner)
        for r in range(t):
            for j in range(k + 1):
                var src: F32P = hidden.unsafe_ptr().unsafe_offset((r * (k + 1) + j) * inner)
                if j < k:
                    evens_first(rows.unsafe_offset(slots.slot_of[r * k + j] * inner), src, inner)
                else:
                    copy(rows.unsafe_offset((slots.size + r) * inner), src, inner)
        second_matmul(
            results, rows, slots, inner, n, w2.unsafe_ptr(), w2_scale.unsafe_ptr(), s2.unsafe_ptr(),
            s2_scale.unsafe_ptr(), Int(mode.unsafe_ptr()[unsafe_offset=THREADS]),
        )
        for r in range(t):
            sum_slots(y.unsafe_ptr().unsafe_offset(r * n), results, slots, ids.unsafe_ptr(), r, k, n, exact)
        _ = memory^
        _ = slots^
