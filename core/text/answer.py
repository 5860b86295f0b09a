"""A generated text, taken apart into reasoning, content and tool calls."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from specdecode.core.text.conversation import Called, Message, ToolCall
from specdecode.core.text.markers import DSML, THINK_END

CALLS, CALLS_END = f"<{DSML} calls>", f"</{DSML} calls>"
_INVOKE = re.compile(rf'<{DSML} invoke name="(.*?)">\n(.*?)</{DSML} invoke>', flags=re.DOTALL)
_PARAMETER = re.compile(
    rf'<{DSML} parameter name="(.*?)" string="(true|false)">(.*?)</{DSML} parameter>', flags=re.DOTALL
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What an assistant said.

    Attributes:
        reasoning: what it thought before; None in chat mode.
        content: what it said; an unfinished call stays here as it was written.
        tool_calls: its complete calls; their ids are numbers within the answer.
    """

    reasoning: str | None
    content: str
    tool_calls: tuple[ToolCall, ...] = ()

    def message(self) -> Message:
        """The answer as a message of the conversation that goes on."""
        return Message(
            role="assistant", content=self.content, reasoning_content=self.reasoning, tool_calls=self.tool_calls
        )


def parse_answer(text: str, *, thinking: bool, tools: bool) -> Answer:
    """Take an answer apart.

    Args:
        text: what was generated after the prompt's `<think>` or `</think>`.
        thinking: whether the prompt ended in `<think>`.
        tools: whether the prompt spoke of tools; without them DSML is ordinary text.
    """
    reasoning, said = (None, text) if not thinking else _thought(text, tools)
    said = said.replace(THINK_END, "")
    begin = said.find(CALLS) if tools else -1
    end = said.find(CALLS_END, begin)
    if begin < 0 or end < 0:
        return Answer(reasoning=reasoning, content=said)
    calls = tuple(_call(n, *found) for n, found in enumerate(_INVOKE.findall(said[begin:end])))
    content = said[:begin].removesuffix("\n\n")
    return Answer(reasoning=reasoning, content=content, tool_calls=calls)


def _thought(text: str, tools: bool) -> tuple[str, str]:
    """Reasoning and the rest; a call ends the reasoning, too."""
    end = text.find(THINK_END)
    call = text.find(CALLS) if tools else -1
    if call >= 0 and (end < 0 or call < end):
        return text[:call].strip("\n"), text[call:]
    reasoning, _, rest = text.partition(THINK_END)
    return reasoning.strip("\n"), rest.lstrip("\n")


def _call(number: int, name: str, body: str) -> ToolCall:
    pairs = [f"{json.dumps(key, ensure_ascii=False)}: {_value(value, kind)}" for key, kind, value in _found(body)]
    return ToolCall(id=f"call_{number}", function=Called(name=name, arguments="{" + ", ".join(pairs) + "}"))


def _found(body: str) -> list[tuple[str, str, str]]:
    return _PARAMETER.findall(body)


def _value(text: str, is_text: str) -> str:
    """A parameter as JSON; one that claims to be JSON and is not is passed on as text."""
    if is_text == "false":
        try:
            json.loads(text)
        except ValueError:
            pass
        else:
            return text
    return json.dumps(text, ensure_ascii=False)
