"""Which tokens a request may draw, position by position: reasoning with its budget, then a grammar.

A mask belongs to the target's law, so it is applied at every verified row: row j says what is allowed after the first j
drafts. States are values that nothing changes. Drafts are followed from the state of the committed tokens and leave it
as it is, so whatever is rejected has never happened, and nothing is ever rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from specdecode.core.errors import SpecdecodeError
from specdecode.core.text.bitmask import Row, allows, everything, only, without

if TYPE_CHECKING:
    from llguidance import LLMatcher


class ConstraintError(SpecdecodeError):
    """A request's grammar can go on no further; other requests can."""


class State(Protocol):
    """What may come after some tokens.

    Attributes:
        row: which tokens may be next.
        finished: whether nothing but the end may follow, or has followed.
        ended: whether the last token was one that ends a text and is not part of it.
        free: whether nothing will ever be forbidden.
    """

    @property
    def row(self) -> Row: ...
    @property
    def finished(self) -> bool: ...
    @property
    def ended(self) -> bool: ...
    @property
    def free(self) -> bool: ...

    def after(self, token: int) -> State | None:
        """The state after one more token; None where it is forbidden."""
        ...


class Free:
    """Anything may follow."""

    finished = ended = False
    free = True

    def __init__(self, vocab_size: int) -> None:
        self.row = everything(vocab_size)

    def after(self, token: int) -> State | None:
        return self


class Reasoning:
    """Anything may follow until `end`; where a budget is used up, nothing else than `end`.

    Args:
        end: the id of `</think>`.
        left: tokens of reasoning that may still come before it; None = no limit.
        then: the state after `end`.
    """

    finished = ended = free = False

    def __init__(self, vocab_size: int, *, end: int, left: int | None, then: State) -> None:
        self._size, self._end, self._left, self._then = vocab_size, end, left, then

    @cached_property
    def row(self) -> Row:
        return everything(self._size) if self._left != 0 else only(self._size, (self._end,))

    def after(self, token: int) -> State | None:
        if token == self._end:
            return self._then
        if self._left == 0:
            return None
        left = None if self._left is None else self._left - 1
        return self if left is None else Reasoning(self._size, end=self._end, left=left, then=self._then)


class Matching:
    """A text of a grammar is being written.

    Where the text is complete, ending tokens are allowed, too. Whether a token is legal is read from the mask and from
    nothing else.

    Args:
        matcher: llguidance's state after the tokens so far; nobody else may change it.
        endings: the row of the ids that end the text and are not part of it: end-of-sequence and stop ids.
        eos: the id that llguidance knows as the end.
    """

    ended = free = False

    def __init__(self, matcher: LLMatcher, *, endings: Row, eos: int) -> None:
        self._matcher, self._endings, self._eos = matcher, endings, eos

    @cached_property
    def row(self) -> Row:
        """Raises `ConstraintError` where nothing can follow an unfinished text, or where a limit is hit."""
        if not self._more.any() and not self._complete:
            raise ConstraintError("The grammar needs text that no token of the vocabulary spells.")
        return self._more | self._endings if self._complete else self._more

    @property
    def finished(self) -> bool:
        _ = self.row  # raises where it must
        return not self._more.any()

    def after(self, token: int) -> State | None:
        if allows(self._more, token):
            matcher = self._matcher.deep_copy()
            matcher.consume_token(token)
            return Matching(matcher, endings=self._endings, eos=self._eos)
        return Ended(self._endings) if self._complete and allows(self._endings, token) else None

    @cached_property
    def _more(self) -> Row:
        """Tokens that the text can go on with."""
        # llguidance has a word too many where V is a multiple of 32.
        row = np.frombuffer(self._matcher.compute_bitmask(), np.int32)[: len(self._endings)]
        if self._matcher.is_error():
            reason = self._matcher.get_error().partition("\n")[0]
            if reason.startswith("NoExtension"):  # a dead end
                return np.zeros_like(row)
            raise ConstraintError(f"The grammar is too complex at this place: {reason}.")
        return without(row, self._eos)

    @cached_property
    def _complete(self) -> bool:
        return self._matcher.is_accepting()


class Ended:
    """A text of a grammar has ended; whatever else is drawn in the same block does not count."""

    finished = ended = True
    free = False

    def __init__(self, endings: Row) -> None:
        self.row = endings

    def after(self, token: int) -> State | None:
        return self if allows(self.row, token) else None


class Constraint:
    """One request's masks. It begins in `state` and moves on by committed tokens alone."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._ahead: list[tuple[int, State]] = []

    @property
    def finished(self) -> bool:
        """Whether the text is complete and nothing may follow, or an ending token has followed."""
        return self._state.finished

    @property
    def ended(self) -> bool:
        """Whether the last committed token ended the text without being part of it."""
        return self._state.ended

    @property
    def free(self) -> bool:
        """Whether nothing will be forbidden any more."""
        return self._state.free

    def useful(self, drafts: Sequence[int]) -> int:
        """How many drafts are worth verifying: those before the first that is forbidden or ends the text.

        A forbidden one would be rejected. One that ends the text can as well be drawn: behind it nothing counts.
        """
        states = self._follow(drafts)
        for place, state in enumerate(states):
            try:
                if state.finished:
                    return place
            except ConstraintError:  # it is raised again if this token is committed
                return place
        return len(states)

    def masks(self, drafts: Sequence[int]) -> NDArray[np.int32]:
        """What is allowed after none, one, … all of some drafts.

        Returns:
            int32 [len(drafts) + 1, W]. A forbidden draft is rejected at its own row, so the rows behind it are never
            read; they are 0, and nothing could be accepted through them.
        """
        rows = np.zeros((len(drafts) + 1, len(self._state.row)), np.int32)
        rows[0] = self._state.row
        for place, state in enumerate(self._follow(drafts), start=1):
            rows[place] = state.row
        return rows

    def commit(self, tokens: Iterable[int]) -> None:
        """Go on by tokens; what comes behind the end does not count.

        Raises:
            ConstraintError: the grammar can go on no further.
            RuntimeError: a token was forbidden, so the model has not applied the mask.
        """
        for token in tokens:
            if self._state.finished:
                return
            states = self._follow((token,))
            if not states:
                raise RuntimeError(f"the model drew token {token}, which the request's mask forbids")
            self._state = states[0]
            del self._ahead[0]
            _ = self._state.row  # raises where it must

    def _follow(self, drafts: Sequence[int]) -> list[State]:
        """The states after the drafts before the first forbidden one; what is known of them is kept."""
        state, states = self._state, list[State]()
        for place, token in enumerate(drafts):
            if place == len(self._ahead) or self._ahead[place][0] != token:
                following = state.after(token)
                if following is None:
                    break
                self._ahead[place:] = [(token, following)]
            state = self._ahead[place][1]
            states.append(state)
        return states
