"""A small byte-level tokenizer in the family's form: special tokens, 256 bytes, a few merges, chat "
"markers."""

from __future__ import annotations

import json
from pathlib import Path

from specdecode.core.text.tokenizer import byte_alphabet

BOS, EOS, PAD, IMAGE = 0, 1, 2, 264
MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("a", "n"), ("Ġ", "t")]
_ALPHABET = {byte: char for char, byte in byte_alphabet().items()}


def byte_id(byte: int) -> int:
    """The id of a single byte."""
    return 3 + byte


def _added(token: int, content: str, *, special: bool) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": content, **flags, "special": special}


def tokenizer_json(decoder: str = "ByteLevel") -> dict[str, object]:
    """The content of a `tokenizer.json` with 266 ids."""
    names = ["<|begin|>", "<|end|>", "<|pad|>", *(_ALPHABET[byte] for byte in range(256))]
    names += ["".join(pair) for pair in MERGES]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    special = [_added(i, names[i], special=True) for i in range(3)]
    extra = [_added(IMAGE, "<|image|>", special=True), _added(265, "<think>", special=False)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": {**level, "type": decoder} if decoder == "ByteLevel" else {"type": decoder},
        "added_tokens": [*special, *extra],
        "model": {
            "type": "BPE",
            "vocab": {name: token for token, name in enumerate(names)},
            "merges": [list(pair) for pair in MERGES],
        },
    }


def write_tokenizer(folder: Path, **options: str) -> Path:
    """Write `tokenizer.json` into a folder and return its path."""
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(tokenizer_json(**options), ensure_ascii=False), encoding="utf-8")
    return path
