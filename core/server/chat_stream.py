"""An answer of a conversation, taken apart while it is still being written.

What is passed on adds up to what `parse_answer` makes of the whole text: whatever might still become a marker, or a
line break that is left out in the end, is held back.
"""

from __future__ import annotations

from dataclasses import dataclass

from specdecode.core.text.answer import CALLS, Answer, parse_answer
from specdecode.core.text.conversation import ToolCall
from specdecode.core.text.markers import THINK_END

_CALLS_BEGIN = (f"\n\n{CALLS}", f"\n{CALLS}", CALLS)


@dataclass(frozen=True, kw_only=True)
class Delta:
    """What an answer has gained."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.tool_calls)


class ChatStream:
    """Texts in, what is certain of the answer out.

    Args:
        thinking: whether the text begins inside the reasoning.
        tools: whether it may call some.
    """

    def __init__(self, *, thinking: bool, tools: bool) -> None:
        self._thinking, self._tools = thinking, tools
        self._text = ""
        self._reasoning = self._content = 0
        self._called = False

    def feed(self, piece: str) -> Delta:
        """More of the text."""
        self._text += piece
        return self._delta(self._certain()) if piece else Delta()

    def finish(self) -> Delta:
        """The rest."""
        return self._delta(parse_answer(self._text, thinking=self._thinking, tools=self._tools))

    def _delta(self, answer: Answer) -> Delta:
        reasoning = answer.reasoning or ""
        delta = Delta(
            reasoning=reasoning[self._reasoning :],
            content=answer.content[self._content :],
            tool_calls=() if self._called else answer.tool_calls,
        )
        self._reasoning = max(self._reasoning, len(reasoning))
        self._content = max(self._content, len(answer.content))
        self._called = self._called or bool(answer.tool_calls)
        return delta

    def _certain(self) -> Answer:
        """What no later text can change."""
        markers = (THINK_END, CALLS) if self._tools else (THINK_END,)
        if self._thinking and not any(marker in self._text for marker in markers):
            text = _without_beginning(self._text, markers)
            return Answer(reasoning=text.strip("\n"), content="")
        text = _without_beginning(self._text, (THINK_END,))
        answer = parse_answer(text, thinking=self._thinking, tools=self._tools)
        if not self._tools or answer.tool_calls:
            return answer
        begin = answer.content.find(CALLS)
        if begin >= 0:
            # A call that may never end, and then is content.
            said = answer.content[:begin].removesuffix("\n").removesuffix("\n")
        else:
            said = _without_beginning(answer.content, _CALLS_BEGIN)
        return Answer(reasoning=answer.reasoning, content=said)


def _without_beginning(text: str, markers: tuple[str, ...]) -> str:
    """The text without an end that one of the markers may begin with."""
    longest = max(map(len, markers)) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(marker.startswith(text[-size:]) and len(marker) > size for marker in markers):
            return text[:-size]
    return text
