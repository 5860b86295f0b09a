"""The text of one request as its tokens come, watched for stop strings.

Everything happens on bytes, so that it makes no difference how the model cut the text into tokens: a stop string may
begin in one token and end rounds later, and so may a character.
"""

from __future__ import annotations

from collections.abc import Sequence

from specdecode.core.text.detokenizer import IncrementalDetokenizer, TokenBytes


class OutputText:
    """Pieces of text whose concatenation is what the request is to show, and nothing behind a stop.

    Args:
        tokenizer: what each token stands for.
        stops: strings that end the text; the one that is complete first counts, of two that end together the longer.
        include_stop: whether the stop itself belongs to the text.
    """

    def __init__(self, tokenizer: TokenBytes, stops: Sequence[str] = (), *, include_stop: bool = False) -> None:
        self._tokenizer = tokenizer
        self._stops = [(stop, stop.encode()) for stop in stops]
        self._include = include_stop
        self._decoder = IncrementalDetokenizer(_Bytes())
        self._held = b""
        self._fresh = 0  # bytes at the end of `_held` in which no stop has been looked for

    def feed(self, token: int, *, watch: bool = True) -> tuple[str, str | None]:
        """The text that this token completes, and the stop string that it completes, if any.

        Args:
            token: the next token.
            watch: whether a stop that ends in this token counts.
        """
        data = self._tokenizer.token_bytes(token)
        self._held += data
        self._fresh = len(data)
        found = self._find() if watch else None
        if found is None:
            return self._release(len(self._held) - self._possible_beginning()), None
        end, stop, size = found
        self._held = self._held[: end if self._include else end - size]
        return self.finish(), stop

    def feed_stop(self, token: int) -> str:
        """The rest of the text, which ends with this stop token."""
        if self._include:
            self._held += self._tokenizer.token_bytes(token)
        return self.finish()

    def finish(self) -> str:
        """The rest of the text; U+FFFD stands for a character that will not be finished."""
        return self._release(len(self._held)) + self._decoder.finish()

    def _find(self) -> tuple[int, str, int] | None:
        """Where the first complete stop ends, which it is and its size in bytes."""
        old = len(self._held) - self._fresh
        found = []
        for stop, data in self._stops:
            start = self._held.find(data, max(0, old - len(data) + 1))
            if start >= 0:
                found.append((start + len(data), stop, len(data)))
        return min(found, key=lambda item: (item[0], -item[2]), default=None)

    def _possible_beginning(self) -> int:
        """Bytes at the end that a stop may begin with."""
        longest = max((len(data) for _, data in self._stops), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            end = self._held[-size:]
            if any(data.startswith(end) and len(data) > size for _, data in self._stops):
                return size
        return 0

    def _release(self, size: int) -> str:
        released, self._held = self._held[:size], self._held[size:]
        return self._decoder.feed(released)


class _Bytes:
    """Bytes as their own tokens."""

    def token_bytes(self, token: int) -> bytes:
        return bytes((token,))
