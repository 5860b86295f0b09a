"""A model that answers with a text given beforehand, whatever it is asked, and may be slow or break."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.text.markers import THINK_END
from specdecode.core.text.tokenizer import TextTokenizer
from tests.support.byte_tokenizer import EOS
from tests.support.replies import MARKERS, VOCAB, tokens
from tests.support.toy import ToyModel


def chat_tokenizer(folder: Path) -> TextTokenizer:
    """Of a folder that `write_chat_folder` wrote."""
    return TextTokenizer.of(folder, DeepseekV41Config.from_json(folder))


class Recital:
    """In place of tables: after `opener` come the tokens of a text, and then the end. One request at a time."""

    target = SimpleNamespace(shape=(VOCAB,))
    drafter = None

    def __init__(self, text: str, opener: str = THINK_END) -> None:
        self._tokens = [*tokens(text), EOS]
        self._opener = MARKERS[opener]
        self._start = 0

    def sample(self, table, before, last, *, position: int, seed: int, temperature: float, **limits: float) -> int:
        if last == self._opener:
            self._start = position
        place = position - self._start
        return self._tokens[place] if 0 <= place < len(self._tokens) else EOS


class Even:
    """Logits that say nothing."""

    shape = (VOCAB,)

    def __getitem__(self, context: tuple[int, int]) -> NDArray[np.float64]:
        return np.zeros(VOCAB)


class Letters:
    """In place of tables: a letter by seed and position, so that every seed has a text of its own and none ends."""

    target = Even()
    drafter = None

    def sample(self, table, before, last, *, position: int, seed: int, temperature: float, **limits: float) -> int:
        wrong = table is None and position % 5 == 0  # a draft that is not accepted
        return tokens(chr(97 + (seed * 7 + position * (seed + 3) + wrong) % 26))[0]


class SlowModel(ToyModel):
    """Takes a while for every step."""

    seconds = 0.005

    def step(self, rows, *, width: int, draft: bool):
        time.sleep(self.seconds)
        return super().step(rows, width=width, draft=draft)


class BreakingModel(SlowModel):
    """Breaks down whenever a request with seed 13 has written some tokens."""

    seconds = 0.001

    def step(self, rows, *, width: int, draft: bool):
        if any(row.seed == 13 and row.cache_length > 30 for row in rows):
            raise ValueError("thirteen")
        return super().step(rows, width=width, draft=draft)
