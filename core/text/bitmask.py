"""Rows of a mask: a bit a token, 32 to a word."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.int32]
"""[W] with W = ceil(V / 32): bit v % 32 of word v // 32 allows token v."""


def everything(vocab_size: int) -> Row:
    """The row that forbids nothing; bits beyond the vocabulary are set, too."""
    return np.full(-(-vocab_size // 32), -1, np.int32)


def only(vocab_size: int, tokens: Iterable[int]) -> Row:
    """The row that allows these tokens and no other."""
    row = np.zeros(-(-vocab_size // 32), np.int32)
    for token in tokens:
        row[token // 32] |= _bit(token)
    return row


def allows(row: Row, token: int) -> bool:
    """Whether a row allows a token; one that the vocabulary has not is not allowed."""
    return 0 <= token < 32 * len(row) and bool(row[token // 32] & _bit(token))


def without(row: Row, token: int) -> Row:
    """A row that forbids one more token."""
    result = row.copy()
    result[token // 32] &= ~_bit(token)
    return result


def _bit(token: int) -> np.int32:
    return np.uint32(1 << token % 32).astype(np.int32)
