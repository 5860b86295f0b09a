"""Which of a text's tokens were drafted: colours on a terminal, marks elsewhere."""

from __future__ import annotations

from specdecode.core.engine.request import TokensEvent

_COLOURS = {"accepted": "\x1b[32m", "corrected": "\x1b[31m", "bonus": "\x1b[36m"}
_MARKS = {"accepted": "[", "corrected": "[!", "bonus": "[+"}
_MEANINGS = {
    "accepted": "a draft that the target drew, too",
    "corrected": "the target's own token in place of the first rejected draft",
    "bonus": "the target's own token after a block that was accepted whole",
}


def traced(event: TokensEvent, *, colour: bool) -> str:
    """The text of a step's tokens, each with its kind; a token that only begins a character has no text yet."""
    return "".join(_one(piece, event.kind(place), colour) for place, piece in enumerate(event.pieces))


def legend(*, colour: bool) -> list[str]:
    """One line a kind."""
    return [f"{_one(kind, kind, colour)} = {meaning}" for kind, meaning in _MEANINGS.items()]


def _one(piece: str, kind: str | None, colour: bool) -> str:
    if not piece or kind is None:
        return piece
    return f"{_COLOURS[kind]}{piece}\x1b[0m" if colour else f"{_MARKS[kind]}{piece}]"
