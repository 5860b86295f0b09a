"""The mixture of experts on one device: noaux_tc routing, FP4 routed experts, an FP8 shared expert, expand.

A row's own sum runs over its experts in ascending id, then the shared one, whatever else is in the batch.
"""

import extensibility as compiler
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from max.gpu.host.info import is_gpu
from .common import F32P, I32P, Scratch, U8P, at
from .experts import Slots, activate, first_matmul, route_rows, second_matmul, sum_slots
from .gpu.moe import moe
from .hyper import expand
from .layout import EXACT, THREADS, ROUTED_SCALING, SWIGLU_LIMIT
from .quant import evens_first


@compiler.register("sd_moe")
struct Moe:
    """Gives h_out [T, C, D], the output y [T, D], and the routing ids, weights [T, k].

    x [T, D]; gate [E, D] bf16, bias [E]; w1, w3 [E, I, D/2], w2 [E, D, I/2] packed FP4 and their scales;
    shared s1, s3 [I, D], s2 [D, I] FP8.
    """

    @staticmethod
    def execute[target: StaticString](
        h_out: OutputTensor[dtype=DType.float32, rank=3, ...],
        y: OutputTensor[dtype=DType.float32, rank=2, ...],
        ids: OutputTensor[dtype=DType.int32, rank=2, ...],
        weights: OutputTensor[dtype=DType.float32, rank=2, ...],
        x: InputTensor[dtype=DType.float32, rank=2, ...],
        h: InputTensor[dtype=DType.float32, rank=3, ...],
        mix: InputTensor[dtype=DType.float32, rank=2, ...],
        gate: InputTensor[dtype=DType.bfloat16, rank=2, ...],
        bias: InputTensor[dtype=DType.float32, rank=1, ...],
        w1: InputTensor[dtype=DType.uint8, rank=3, ...],
        w1_scale: InputTensor[dtype=DType.uint8, rank=3, ...],
        w3: InputTensor[dtype=DType.uint8, rank=3, ...],
        w3_scale: InputTensor[dtype=DType.uint8, rank=3, ...],
        w2: InputTensor[dtype=DType.uint8, rank=3, ...],
        w2_scale: InputTensor[dtype=DType.uint8, rank=3, ...],
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
        comptime if is_gpu[target]():
            moe(
                ctx, h_out.unsafe_ptr(), y.unsafe_ptr(), ids.unsafe_ptr(), weights.unsafe_ptr(), x.unsafe_ptr(),
                h.unsafe_ptr(), mix.unsafe_ptr(), gate.unsafe_ptr().unsafe_bitcast[UInt8](), bias.unsafe_ptr(),
                w1.unsafe_ptr(), w1_scale.unsafe_ptr(), w3.unsafe_ptr(), w3_scale.unsafe_ptr(), w2.unsafe_ptr(),
                w2_scale.unsafe_ptr(), s1.unsafe_ptr(), s1_scale.unsafe_ptr(), s3.unsafe_ptr(), s3_scale.unsafe_ptr(),
                s2.unsafe_ptr(), s2_scale.unsafe_ptr(), model.unsafe_ptr(), mode.unsafe_ptr(), x.dim_size(0), x.dim_size(1),
                h.dim_size(1), mix.dim_size(1), gate.dim_size(0), w1.dim_size(1), ids.dim_size(1),
            )
            return
        var t = x.dim_size(0)
        var d = x.dim_size(1)
        var c = h.dim_size(1)
        var m = mix.dim_size(1)
        var experts = gate.dim_size(0)
        var inner = w1.dim_size(1)
        var k = ids.dim_size(1)
        var exact = mode.unsafe_ptr()[unsafe_offset=EXACT] != 0
        var threads = Int(mode.unsafe_ptr()[unsafe_offset=THREADS])
        var limit = model.unsafe_ptr()[unsafe_offset=SWIGLU_LIMIT]
        var scaling = model.unsafe_ptr()[unsafe_offset=ROUTED_SCALING]
        var pids: I32P = ids.unsafe_ptr()
        var pweights: F32P = weights.unsafe_ptr()
        route_rows(
            pids, pweights, x.unsafe_ptr(), gate.unsafe_ptr().unsafe_bitcast[UInt8](), bias.unsafe_ptr(), t, d, experts,
            k, scaling,
        )
        var slots = Slots(pids, t, k, 0, experts, t)
        var memory = Scratch(slots.all() * (2 * inner + d))
        var hidden = memory.ptr()
        var up = hidden.unsafe_offset(slots.all() * inner)
        var results = up.unsafe_offset(slots.all() * inner)
        first_matmul(
            hidden, up, slots, x.unsafe_ptr(), t, d, inner, w1.unsafe_ptr(), w1_scale.unsafe_ptr(), w3.unsafe_ptr(),
            w3_scale.unsafe_ptr(), s1.unsafe_ptr(), s1_scale.unsafe_ptr(), s3.unsafe_ptr(), s3_scale.unsafe_ptr(), exact,
            threads,
        )
        for i in range(t * k):
            var at_slot = slots.slot_of[i] * inner
            activate(hidden.unsafe_offset(at_slot), up.unsafe_offset(at_slot), inner, at(pweights, i), limit, exact)
            evens_first(hidden.unsafe_offset(at_slot), hidden.unsafe_offset(at_slot), inner)
        for r in range(t):
            var at_slot = (slots.size + r) * inner
            activate(hidden.unsafe_offset(at_slot), up.unsafe_offset(at_slot), inner, 1, limit, exact)
        second_matmul(
            results, hidden, slots, inner, d, w2.unsafe_ptr(), w2_scale.unsafe_ptr(), s2.unsafe_ptr(),
            s2_scale.unsafe_ptr(), threads,
        )
        for r in range(t):
            var row: F32P = y.unsafe_ptr().unsafe_offset(r * d)
            sum_slots(row, results, slots, pids, r, k, d, exact)
            expand(
                h_out.unsafe_ptr().unsafe_offset(r * c * d), row, h.unsafe_ptr().unsafe_offset(r * c * d),
                mix.unsafe_ptr().unsafe_offset(r * m), c, d, exact,
            )
        _ = memory^
        _ = slots^
