"""Graph wrappers of the kernels around the model: merge, lookback, verification, the draft block.

Shapes: S tokens, B requests, K draft tokens a request, M = S + B K merged rows, N draft rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from max.dtype import DType
from max.graph import TensorValue

from specdecode.core.kernels.ops import Common, F, call

I64 = DType.int64
I32 = DType.int32


@dataclass(frozen=True, kw_only=True)
class Merged:
    """Tokens and drafts as one ragged batch.

    Attributes:
        tokens: int64 [M], -1 in a dead row.
        seq, pos: int32 [M].
        offsets: uint32 [B + 1].
        logit_rows: int32 [B (K + 1)], the row of each request's last token and of its drafts.
        chosen, blocks: int32 [M, N], [M, NB], all -1: nothing selected yet.
    """

    tokens: TensorValue
    seq: TensorValue
    pos: TensorValue
    offsets: TensorValue
    logit_rows: TensorValue
    chosen: TensorValue
    blocks: TensorValue


def merge(
    tokens: TensorValue,
    offsets: TensorValue,
    drafts: TensorValue,
    cache_lengths: TensorValue,
    rows: TensorValue,
    *,
    chosen: int,
    blocks: int,
) -> Merged:
    """Put each request's drafts behind its tokens; `rows` int8 [M] carries M."""
    m = rows.shape[0]
    b, k = drafts.shape
    out = call(
        "sd_merge",
        [tokens, offsets, drafts, cache_lengths, rows],
        (I64, [m]),
        (I32, [m]),
        (I32, [m]),
        (DType.uint32, offsets.shape),
        (I32, [b * (k + 1)]),
        (I32, [m, chosen]),
        (I32, [m, blocks]),
    )
    return Merged(
        tokens=out[0], seq=out[1], pos=out[2], offsets=out[3], logit_rows=out[4], chosen=out[5], blocks=out[6]
    )


def lookback(ids: TensorValue, source: TensorValue, history: TensorValue) -> TensorValue:
    """Windows int64 [B, n - 1] before each chunk."""
    (window,) = call("sd_lookback", [ids, source, history], (I64, ids.shape))
    return window


def engram_rows(
    tokens: TensorValue, seq: TensorValue, pos: TensorValue, window: TensorValue, constants: Sequence[TensorValue]
) -> TensorValue:
    """Table rows int64 [M, L, G] of merged rows; constants: compressed map, multipliers, primes, offsets, ids."""
    layers, grams, heads = constants[2].shape
    (rows,) = call(
        "sd_engram_rows",
        [tokens, seq, pos, window, *constants],
        (I64, [tokens.shape[0], layers, grams * heads]),
    )
    return rows


def history(window: TensorValue, merged: Merged, accepted: TensorValue) -> TensorValue:
    """The lookback windows int64 [B, n - 1] of the next step."""
    (new,) = call(
        "sd_history",
        [window, merged.tokens, merged.seq, merged.pos, merged.logit_rows, accepted],
        (I64, window.shape),
    )
    return new


def embed(tokens: TensorValue, table: TensorValue, *, copies: int) -> tuple[TensorValue, TensorValue]:
    """Residual copies [M, C, D] and the first mix [M, C(C+2)]."""
    m, d = tokens.shape[0], table.shape[1]
    h, mix = call("sd_embed", [tokens, table], (F, [m, copies, d]), (F, [m, copies * (copies + 2)]))
    return h, mix


def verify(
    logits: TensorValue,
    drafts: TensorValue,
    offsets: TensorValue,
    cache_lengths: TensorValue,
    draft_probs: TensorValue,
    law: Sequence[TensorValue],
    *,
    bitmask: TensorValue | None,
) -> tuple[TensorValue, TensorValue, TensorValue]:
    """accepted, next_tokens int64 [B], finite int32 [B].

    Args:
        logits: float32 [B (K + 1), V].
        drafts: int64 [B, K].
        offsets: uint32 [B + 1] of the tokens before the drafts.
        cache_lengths: uint32 [B].
        draft_probs: float32 [B, K or 0, V].
        law: seed, temperature, top_k, top_p, min_p, acceptance, penalties, free_from, and the edits' offsets, tokens,
            marks and biases.
        bitmask: int32 [B, P, V/32], tokens that a grammar allows; P is 0 or at least K + 1.
    """
    b = drafts.shape[0]
    inputs = [logits, drafts, offsets, cache_lengths, draft_probs, *law]
    results = ((I64, [b]), (I64, [b]), (I32, [b]))
    if bitmask is None:
        accepted, tokens, finite = call("sd_verify", inputs, *results)
    else:
        accepted, tokens, finite = call("sd_verify_masked", [*inputs, bitmask], *results)
    return accepted, tokens, finite


def block_inputs(
    slots: TensorValue,
    offsets: TensorValue,
    cache_lengths: TensorValue,
    accepted: TensorValue,
    next_tokens: TensorValue,
    block: TensorValue,
) -> list[TensorValue]:
    """ids int64, seq, pos, last int32, each [N]; block int64 [2] = block size, noise id."""
    n = slots.shape
    return call(
        "sd_block_inputs",
        [slots, offsets, cache_lengths, accepted, next_tokens, block],
        (I64, n),
        (I32, n),
        (I32, n),
        (I32, n),
    )


def every_row(like: TensorValue) -> TensorValue:
    """0, 1, 2 … int32, as many as `like` [N] has."""
    (rows,) = call("sd_every_row", [like], (I32, like.shape))
    return rows


def draft_head(
    h: TensorValue,
    mix: TensorValue,
    slots: TensorValue,
    ids: TensorValue,
    pos: TensorValue,
    seed: TensorValue,
    temperature: TensorValue,
    acceptance: TensorValue,
    weights: Sequence[TensorValue],
    common: Common,
    *,
    block: int,
) -> tuple[TensorValue, TensorValue, TensorValue]:
    """Drafts int64 and confidences [B, block], logits [N, V].

    weights: norm, head, markov_embed, markov_head, confidence_proj.
    """
    b = seed.shape[0]
    drafts, confidence, logits = call(
        "sd_draft_head",
        [h, mix, slots, ids, pos, seed, temperature, acceptance, *weights, common.model, common.mode],
        (I64, [b, block]),
        (F, [b, block]),
        (F, [h.shape[0], weights[1].shape[0]]),
    )
    return drafts, confidence, logits
