"""Engram's arithmetic: compressed token ids, table primes, hash multipliers, row numbers. NumPy only."""

from __future__ import annotations

import numpy as np
from tokenizers import Regex, Tokenizer, normalizers

LONE_BLANK = "\ue000"


def compressed_token_map(tokenizer: Tokenizer) -> list[int]:
    """Map every id to the class of ids that read alike (case, accents, blanks), numbered by first use."""
    normalise = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), LONE_BLANK),
            normalizers.Strip(),
            normalizers.Replace(LONE_BLANK, " "),
        ]
    )
    classes: dict[str, int] = {}
    mapping = []
    for token in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token], skip_special_tokens=False)
        key = tokenizer.id_to_token(token) if "\ufffd" in text else normalise.normalize_str(text) or text
        mapping.append(classes.setdefault(key, len(classes)))
    return mapping


def table_primes(layers: int, max_ngram: int, heads: int, vocab: int) -> list[list[list[int]]]:
    """Return primes[layer][n-2][head]; the walk is global, so no prime is used twice."""
    used: set[int] = set()

    def next_prime(start: int) -> int:
        candidate = start + 1
        while candidate in used or any(candidate % d == 0 for d in range(2, int(candidate**0.5) + 1)):
            candidate += 1
        used.add(candidate)
        return candidate

    result = []
    for _ in range(layers):
        rows = []
        for _ in range(2, max_ngram + 1):
            row, last = [], vocab - 1
            for _ in range(heads):
                last = next_prime(last)
                row.append(last)
            rows.append(row)
        result.append(rows)
    return result


def hash_multipliers(layer: int, compressed_vocab: int, max_ngram: int) -> np.ndarray:
    """Return the odd multipliers of one Engram layer, int64 [max_ngram]."""
    bound = (2**63 - 1) // compressed_vocab // 2
    return np.random.default_rng(10007 * layer).integers(0, bound, max_ngram) * 2 + 1
