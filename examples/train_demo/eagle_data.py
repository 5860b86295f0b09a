"""What the EAGLE drafter learns from: sequences with the frozen target's taps and last states, kept on the device.

The target does not change, so it runs once over every sequence. A state [D] stands for its law over the
vocabulary, which the head gives back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from batches import Corpus, crops
from generate import generate
from model import Model
from torch import Tensor

PROMPT, CHUNK = 32, 64


@dataclass
class Pool:
    """Sequences [N,T], taps [N,T,F], normed states [N,T,D]; the first `own` sequences are the target's text."""

    ids: Tensor
    taps: Tensor
    hidden: Tensor
    own: int

    def pick(self, rows: int, rng: np.random.Generator) -> Tensor:
        """Return the numbers of `rows` sequences, three quarters of them the target's own."""
        count = rows * 3 // 4
        own = rng.integers(0, self.own, count)
        return torch.from_numpy(np.concatenate([own, rng.integers(self.own, len(self.ids), rows - count)]))


def write_own(model: Model, corpus: Corpus, rows: int, new: int, rng: np.random.Generator) -> Tensor:
    """Let the target continue training crops: two thirds sampled at temperature 1, one third greedy."""
    device = model.head.weight.device
    prompts = torch.from_numpy(crops(corpus, rows, PROMPT, model.config.vocab_size, rng)).to(device)
    cut, seed = rows * 2 // 3, int(rng.integers(1 << 20))
    return torch.cat([generate(model, prompts[:cut], new, 1.0, seed), generate(model, prompts[cut:], new, 0.0, seed)])


@torch.no_grad()
def make_pool(model: Model, corpus: Corpus, own_rows: int, crop_rows: int, new: int, rng: np.random.Generator) -> Pool:
    """Write the target's own text, add crops of the corpus, and run the target over all of it."""
    own = write_own(model, corpus, own_rows, new, rng)
    text = torch.from_numpy(crops(corpus, crop_rows, own.shape[1], model.config.vocab_size, rng))
    ids = torch.cat([own, text.to(own.device)])
    outputs = [model(part) for part in ids.split(CHUNK)]
    taps = torch.cat([out.taps_BTF for out in outputs])
    return Pool(ids, taps, torch.cat([out.hidden_BTD for out in outputs]), own_rows)
