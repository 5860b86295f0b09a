"""Show the texts of prompts that run together one after the other, in the order of the prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class OrderedTexts:
    """Collects pieces of several texts and passes them on in order.

    The first text that has not ended is passed on as it comes; those behind it wait for their turn.

    Args:
        count: how many texts there are.
        begin: called with a text's number before its first piece, also if it has none.
        show: called with each piece.
        stream: pass on pieces as they come; otherwise whole texts only.
        as_completed: pass texts on in the order in which they end; then none is streamed unless it is alone.
    """

    def __init__(
        self,
        count: int,
        *,
        begin: Callable[[int], None],
        show: Callable[[str], None],
        stream: bool,
        as_completed: bool = False,
    ) -> None:
        self._pieces: list[list[str]] = [[] for _ in range(count)]
        self._ended = [False] * count
        self._dropped = [False] * count
        self._begin = begin
        self._show = show
        self._stream = stream
        self._as_completed = as_completed and count > 1
        self._current = 0
        self._begun = False

    def add(self, number: int, piece: str) -> None:
        """A piece of text `number`."""
        if piece:
            self._pieces[number].append(piece)
            self._pass_on()

    def end(self, number: int) -> None:
        """Text `number` is complete."""
        self._ended[number] = True
        if self._as_completed:
            self._pass_on_one(number)
        else:
            self._pass_on()

    def drop(self, number: int) -> None:
        """Text `number` ends here; what has not been shown of it is not to be trusted."""
        self._pieces[number].clear()
        self._dropped[number] = True
        self.end(number)

    def flush(self) -> None:
        """Nothing more will come: show the texts that ended, passing over those that did not."""
        remaining: Sequence[int] = range(self._current, len(self._pieces))
        for number in remaining:
            if not self._ended[number]:
                self.drop(number)

    def _pass_on_one(self, number: int) -> None:
        if not self._dropped[number]:
            self._begin(number)
            self._show("".join(self._pieces[number]) + "\n")

    def _pass_on(self) -> None:
        if self._as_completed:
            return
        while self._current < len(self._pieces):
            number = self._current
            ended = self._ended[number]
            due = ended or (self._stream and self._pieces[number])
            if due and not self._begun and not self._dropped[number]:
                self._begin(number)
                self._begun = True
            if due and self._pieces[number]:
                self._show("".join(self._pieces[number]))
                self._pieces[number].clear()
            if not ended:
                return
            if self._begun:
                self._show("\n")
            self._current += 1
            self._begun = False
