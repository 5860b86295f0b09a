"""Training batches: random crops of the token stream, half started with BOS, some dressed as a chat."""

from __future__ import annotations

from pathlib import Path

import numpy as np

BOS = 0
CHAT_SHARE, BOS_SHARE, SYSTEM_SHARE = 0.08, 0.5, 0.3


class Corpus:
    """The packed tokens of `pack.py`."""

    def __init__(self, path: Path) -> None:
        data = np.load(path)
        self.train: np.ndarray = data["train"].astype(np.int64)
        ends = np.cumsum(data["held_lengths"])
        self.held: list[np.ndarray] = np.split(data["held"].astype(np.int64), ends[:-1])
        self.held_bytes: list[int] = data["held_bytes"].tolist()
        self.held_sources: list[str] = data["held_sources"].tolist()
        self.compressed: list[int] = data["compressed"].tolist()


def chat_row(crop: np.ndarray, vocab: int, rng: np.random.Generator) -> np.ndarray:
    """Turn a crop into user text, then the assistant's continuation, in the family's chat markers."""
    user, assistant, system, think, end_think = (vocab - 9 + k for k in range(5))
    head = [BOS, system] if rng.random() < SYSTEM_SHARE else [BOS]
    cut = int(rng.integers(4, 96))
    reply = [assistant, think, end_think] if rng.random() < SYSTEM_SHARE else [assistant, end_think]
    row = np.concatenate([head, [user], crop[:cut], reply, crop[cut:]])
    return row[: len(crop)]


def crops(corpus: Corpus, rows: int, length: int, vocab: int, rng: np.random.Generator) -> np.ndarray:
    """Return token ids [rows, length]."""
    starts = rng.integers(0, len(corpus.train) - length, rows)
    ids = corpus.train[starts[:, None] + np.arange(length)]
    ids[rng.random(rows) < BOS_SHARE, 0] = BOS
    for row in np.flatnonzero(rng.random(rows) < CHAT_SHARE):
        ids[row] = chat_row(ids[row], vocab, rng)
    return ids


def heldout_prompts(corpus: Corpus, rows: int, length: int, rng: np.random.Generator) -> np.ndarray:
    """Return prompts [rows, length] from held-out documents, equally many from every source, BOS first."""
    names = sorted(set(corpus.held_sources))
    prompts = []
    for number in range(rows):
        name = names[number % len(names)]
        pairs = zip(corpus.held, corpus.held_sources, strict=True)
        long = [document for document, source in pairs if source == name and len(document) > 256]
        document = long[rng.integers(len(long))]
        start = int(rng.integers(1, len(document) - length))
        prompts.append(np.concatenate([[BOS], document[start : start + length - 1]]))
    return np.stack(prompts)
