"""What of a step's tokens a sequence keeps: they are looked at one by one, and the first reason to end wins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specdecode.core.engine.request import FinishReason
from specdecode.core.engine.scheduler import Sequence


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Tokens that a sequence gained.

    Attributes:
        tokens: up to and including the one that ended the sequence.
        pieces: the text that each of them released; it may be empty and is without what a stop cuts off.
        reason: why the sequence ended, or None.
    """

    tokens: tuple[int, ...]
    pieces: tuple[str, ...]
    reason: FinishReason | None


def commit(sequence: Sequence, tokens: Iterable[int], *, max_length: int) -> Kept:
    """Append tokens to a sequence until one ends it; nothing behind that is kept anywhere.

    Raises:
        ConstraintError: its grammar can go on no further.
    """
    kept: list[int] = []
    pieces: list[str] = []
    reason = None
    for token in tokens:
        sequence.tokens.append(token)
        kept.append(token)
        piece, reason = _one(sequence, token, max_length)
        pieces.append(piece)
        if reason is not None:
            break
    sequence.pieces += pieces
    return Kept(tokens=tuple(kept), pieces=tuple(pieces), reason=reason)


def _one(sequence: Sequence, token: int, max_length: int) -> tuple[str, FinishReason | None]:
    """The text that a token releases and whether it ends the sequence."""
    request, text, constraint = sequence.request, sequence.text, sequence.constraint
    may_stop = sequence.generated > request.min_tokens
    if constraint is not None:
        constraint.commit((token,))
    if (may_stop and token in request.stop_ids) or (constraint is not None and constraint.ended):
        sequence.stopped_by = token
        return ("" if text is None else text.feed_stop(token)), FinishReason.STOP
    piece, stop = ("", None) if text is None else text.feed(token, watch=may_stop)
    if stop is not None:
        sequence.stopped_by = stop
        return piece, FinishReason.STOP
    reason = None
    if constraint is not None and constraint.finished:
        reason = FinishReason.STOP
    elif sequence.remaining == 0:
        reason = FinishReason.LENGTH
    elif len(sequence.tokens) == max_length:
        reason = FinishReason.CONTEXT
    rest = "" if reason is None or text is None else text.finish()
    return piece + rest, reason
