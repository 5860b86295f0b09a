"""The target's and the drafter's forward pass over one whole sequence, in NumPy.

Shape suffixes: T rows, C residual copies, D hidden, H heads, K head_dim, J compressed rows, V vocabulary.
Formulas: DeepSeek-V4.1's inference code; the attention keys of a row are its window and the compressed rows that
its indexer chose. Decoding equals prefill here, so one function serves both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .numerics import F32, Numerics

Weights = Callable[[str], F32]


def sigmoid(x: F32) -> F32:
    with np.errstate(over="ignore"):  # an infinite exponential is a gate of 0
        return (1 / (1 + np.exp(-x.astype(np.float64)))).astype(np.float32)


def rms(x: F32, weight: F32 | None, eps: float) -> F32:
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps))
    return y if weight is None else y * weight


@dataclass(kw_only=True)
class Trace:
    """Everything a caller may compare, per layer."""

    streams: list[F32] = field(default_factory=list)
    pre: list[F32] = field(default_factory=list)
    engram: dict[int, F32] = field(default_factory=dict)
    latent: dict[int, F32] = field(default_factory=dict)
    ckv: dict[int, F32] = field(default_factory=dict)
    index_k: dict[int, F32] = field(default_factory=dict)
    topk: dict[int, NDArray[np.int32]] = field(default_factory=dict)
    candidates: dict[int, NDArray[np.bool_]] = field(default_factory=dict)
    expert_ids: list[NDArray[np.int64]] = field(default_factory=list)
    window: dict[int, F32] = field(default_factory=dict)


class Oracle:
    """`weights(name)` gives a dequantised float32 tensor; `text` is the config's text_config as a mapping."""

    def __init__(self, weights: Weights, text: Mapping[str, object], *, exact: bool) -> None:
        self.w, self.n, self.eps = weights, Numerics(exact=exact), 1e-20
        self.c = type("Config", (), dict(text))

    # -- small parts ---------------------------------------------------------------------------------------
    def linear(self, x: F32, name: str) -> F32:
        return self.n.bf16(self.n.fp8(x) @ self.w(name).T)

    def norm(self, x: F32, name: str) -> F32:
        return self.n.bf16(rms(x, self.w(name), self.eps))

    def frequencies(self, ratio: int) -> F32:
        r = self.c.qk_rope_head_dim
        k = np.arange(0, r, 2, dtype=np.float32)
        if ratio == 0:
            return (1.0 / np.float32(self.c.rope_theta) ** (k / r)).astype(np.float32)
        theta, s = self.c.compress_rope_theta, self.c.rope_scaling
        f = (1.0 / np.float32(theta) ** (k / r)).astype(np.float32)
        original = s["original_max_position_embeddings"]

        def corner(rotations: float) -> float:
            return r * np.log(original / (rotations * 2 * np.pi)) / (2 * np.log(theta))

        low = max(np.floor(corner(s["beta_fast"])), 0)
        high = min(np.ceil(corner(s["beta_slow"])), r - 1)
        ramp = np.clip((np.arange(r // 2, dtype=np.float32) - low) / max(high - low, 0.001), 0, 1)
        return (f / s["factor"] * ramp + f * (1 - ramp)).astype(np.float32)

    def rope(self, x: F32, positions: NDArray[np.int64], ratio: int, inverse: bool = False) -> F32:
        """Rotate the last qk_rope_head_dim dims of x [T, ..., K], adjacent pairs as complex numbers."""
        r = self.c.qk_rope_head_dim
        angle = positions.astype(np.float32)[:, None] * self.frequencies(ratio)
        turn = np.exp(1j * (-angle if inverse else angle).astype(np.float64)).astype(np.complex64)
        turn = turn.reshape(len(positions), *([1] * (x.ndim - 2)), r // 2)
        pairs = np.ascontiguousarray(x[..., -r:]).view(np.complex64) * turn
        return np.concatenate([x[..., :-r], pairs.view(np.float32)], -1)

    def hc(self, h_TCD: F32, prefix: str) -> tuple[F32, F32, F32]:
        """pre [T, C], post [T, C], comb [T, C source, C destination] of one sublayer."""
        t, c, _ = h_TCD.shape
        u = h_TCD.reshape(t, -1)
        m = (u @ self.w(f"{prefix}_fn").T) / np.sqrt((u * u).mean(-1, keepdims=True) + np.float32(1e-20))
        return sinkhorn_gates(
            m, self.w(f"{prefix}_scale"), self.w(f"{prefix}_base"), c, self.c.hc_sinkhorn_iters, self.c.hc_eps
        )

    def expand(self, y_TD: F32, h_TCD: F32, post: F32, comb: F32) -> F32:
        return self.n.bf16(post[:, :, None] * y_TD[:, None] + np.einsum("tij,tid->tjd", comb, h_TCD))

    def collapse(self, h_TCD: F32, pre: F32) -> F32:
        return self.n.bf16((pre[:, :, None] * h_TCD).sum(1))

    # -- attention -----------------------------------------------------------------------------------------
    def attend(self, q_HK: F32, keys_NK: F32, sink_H: F32) -> F32:
        """Softmax attention of one row with a sink, in blocks of 64 keys; P is rounded like the values."""
        z = (q_HK @ keys_NK.T) * np.float32(self.c.head_dim**-0.5)
        top = np.full(len(q_HK), -np.inf, np.float32)
        den = np.zeros(len(q_HK), np.float32)
        acc = np.zeros_like(q_HK)
        for i in range(0, len(keys_NK), 64):
            new = np.maximum(top, z[:, i : i + 64].max(-1))
            fade = np.exp(top - new)
            p = np.exp(z[:, i : i + 64] - new[:, None])
            den = den * fade + p.sum(-1)
            acc = acc * fade[:, None] + self.n.bf16(p) @ keys_NK[i : i + 64]
            top = new
        with np.errstate(over="ignore"):  # a sink far above all keys takes everything
            return self.n.bf16(acc / (den + np.exp(sink_H - top))[:, None])

    def queries(self, x: F32, pos: NDArray[np.int64], p: str, ratio: int) -> tuple[F32, F32]:
        lora = self.norm(self.linear(x, f"{p}.wq_a.weight"), f"{p}.q_norm.weight")
        q = self.linear(lora, f"{p}.wq_b.weight").reshape(len(x), -1, self.c.head_dim)
        return lora, self.n.bf16(self.rope(q, pos, ratio))

    def window_rows(self, x: F32, pos: NDArray[np.int64], p: str, ratio: int) -> F32:
        kv = self.norm(self.linear(x, f"{p}.wkv.weight"), f"{p}.kv_norm.weight")
        return self.n.fp8(self.n.bf16(self.rope(kv, pos, ratio)))

    def project_out(self, o_THK: F32, pos: NDArray[np.int64], p: str, ratio: int) -> F32:
        t, groups = len(o_THK), self.c.o_groups
        o = self.n.bf16(self.rope(o_THK, pos, ratio, inverse=True)).reshape(t, groups, -1)
        wo_a = self.n.bf16(self.w(f"{p}.wo_a.weight")).reshape(groups, self.c.o_lora_rank, -1)
        a = self.n.bf16(np.einsum("tgk,gnk->tgn", o, wo_a)).reshape(t, -1)
        return self.linear(a, f"{p}.wo_b.weight")

    def compress(self, x: F32, p: str, layer: int, ratio: int, trace: Trace) -> None:
        n = self.n
        wkv = self.w(f"{p}.compressor.wkv.weight")
        if ratio == 1:
            latent = n.bf16(x @ wkv.T)
        else:
            j = len(x) // ratio
            kv = (x @ wkv.T)[: j * ratio].reshape(j, ratio, len(wkv))
            gate = (x @ self.w(f"{p}.compressor.wgate.weight").T)[: j * ratio].reshape(j, ratio, len(wkv))
            g = np.exp(gate - gate.max(1, keepdims=True))
            latent = n.bf16((g / g.sum(1, keepdims=True) * kv).sum(1))
        latent = self.norm(latent, f"{p}.compressor.norm.weight")
        pos = np.arange(len(latent)) * ratio
        trace.latent[layer] = latent
        trace.ckv[layer] = n.nvfp4(n.bf16(self.rope(latent, pos, ratio)))
        if f"{layer}" in self.key_owners():
            k = self.norm(n.bf16(latent @ self.w(f"{p}.indexer.wk.weight").T), f"{p}.indexer.k_norm.weight")
            trace.index_k[layer] = n.mxfp4(n.bf16(self.rope(k, pos, ratio)))

    def key_owners(self) -> set[str]:
        return {str(i) for i in self.c.kv_source_layer_ids if i in self.c.index_source_layer_ids}

    def select(
        self,
        x: F32,
        lora: F32,
        pos: NDArray[np.int64],
        p: str,
        layer: int,
        src: int,
        ratio: int,
        trace: Trace,
    ) -> NDArray[np.int32]:
        """The index_topk best visible compressed rows of every query, ascending, -1 where there is none."""
        n, c, keys = self.n, self.c, trace.index_k[src]
        q = self.linear(lora, f"{p}.indexer.wq_b.weight").reshape(len(x), c.index_n_heads, -1)
        q = n.mxfp4(n.bf16(self.rope(q, pos, ratio)))
        weights = n.bf16(
            n.bf16(x @ self.w(f"{p}.indexer.weights_proj.weight").T)
            * np.float32(c.index_head_dim**-0.5 * c.index_n_heads**-0.5)
        )
        dots = np.maximum(n.bf16(np.einsum("thk,jk->thj", q, keys)), 0)
        score = n.bf16((n.bf16(dots * weights[:, :, None])).sum(1))
        visible = np.arange(len(keys))[None] < ((pos + 1) // ratio)[:, None]
        score = np.where(visible, score, -np.inf)
        if layer == c.candidate_source_layer_id:
            trace.candidates[layer] = self.candidate_mask(score, pos, ratio)
        elif layer > c.candidate_source_layer_id:
            score = np.where(trace.candidates[c.candidate_source_layer_id], score, -np.inf)
        k = min(c.index_topk, score.shape[1])
        best = np.argsort(-score, axis=1, kind="stable")[:, :k]
        chosen = np.where(np.take_along_axis(score, best, 1) > -np.inf, best, 1 << 30)
        chosen = np.sort(chosen, 1)
        trace.topk[layer] = np.where(chosen == 1 << 30, -1, chosen).astype(np.int32)
        return trace.topk[layer]

    def candidate_mask(self, score: F32, pos: NDArray[np.int64], ratio: int) -> NDArray[np.bool_]:
        t, j = score.shape
        size, keep = self.c.candidate_block_size, self.c.candidate_topk_blocks
        blocks = -(-j // size)
        padded = np.full((t, blocks * size), -np.inf, np.float32)
        padded[:, :j] = score
        best = padded.reshape(t, blocks, size).max(-1)
        newest = (pos + 1) // ratio - 1
        rows = np.flatnonzero(newest >= 0)
        best[rows, newest[rows] // size] = np.inf
        order = np.argsort(-best, axis=1, kind="stable")[:, :keep]
        mask = np.zeros((t, blocks), bool)
        np.put_along_axis(mask, order, np.take_along_axis(best, order, 1) > -np.inf, 1)
        return np.repeat(mask, size, 1)[:, :j]

    def attention(self, x: F32, layer: int, trace: Trace) -> F32:
        c, p, ratio = self.c, f"layers.{layer}.attn", self.c.compress_ratios[layer]
        pos = np.arange(len(x))
        lora, q = self.queries(x, pos, p, ratio)
        window = trace.window[layer] = self.window_rows(x, pos, p, ratio)
        chosen = None
        if ratio:
            src = max(i for i in c.kv_source_layer_ids if i <= layer)
            if layer == src:
                self.compress(x, p, layer, ratio, trace)
            if layer in c.index_source_layer_ids:
                owner = max(i for i in c.kv_source_layer_ids if i <= layer and str(i) in self.key_owners())
                self.select(x, lora, pos, p, layer, owner, ratio, trace)
            chosen = trace.topk[max(i for i in c.index_source_layer_ids if i <= layer)]
        sink, out = self.w(f"{p}.attn_sink"), np.empty_like(q)
        for t in range(len(x)):
            keys = window[max(0, t - c.sliding_window + 1) : t + 1]
            if chosen is not None:
                keys = np.concatenate([keys, trace.ckv[src][chosen[t][chosen[t] >= 0]]])
            out[t] = self.attend(q[t], keys, sink)
        return self.project_out(out, pos, p, ratio)

    # -- experts and Engram ----------------------------------------------------------------------------------
    def mlp(self, x: F32, p: str, weight: F32 | float) -> F32:
        limit = self.c.swiglu_limit
        gate = np.minimum(self.linear(x, f"{p}.w1.weight"), limit)
        up = np.clip(self.linear(x, f"{p}.w3.weight"), -limit, limit)
        return self.linear(self.n.bf16(weight * (gate * sigmoid(gate) * up)), f"{p}.w2.weight")

    def moe(self, x: F32, p: str, top_k: int, trace: Trace | None = None) -> F32:
        logits = x @ self.w(f"{p}.gate.weight").T
        s = np.sqrt(np.logaddexp(0, logits.astype(np.float64))).astype(np.float32)
        ids = np.argsort(-(s + self.w(f"{p}.gate.bias")), axis=1, kind="stable")[:, :top_k]
        w = np.take_along_axis(s, ids, 1)
        w = w / (w.sum(1, keepdims=True) + np.float32(1e-20)) * np.float32(self.c.routed_scaling_factor)
        if trace is not None:
            trace.expert_ids.append(ids)
        y = np.zeros_like(x)
        for e in np.unique(ids):
            rows, slot = np.nonzero(ids == e)
            y[rows] += self.mlp(x[rows], f"{p}.experts.{e}", w[rows, slot][:, None])
        return self.n.bf16(y + self.mlp(x, f"{p}.shared_experts", 1.0))

    def engram(self, h_TCD: F32, rows: NDArray[np.int64], layer: int) -> F32:
        p, d = f"layers.{layer}.engram", self.c.hidden_size
        e = self.w(f"{p}.embed.weight")[rows].reshape(len(rows), -1)
        kv = self.linear(e, f"{p}.wkv.weight")
        key, value = kv[:, :-d].reshape(len(h_TCD), -1, d), kv[:, -d:]
        qk = self.w(f"{p}.q_weight") * self.w(f"{p}.k_weight")
        dot = (h_TCD * qk * key).sum(-1) / np.sqrt((h_TCD**2).mean(-1) + np.float32(self.eps))
        dot = dot / np.sqrt((key**2).mean(-1) + np.float32(self.eps)) / np.sqrt(np.float32(d))
        gate = sigmoid(np.sign(dot) * np.sqrt(np.maximum(np.abs(dot), np.float32(1e-6))))
        return self.n.bf16(h_TCD + gate[:, :, None] * value[:, None])

    # -- whole passes ------------------------------------------------------------------------------------------
    def block(
        self, h: F32, pre: F32, p: str, attention: Callable[[F32], F32], moe: Callable[[F32], F32]
    ) -> tuple[F32, F32]:
        pa, qa, ca = self.hc(h, f"{p}.hc_attn")
        x = self.norm(self.collapse(h, pre), f"{p}.attn_norm.weight")
        h = self.expand(attention(x), h, qa, ca)
        pf, qf, cf = self.hc(h, f"{p}.hc_ffn")
        x = self.norm(self.collapse(h, pa), f"{p}.ffn_norm.weight")
        return self.expand(moe(x), h, qf, cf), pf

    def first_pre(self, rows: int) -> F32:
        return np.tile(np.eye(1, self.c.hc_mult, dtype=np.float32), (rows, 1))

    def target(self, ids: NDArray[np.int64], engram_rows: Mapping[int, NDArray[np.int64]]) -> tuple[F32, F32, Trace]:
        """logits [T, V], drafter features [T, taps * D] and the trace of one sequence from its start."""
        c, trace = self.c, Trace()
        h = np.repeat(self.w("embed.weight")[ids][:, None], c.hc_mult, 1)
        pre, taps = self.first_pre(len(ids)), []
        for i in range(c.num_hidden_layers):
            if i in c.engram_layer_ids:
                h = trace.engram[i] = self.engram(h, engram_rows[i], i)
            if i in c.dspark_target_layer_ids:
                taps.append(self.n.bf16(h.mean(1)))
            h, pre = self.block(
                h,
                pre,
                f"layers.{i}",
                lambda x, i=i: self.attention(x, i, trace),
                lambda x, i=i: self.moe(x, f"layers.{i}.ffn", c.num_experts_per_tok, trace),
            )
            trace.streams.append(h)
            trace.pre.append(pre)
        x = self.norm(self.collapse(h, pre), "norm.weight")
        return x @ self.w("head.weight").T, np.concatenate(taps, -1), trace

    def draft(
        self, features: F32, p: int, anchor: int, sample: Callable[[F32, int], int] | None = None
    ) -> tuple[list[int], F32, F32]:
        """Draft ids, logits [block, V] and raw confidences [block] after position p, given features [p + 1, .]."""
        c, block = self.c, self.c.dspark_block_size
        m = self.norm(self.linear(features, "mtp.0.main_proj.weight"), "mtp.0.main_norm.weight")
        pos, ctx_pos = p + 1 + np.arange(block), np.arange(p + 1)
        ids = np.array([anchor] + [c.dspark_noise_token_id] * (block - 1))
        h = np.repeat(self.w("embed.weight")[ids][:, None], c.hc_mult, 1)
        pre = self.first_pre(block)
        for k in range(c.num_nextn_predict_layers):
            name = f"mtp.{k}.attn"
            context = self.window_rows(m, ctx_pos, name, 0)[max(0, p + 1 - c.sliding_window) :]

            def attention(x: F32, name: str = name, context: F32 = context) -> F32:
                _, q = self.queries(x, pos, name, 0)
                keys = np.concatenate([context, self.window_rows(x, pos, name, 0)])
                out = np.stack([self.attend(q[t], keys, self.w(f"{name}.attn_sink")) for t in range(block)])
                return self.project_out(out, pos, name, 0)

            h, pre = self.block(
                h,
                pre,
                f"mtp.{k}",
                attention,
                lambda x, k=k: self.moe(x, f"mtp.{k}.ffn", c.dspark_num_experts_per_tok),
            )
        last = f"mtp.{c.num_nextn_predict_layers - 1}"
        x = self.collapse(h, pre)
        base = self.norm(x, f"{last}.norm.weight") @ self.w("head.weight").T
        tokens, logits, confidence = [anchor], [], []
        for j in range(block):
            e = self.w(f"{last}.markov_head.embed.weight")[tokens[-1]]
            logits.append(base[j] + self.w(f"{last}.markov_head.head.weight") @ e)
            confidence.append(float(np.concatenate([x[j], e]) @ self.w(f"{last}.confidence_head.proj.weight")[0]))
            tokens.append(int(np.argmax(logits[-1])) if sample is None else sample(logits[-1], p + 2 + j))
        return tokens[1:], np.stack(logits), np.array(confidence, np.float32)


def sinkhorn_gates(m: F32, scale: F32, base: F32, copies: int, iterations: int, eps: float) -> tuple[F32, F32, F32]:
    """Mixes m [T, C * (C + 2)] -> pre, post [T, C] and comb [T, C, C]; `iterations` rounds, columns last."""
    c, e = copies, np.float32(eps)
    pre = sigmoid(m[:, :c] * scale[0] + base[:c]) + e
    post = 2 * sigmoid(m[:, c : 2 * c] * scale[1] + base[c : 2 * c])
    logits = (m[:, 2 * c :] * scale[2] + base[2 * c :]).reshape(-1, c, c)
    comb = np.exp(logits - logits.max(-1, keepdims=True))
    comb = comb / comb.sum(-1, keepdims=True) + e
    comb = comb / (comb.sum(1, keepdims=True) + e)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(-1, keepdims=True) + e)
        comb = comb / (comb.sum(1, keepdims=True) + e)
    return pre, post, comb
