"""The constants of Engram's hash: compressed token ids, primes, offsets and multipliers.

Engram hashes the last n tokens into the rows of a table per layer. Nothing of this is stored in a
checkpoint: it follows from the tokenizer and the configuration (`engram.py` of the released reference),
so a tokenizer that differs in one token would read other rows everywhere without any error. Hence the
checks on the sizes.

    tables = EngramTables.build(config.text_config, tokenizer)
    rows = tables.hash_rows(np.array(ids), history=np.array(previous_ids))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specdecode.core.errors import ConfigError, TokenizerError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.normalizers import Normalizer

    from specdecode.core.models.deepseek_v41.config import TextConfig

_SEED_STEP = 10007
_LONE_SPACE = "\ue000"  # protects a token that is nothing but space from being stripped away


@dataclass(frozen=True, kw_only=True)
class EngramTables:
    """Hash constants of all Engram layers, in the order of `engram_layer_ids`.

    Attributes:
        token_map: int64 [vocab], token id -> compressed id.
        pad: compressed id that stands for "before the start".
        multipliers: int64 [layers, max_ngram], one odd number per distance 0 … max_ngram-1 back.
        primes: int64 [layers, ngrams·heads], rows of each hash's part of the table, n-major.
        offsets: int64 [layers, ngrams·heads], first row of each part.
        heads: hash heads per n-gram length.
    """

    token_map: NDArray[np.int64]
    pad: int
    multipliers: NDArray[np.int64]
    primes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    heads: int

    @classmethod
    def build(cls, text: TextConfig, tokenizer: Tokenizer) -> EngramTables:
        """Derive the constants and compare their sizes with the configuration.

        Raises:
            TokenizerError: the tokenizer does not give `engram_compressed_vocab_size` classes.
            ConfigError: the primes do not add up to `engram_num_embeddings`.
        """
        token_map = compressed_token_map(tokenizer, text.vocab_size)
        classes = int(token_map.max()) + 1
        if classes != text.engram_compressed_vocab_size:
            raise TokenizerError(
                f"The tokenizer compresses to {classes} classes, but text_config.engram_compressed_vocab_size"
                f" is {text.engram_compressed_vocab_size}. Engram would read wrong table rows for every "
                "token;"
                " use the tokenizer.json that belongs to this checkpoint."
            )
        primes = _primes(text)
        rows = primes.sum(axis=1)
        for layer, found, stated in zip(text.engram_layer_ids, rows, text.engram_num_embeddings, strict=True):
            if found != stated:
                raise ConfigError(
                    f"text_config.engram_num_embeddings gives layer {layer} {stated} rows, but its primes "
                    f"above engram_vocab_size {text.engram_vocab_size} add up to {found}."
                )
        return cls(
            token_map=token_map,
            pad=int(token_map[text.engram_pad_token_id]),
            multipliers=_multipliers(text),
            primes=primes,
            offsets=np.cumsum(primes, axis=1) - primes,
            heads=text.engram_n_heads,
        )

    def hash_rows(self, ids: NDArray[np.int64], history: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Table rows of each token: int64 [tokens, layers, ngrams·heads], offsets included.

        Args:
            ids: token ids of consecutive positions.
            history: the ids just before them, oldest first; fewer than max_ngram-1 mean the sequence
            starts there.
        """
        span = self.multipliers.shape[1]
        before = np.asarray([] if history is None else history, np.int64)[-(span - 1) :]
        known = self.token_map[np.concatenate([before, np.asarray(ids, np.int64)])]
        padded = np.concatenate([np.full(span - 1, self.pad), known])
        first = span - 1 + len(before)
        back = [padded[first - s : first - s + len(ids)] for s in range(span)]  # [s]: the token s back
        rows = np.empty((len(ids), *self.primes.shape), np.int64)
        with np.errstate(over="ignore"):
            for layer, factor in enumerate(self.multipliers):
                mixed = back[0] * factor[0]
                for n in range(1, span):
                    mixed = mixed ^ (back[n] * factor[n])
                    part = slice((n - 1) * self.heads, n * self.heads)
                    rows[:, layer, part] = mixed[:, None] % self.primes[layer, part] + self.offsets[layer, part]
        return rows


def compressed_token_map(tokenizer: Tokenizer, vocab_size: int) -> NDArray[np.int64]:
    """Token id -> compressed id, int64 [vocab_size]: equal for tokens that read alike.

    Classes are numbered as first seen. Alike means equal after NFKC, without accents, case and the kind
    or number of spaces. A token that is only a part of a character keeps its own class, by its raw
    name.
    """
    normalizer = _normalizer()
    classes: dict[str, int] = {}
    ids = np.empty(vocab_size, np.int64)
    texts = tokenizer.decode_batch([[token] for token in range(vocab_size)], skip_special_tokens=False)
    for token, text in enumerate(texts):
        raw = tokenizer.id_to_token(token) if "\ufffd" in text else None
        key = raw or normalizer.normalize_str(text) or text
        ids[token] = classes.setdefault(key, len(classes))
    return ids


def _normalizer() -> Normalizer:
    from tokenizers import Regex, normalizers

    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), _LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_LONE_SPACE, " "),
        ]
    )


def _primes(text: TextConfig) -> NDArray[np.int64]:
    """The next unused primes from `engram_vocab_size` on; int64 [layers, ngrams·heads]."""
    used: set[int] = set()
    rows = []
    for _layer in text.engram_layer_ids:
        row: list[int] = []
        for _n in text.engram_ngrams:
            candidate = text.engram_vocab_size - 1
            for _head in range(text.engram_n_heads):
                candidate = _next_prime(candidate, used)
                used.add(candidate)
                row.append(candidate)
        rows.append(row)
    return np.array(rows, np.int64).reshape(len(rows), text.engram_rows_per_token)


def _next_prime(after: int, used: set[int]) -> int:
    candidate = after + 1
    while candidate in used or not _is_prime(candidate):
        candidate += 1
    return candidate


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


def _multipliers(text: TextConfig) -> NDArray[np.int64]:
    """Odd factors so small that a product with a compressed id stays in int64; int64 [layers, max_ngram]."""
    limit = np.iinfo(np.int64).max // text.engram_compressed_vocab_size // 2
    rows = [
        np.random.default_rng(_SEED_STEP * layer).integers(0, limit, text.engram_max_ngram_size) * 2 + 1
        for layer in text.engram_layer_ids
    ]
    return np.array(rows, np.int64).reshape(len(rows), text.engram_max_ngram_size)
