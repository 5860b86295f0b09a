"""The yardstick for bits per byte: an interpolated byte trigram (Witten-Bell) of the training text."""

from __future__ import annotations

import numpy as np


class ByteTrigram:
    """Counts of bytes after contexts of two, one and no bytes, backed off in proportion to novelty."""

    def __init__(self, texts: list[bytes]) -> None:
        self.three = np.zeros(1 << 24, dtype=np.int64)
        for text in texts:
            data = np.frombuffer(text, dtype=np.uint8).astype(np.int64)
            code = (data[:-2] << 16) | (data[1:-1] << 8) | data[2:]
            self.three += np.bincount(code, minlength=1 << 24)
        self.three = self.three.reshape(256, 256, 256)
        self.two = self.three.sum(0)
        self.one = self.two.sum(0)

    def bits(self, text: bytes) -> float:
        """Return the bits this model needs for `text`, the first two bytes excepted."""
        data = np.frombuffer(text, dtype=np.uint8).astype(np.int64)
        a, b, c = data[:-2], data[1:-1], data[2:]
        p = np.full(len(c), 1 / 256)
        p = self._mix(self.one[c], self.one.sum(), (self.one > 0).sum(), p)
        p = self._mix(self.two[b, c], self.two.sum(1)[b], (self.two > 0).sum(1)[b], p)
        p = self._mix(self.three[a, b, c], self.three.sum(2)[a, b], (self.three > 0).sum(2)[a, b], p)
        return float(-np.log2(p).sum())

    @staticmethod
    def _mix(count: np.ndarray, total: np.ndarray, distinct: np.ndarray, lower: np.ndarray) -> np.ndarray:
        known = total + distinct
        return np.where(known > 0, (count + distinct * lower) / np.maximum(known, 1), lower)
