"""A tokenizer with the markers of conversations, and a model that answers by rote."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

from specdecode.core.text import markers
from tests.support.byte_tokenizer import EOS, byte_id, tokenizer_json
from tests.support.tiny import CONFIG

MARKERS = {
    marker: 266 + place
    for place, marker in enumerate(
        (markers.SYSTEM, markers.USER, markers.ASSISTANT, markers.REMINDER, markers.THINK_END, markers.DSML)
    )
} | {markers.THINK: 265, markers.BOS: 0, markers.EOS: EOS}
VOCAB = 272


def write_chat_folder(folder: Path) -> Path:
    """A configuration and a tokenizer without weights."""
    text = json.dumps(tokenizer_json(), ensure_ascii=False)
    content = json.loads(text.replace("<|begin|>", markers.BOS).replace("<|end|>", markers.EOS))
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    content["added_tokens"] += [{"id": i, "content": str(m), **flags} for m, i in MARKERS.items() if i > 265]
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False))
    config = {**CONFIG, "text_config": {**CONFIG["text_config"], "vocab_size": VOCAB, "max_position_embeddings": 4096}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def tokens(text: str) -> list[int]:
    """A text with markers as ids, byte by byte."""
    for marker, token in MARKERS.items():
        if marker in text:
            before, _, after = text.partition(marker)
            return [*tokens(before), token, *tokens(after)]
    return [byte_id(byte) for byte in text.encode()]


class Replies:
    """In place of tables: after the marker that opens an answer comes this text, and then the end.

    A token says where in the text it stands, so no byte may be there twice.
    """

    target = SimpleNamespace(shape=(VOCAB,))
    drafter = None

    def __init__(self, *texts: str) -> None:
        self._next: dict[int, int] = {}
        for text in texts:
            path = [*tokens(text), EOS]
            assert len(set(path)) == len(path), "a byte is there twice"
            self._next |= dict(pairwise(path))

    def sample(self, table, before, last, *, position: int, seed: int, temperature: float, **limits: float) -> int:
        return self._next.get(last, EOS)
