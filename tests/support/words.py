"""A vocabulary of a few words, and regular languages that know by themselves what may come next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdecode.core.text.markers import THINK_END


class Words:
    """Token n is the n-th of these texts; the one named `</think>` and the end are no text."""

    def __init__(self, *texts: str, eos: int = 0) -> None:
        self._texts = texts
        self.eos = eos
        self.vocab_size = len(texts)
        self.added = {eos: texts[eos], **{n: text for n, text in enumerate(texts) if text == THINK_END}}

    def token_bytes(self, token: int) -> bytes:
        return b"" if token in self.added and token == self.eos else self._texts[token].encode()

    def ids(self, *texts: str) -> list[int]:
        """The tokens of these texts."""
        return [self._texts.index(text) for text in texts]

    def named(self, row: NDArray[np.int32]) -> list[str]:
        """The texts that a row of a mask allows."""
        return [text for n, text in enumerate(self._texts) if row[n // 32] >> (n % 32) & 1]


@dataclass(frozen=True)
class Language:
    """A regular expression over letters that is differentiated instead of compiled (Brzozowski, 1964)."""

    kind: str
    parts: tuple[Language | str, ...] = ()

    @property
    def empty_text(self) -> bool:
        """Whether the empty text belongs to it."""
        if self.kind in ("cat", "alt"):
            return (all if self.kind == "cat" else any)(part.empty_text for part in self.parts)
        return self.kind in ("nothing", "star")

    def after(self, text: str) -> Language:
        """What may follow this text; `NEVER` where the text cannot be its beginning."""
        for letter in text:
            self = self._after(letter)
        return self

    def pattern(self) -> str:
        """The same for a regular expression engine."""
        if self.kind == "letter":
            return self.parts[0]
        inner = ("|" if self.kind == "alt" else "").join(part.pattern() for part in self.parts)
        return f"({inner})" + ("*" if self.kind == "star" else "")

    def _after(self, letter: str) -> Language:
        if self.kind == "letter":
            return NOTHING if self.parts[0] == letter else NEVER
        if self.kind == "star":
            return cat(self.parts[0]._after(letter), self)
        if self.kind == "alt":
            return alt(*(part._after(letter) for part in self.parts))
        if self.kind == "cat":
            first, rest = self.parts
            ways = cat(first._after(letter), rest)
            return alt(ways, rest._after(letter)) if first.empty_text else ways
        return NEVER


NEVER, NOTHING = Language("never"), Language("nothing")


def letter(text: str) -> Language:
    """The language of one letter."""
    return Language("letter", (text,))


def cat(first: Language, rest: Language) -> Language:
    """One text behind the other."""
    if NEVER in (first, rest):
        return NEVER
    if first == NOTHING:
        return rest
    return first if rest == NOTHING else Language("cat", (first, rest))


def alt(first: Language, other: Language) -> Language:
    """Either of two."""
    if first in (NEVER, other):
        return other
    return first if other == NEVER else Language("alt", (first, other))


def star(inner: Language) -> Language:
    """Any number of times."""
    return inner if inner.kind in ("star", "nothing") else Language("star", (inner,))


def allowed(words: Words, language: Language, endings: Sequence[int]) -> NDArray[np.bool_]:
    """bool [V]: tokens that leave a member of the language possible, and the ends where the text is one."""
    texts = ["" if token in words.added else words.token_bytes(token).decode() for token in range(words.vocab_size)]
    mask = np.array([bool(text) and language.after(text) != NEVER for text in texts])
    if language.empty_text:
        mask[list(endings)] = True
    return mask
