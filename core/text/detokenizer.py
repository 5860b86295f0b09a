"""Token ids to text as they come, never cutting a character in two."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol


class TokenBytes(Protocol):
    """What a detokenizer needs of a tokenizer."""

    def token_bytes(self, token: int) -> bytes: ...


class IncrementalDetokenizer:
    """Turn a stream of ids into text pieces whose concatenation is the one-shot decoding.

    Bytes of an unfinished character are held back until its last byte arrives, whether that is in the
    same block or rounds later. Bytes that can no longer become a character turn into U+FFFD at once, as
    in one-shot decoding; a genuine U+FFFD in the text is an ordinary character.
    """

    def __init__(self, tokenizer: TokenBytes) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, ids: Iterable[int]) -> str:
        """The text that these ids complete; may be empty."""
        return self._decoder.decode(b"".join(map(self._tokenizer.token_bytes, ids)))

    def finish(self) -> str:
        """What is left when the stream ends: U+FFFD for an unfinished character, once."""
        return self._decoder.decode(b"", final=True)
