"""The configuration to measure: the released sizes with one layer of each kind, or the tests' small model."""

from __future__ import annotations

from typing import Any

import numpy as np

from specdecode.core.models.deepseek_v41.config import DeepseekV41Config, LayerKind, TextConfig
from specdecode.core.models.deepseek_v41.engram_tables import EngramTables
from tests.support.promise import promise_config
from tests.support.released import released_config

# One layer of each kind, in the order in which they follow each other in the released model: window only, a source of
# two tokens a row, a reader of its selection, the candidate source of one token a row, an index source among its
# candidates, a reader of that selection.
RATIOS = (0, 2, 2, 1, 1, 1)
LAYERS: dict[str, Any] = {
    "num_hidden_layers": len(RATIOS),
    "compress_ratios": [*RATIOS, 0, 0, 0],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3, 4],
    "candidate_source_layer_id": 3,
    "dspark_target_layer_ids": [3, 4, 5],
    "engram_layer_ids": [1],
}
PRIME = 65537
"""Rows of each Engram hash, of which the released model has 16 million: the table fits into any machine's memory."""


def content(*, tiny: bool) -> dict[str, Any]:
    """The content of a `config.json`."""
    if tiny:
        return promise_config()
    whole: dict[str, Any] = released_config()
    text = whole["text_config"]
    hashes = (text["engram_max_ngram_size"] - 1) * text["engram_n_heads"]
    text.update(LAYERS, engram_num_embeddings=[hashes * PRIME], engram_vocab_size=PRIME)
    return whole


def layers_config(*, tiny: bool) -> DeepseekV41Config:
    return DeepseekV41Config.from_json(content(tiny=tiny))


def layer_names(text: TextConfig) -> list[str]:
    """What each layer is, for a reader."""
    names = []
    for layer in range(text.num_hidden_layers):
        kind, ratio = text.layer_kind(layer), text.compress_ratio(layer)
        name = kind.value if kind is LayerKind.WINDOW else f"{kind.value}, ratio {ratio}"
        names.append(name + (", candidate source" if text.is_candidate_source(layer) else ""))
    return names


def hash_constants(text: TextConfig) -> EngramTables | None:
    """Engram's constants without a tokenizer: random classes of tokens, each hash with an equal part of the table."""
    if not text.engram_layer_ids:
        return None
    rng, hashes = np.random.default_rng(5), text.engram_rows_per_token
    parts = np.array([[rows // hashes] * hashes for rows in text.engram_num_embeddings], np.int64)
    shape = (len(parts), text.engram_max_ngram_size)
    return EngramTables(
        token_map=rng.integers(0, text.engram_compressed_vocab_size, text.vocab_size),
        pad=0,
        multipliers=rng.integers(0, 1 << 40, shape) * 2 + 1,
        primes=parts,
        offsets=np.cumsum(parts, axis=1) - parts,
        heads=text.engram_n_heads,
    )
