"""A conversation as the prompt that DeepSeek-V4.1 was trained on.

The released model has no chat template; its encoding is defined by the official encoder, of which this is our own
version, compared with it by a test. In short:

    BOS <｜System｜>Reasoning Effort: 75 (…)⏎⏎system <｜User｜>question <｜Assistant｜><think>

Without thinking the effort is left out and the prompt ends in `</think>`. The reasoning of earlier answers is left out
unless there are tools. A text of a conversation never becomes a marker, whatever it spells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from specdecode.core.errors import UsageError
from specdecode.core.text.chat_tools import calls_block, tools_block
from specdecode.core.text.conversation import Message, Tool
from specdecode.core.text.markers import ASSISTANT, BOS, EOS, REMINDER, SYSTEM, THINK, THINK_END, USER

EFFORTS = {"minimal": 50, "low": 50, "medium": 75, "high": 75, "xhigh": 75, "max": 100}
"""Names of efforts, as the official encoder maps them."""
DEFAULT_EFFORT = 75
_SYSTEM_ROLES = ("system", "developer")


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """How to ask.

    Attributes:
        thinking: whether the model reasons before it answers.
        effort: how thoroughly, 1 to 100; without thinking it has no meaning.
    """

    thinking: bool = True
    effort: int = DEFAULT_EFFORT


def parse_effort(value: object) -> int:
    """An effort by its name or number.

    Raises:
        UsageError: it is neither.
    """
    name = str(value)
    if name in EFFORTS:
        return EFFORTS[name]
    if name.isascii() and name.isdigit() and 1 <= int(name) <= 100 and not isinstance(value, bool):
        return int(name)
    raise UsageError(f"effort {name} is not possible: use a number from 1 to 100, or {', '.join(EFFORTS)}.")


def render(messages: Sequence[Message], *, tools: Sequence[Tool] = (), options: ChatOptions) -> list[str]:
    """The prompt for the next assistant message, in pieces; those that are a `Marker` are single tokens."""
    messages = [message for message in messages if message.content or message.role not in _SYSTEM_ROLES]
    head, rest = _head(messages)
    pieces: list[str] = [BOS]
    system = [options_line(options)] if options.thinking else []
    system += head
    if tools:
        system += tools_block(tools)
    if system:
        pieces += [SYSTEM, *system]
    keep = options.thinking and bool(tools)
    for _, group in groupby(enumerate(rest), key=lambda item: _turn(*item)):
        turn = [message for _, message in group]
        pieces += _user(turn, rest) if turn[0].role in ("user", "tool") else _single(turn[0], options, keep)
    if not (messages and messages[-1].prefix):
        pieces += [ASSISTANT, THINK if options.thinking else THINK_END]
    return [piece for piece in pieces if piece]


def options_line(options: ChatOptions) -> str:
    """The sentence that states the effort."""
    return (
        f"Reasoning Effort: {options.effort} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
    )


def _head(messages: Sequence[Message]) -> tuple[list[str], Sequence[Message]]:
    """A system message at the beginning, which effort and tools join, and the messages behind it."""
    if messages and messages[0].role in _SYSTEM_ROLES:
        return [messages[0].content], messages[1:]
    return [], messages


def _turn(number: int, message: Message) -> int:
    """Neighbours with the same key are one turn: users and tools speak together, of reminders the first counts."""
    return {"user": -1, "tool": -1, "latest_reminder": -2}.get(message.role, number)


def _user(turn: Sequence[Message], messages: Sequence[Message]) -> list[str]:
    """One user turn; results come in the order of the calls that they answer."""
    calls = [call.id for message in messages for call in message.tool_calls]
    place = {call: number for number, call in enumerate(calls)}
    results = sorted((m for m in turn if m.role == "tool"), key=lambda m: place.get(m.tool_call_id or "", len(calls)))
    ordered = iter(results)
    texts = [f"<tool_result>{next(ordered).content}</tool_result>" if m.role == "tool" else m.content for m in turn]
    return [USER, "\n\n".join(texts)]


def _single(message: Message, options: ChatOptions, keep: bool) -> list[str]:
    if message.role == "latest_reminder":
        return [REMINDER, message.content]
    if message.role != "assistant":
        return [SYSTEM, message.content]
    if options.thinking and (keep or message.prefix):
        # A prefix without an answer goes on reasoning.
        ended = bool(message.content) or not message.prefix
        thought: list[str] = [THINK, message.reasoning_content or "", *([THINK_END] if ended else [])]
    else:
        thought = [THINK_END]
    calls = calls_block(message.tool_calls) if message.tool_calls else []
    return [ASSISTANT, *thought, message.content, *calls, *([] if message.prefix else [EOS])]
