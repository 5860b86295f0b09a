"""Whether a target and a drafter fit together, and where two checkpoints differ."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.text.tokenizer import TextTokenizer


@dataclass(frozen=True, kw_only=True)
class Fact:
    """What two checkpoints say of one thing; `needed`: a drafter of one for the other needs it to be equal."""

    name: str
    first: object
    second: object
    needed: bool

    @property
    def equal(self) -> bool:
        return self.first == self.second


def facts(first: Path, second: Path) -> list[Fact]:
    """Vocabulary, tokenizer, special tokens, hidden taps and block of two checkpoints."""
    a, b = DeepseekV41Config.from_json(first), DeepseekV41Config.from_json(second)
    found = [("tokenizer", _vocabulary(first, a), _vocabulary(second, b), True)]
    for name in ("bos_token_id", "eos_token_id"):
        found.append((name, getattr(a, name), getattr(b, name), True))
    for name in ("vocab_size", "hidden_size", "hc_mult", "dspark_noise_token_id"):
        found.append((name, getattr(a.text_config, name), getattr(b.text_config, name), True))
    for name in ("num_hidden_layers", "dspark_target_layer_ids", "dspark_block_size", "max_position_embeddings"):
        found.append((name, getattr(a.text_config, name), getattr(b.text_config, name), False))
    made = [Fact(name=name, first=x, second=y, needed=needed) for name, x, y, needed in found]
    return [*made, _taps(a, b)]


def _taps(a: DeepseekV41Config, b: DeepseekV41Config) -> Fact:
    """Whether the second one's drafter reads layers that the first one has."""
    layers, taps = a.text_config.num_hidden_layers, b.text_config.dspark_target_layer_ids
    beyond = tuple(layer for layer in taps if layer >= layers)
    return Fact(name="hidden taps beyond the first one's layers", first=(), second=beyond, needed=True)


def _vocabulary(folder: Path, config: DeepseekV41Config) -> str:
    """A digest of what the ids stand for."""
    backend = TextTokenizer.of(folder, config).backend
    ids = sorted((token, name) for name, token in backend.get_vocab(with_added_tokens=True).items())
    digest = hashlib.sha256(repr(ids).encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{len(ids)} tokens, {digest}"
