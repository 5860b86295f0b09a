"""Text to token ids and back, over the checkpoint's `tokenizer.json`.

The family's tokenizer is a byte-level BPE: every ordinary token stands for bytes, and a character may
be spread over several tokens. So this wrapper knows each token's bytes; text is made from joined bytes
only, either at once (`decode`) or as they come (`detokenizer.py`), with the same result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from specdecode.core.errors import TokenizerError
from specdecode.core.text.markers import Marker

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from specdecode.core.models.deepseek_v41.config import DeepseekV41Config


class TextTokenizer:
    """A checkpoint's tokenizer with the ids that the configuration gives a meaning.

    Attributes:
        backend: the wrapped `tokenizers.Tokenizer`.
        bos, eos: ids that begin and end a sequence.
        image: id of the image placeholder.
        vocab_size: ids of the model; the tokenizer has at most as many.
    """

    def __init__(
        self, backend: Tokenizer, *, bos: int, eos: int, image: int | None, vocab_size: int, origin: str
    ) -> None:
        self.backend = backend
        self.bos = bos
        self.eos = eos
        self.image = image
        self.vocab_size = vocab_size
        self._check(origin)

    @classmethod
    def open(cls, folder: Path, *, bos: int, eos: int, image: int | None, vocab_size: int) -> TextTokenizer:
        """Read `tokenizer.json` of a checkpoint folder.

        Raises:
            TokenizerError: it is missing, damaged, not byte-level, or has ids the model does not.
        """
        from tokenizers import Tokenizer

        path = folder / "tokenizer.json"
        if not path.exists():
            if not any(folder.glob("*.safetensors*")):
                raise TokenizerError(
                    f"{folder} holds a configuration alone, without weights or a tokenizer, so nothing can run on it. "
                    "Name a folder with the whole checkpoint."
                )
            raise TokenizerError(f"No tokenizer.json in {folder}. It is part of the checkpoint; download it too.")
        try:
            backend = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises bare Exception
            raise TokenizerError(f"{path} cannot be read: {error}. Download it again.") from None
        return cls(backend, bos=bos, eos=eos, image=image, vocab_size=vocab_size, origin=str(path))

    @classmethod
    def of(cls, folder: Path, config: DeepseekV41Config) -> TextTokenizer:
        """The tokenizer of a checkpoint folder with the special ids of its configuration; raises as `open` does."""
        return cls.open(
            folder,
            bos=config.bos_token_id,
            eos=config.eos_token_id,
            image=config.image_token_id,
            vocab_size=config.text_config.vocab_size,
        )

    def encode(self, text: str) -> list[int]:
        """Ids of a text, with the begin-of-sequence id in front, once."""
        ids = self.backend.encode(text, add_special_tokens=False).ids
        return ids if ids[:1] == [self.bos] else [self.bos, *ids]

    def encode_pieces(self, pieces: Iterable[str]) -> list[int]:
        """Ids of a rendered conversation: each `Marker` is its own token, and no text spells one.

        Raises:
            TokenizerError: the vocabulary lacks a marker.
        """
        ids: list[int] = []
        for is_marker, group in groupby(pieces, key=lambda piece: isinstance(piece, Marker)):
            if is_marker:
                ids += map(self._marker, group)
            else:
                # One text, because a piece of ours and one of a user may share a token.
                ids += self._plain.encode("".join(group), add_special_tokens=False).ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids; special tokens have none, bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; none for special ids and for ids without a token."""
        return self._bytes.get(token, b"")

    @cached_property
    def added(self) -> dict[int, str]:
        """Names of the tokens that are no text: special ones and markers."""
        return {token: added.content for token, added in self.backend.get_added_tokens_decoder().items()}

    def find_image(self, ids: Sequence[int]) -> bool:
        """Whether a prompt holds the image placeholder."""
        return self.image is not None and self.image in ids

    def _marker(self, marker: str) -> int:
        token: int | None = self.backend.token_to_id(marker)
        if token is None:
            raise TokenizerError(
                f"The tokenizer has no token {marker}, so the checkpoint knows no conversations. Use --raw."
            )
        return token

    @cached_property
    def _plain(self) -> Tokenizer:
        """The tokenizer without its added tokens."""
        content = json.loads(self.backend.to_str())
        return type(self.backend).from_str(json.dumps(content | {"added_tokens": []}))

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        added = self.backend.get_added_tokens_decoder()
        table = {}
        for name, token in self.backend.get_vocab(with_added_tokens=True).items():
            if token in added:
                table[token] = b"" if added[token].special else added[token].content.encode()
            else:
                table[token] = bytes(_BYTE_OF[c] for c in name)
        return table

    def _check(self, origin: str) -> None:
        kind = (json.loads(self.backend.to_str()).get("decoder") or {}).get("type")
        if kind != "ByteLevel":
            raise TokenizerError(f"{origin} has the decoder {kind}; deepseek_v41 tokenizers are ByteLevel.")
        highest = max(self.backend.get_vocab(with_added_tokens=True).values())
        if highest >= self.vocab_size:
            raise TokenizerError(
                f"{origin} has ids up to {highest}, but text_config.vocab_size is {self.vocab_size}. "
                "The tokenizer "
                "belongs to another checkpoint."
            )
        for name, token in (("bos_token_id", self.bos), ("eos_token_id", self.eos)):
            if self.backend.id_to_token(token) is None:
                raise TokenizerError(f"{origin} has no token {token}, which config.json names as {name}.")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the other 68 for U+0100 and up, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = (byte for byte in range(256) if byte not in printable)
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + place): byte for place, byte in enumerate(hidden)})
    return table


_BYTE_OF = byte_alphabet()
