"""Prompt lookup: what followed the last time that the text ended like this is proposed again; no drafter, no weights.

Source: Saxena, "Prompt Lookup Decoding" (2023); known as n-gram speculation in vLLM and SGLang.
"""

from __future__ import annotations

from collections.abc import Sequence


class PromptLookup:
    """Proposals for one request, a `TokenProposer`; every n-gram of its tokens is remembered by where it was last seen.

    Args:
        longest, shortest: tokens that the end of the text must share with an earlier place; longer ones go first.
    """

    def __init__(self, *, longest: int = 4, shortest: int = 2) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"{shortest=} and {longest=}: an n-gram has a token or more")
        self._sizes = range(longest, shortest - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        self._done = 0

    def propose(self, tokens: Sequence[int], width: int) -> list[int]:
        """At most `width` tokens to come after `tokens`, which grow from call to call; none where nothing repeats."""
        for end in range(self._done + 1, len(tokens)):  # what ends with the text itself is no earlier place
            for size in self._sizes:
                if size <= end:
                    self._ends[tuple(tokens[end - size : end])] = end
        self._done = max(self._done, len(tokens) - 1)
        for size in self._sizes:
            end = self._ends.get(tuple(tokens[-size:]), 0) if size <= len(tokens) else 0
            if end:
                return list(tokens[end : end + width])
        return []
