"""A row of a prompt file, in any of the shapes that data sets and engines use, as a prompt."""

from __future__ import annotations

from collections.abc import Mapping

from specdecode.core.text.conversation import ConversationError, Message, Tool, parse_messages, parse_tools
from specdecode.core.text.prompt import Prompt
from specdecode.core.text.row_options import RowError, take_options

SHAPES = (
    "Accepted are text, one prompt a line, and JSON objects, one a line or in one array: "
    '{"prompt": "…"}, {"messages": […]}, {"turns": ["…", …]}, {"conversations": […]} and '
    '{"custom_id": "…", "body": {"messages": […]}}.'
)
_KEYS = ("prompt", "messages", "turns", "conversations", "body")
_HUMANS, _SYSTEMS = ("human", "user"), ("system",)


def parse_row(row: object, origin: str) -> Prompt:
    """A row as a prompt.

    Raises:
        RowError: it has none of the shapes, or something in it is not possible.
    """
    if not isinstance(row, dict):
        raise RowError(f"it is no JSON object. {SHAPES}")
    found = [key for key in _KEYS if key in row]
    if len(found) != 1:
        what = f"it holds both {found[0]} and {found[1]}" if found else f"its keys are {', '.join(row) or 'none'}"
        raise RowError(f"{what}. {SHAPES}")
    try:
        return _body(row, origin) if found[0] == "body" else _request(row, found[0], origin, closed=False)
    except ConversationError as error:
        raise RowError(str(error)) from None


def _body(row: Mapping[str, object], origin: str) -> Prompt:
    """A request of an OpenAI batch."""
    body, custom_id = row["body"], row.get("custom_id")
    unknown = row.keys() - {"custom_id", "method", "url", "body"}
    if unknown:
        raise RowError(f"{min(unknown)} is no key of a batch request: custom_id, method, url and body are")
    if not isinstance(custom_id, str) or not custom_id:
        raise RowError("custom_id is missing or no text; answers of a batch are told apart by it")
    if row.get("method", "POST") != "POST":
        raise RowError(f"method is {row['method']!r}; only POST is possible")
    url = row.get("url", "/v1/chat/completions")
    key = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}.get(str(url))
    if key is None:
        raise RowError(f"url is {url!r}; supported are /v1/chat/completions and /v1/completions")
    if not isinstance(body, dict) or key not in body:
        raise RowError(f"body holds no {key}, which {url} needs")
    return _request(body, key, origin, closed=True, custom_id=custom_id)


def _request(row: Mapping[str, object], key: str, origin: str, *, closed: bool, custom_id: str | None = None) -> Prompt:
    shape = {key, "tools", "tool_choice"} if key == "messages" else {key}
    options, rest = take_options({k: v for k, v in row.items() if k not in shape}, closed=closed)
    text, messages, later = _said(row[key], key)
    tools = _tools(row) if key == "messages" else ()
    return Prompt(
        text=text,
        origin=origin,
        messages=messages,
        later=later,
        tools=tools,
        options=options,
        custom_id=custom_id,
        metadata=rest,
    )


def _said(value: object, key: str) -> tuple[str, tuple[Message, ...], tuple[str, ...]]:
    """The text to show, the conversation so far, and what the user will say later."""
    if key == "prompt":
        if not isinstance(value, str):
            raise RowError("prompt must be a text")
        return value, (), ()
    if key == "messages":
        messages = parse_messages(value)
        return messages[-1].content, messages, ()
    if key == "turns":
        if not isinstance(value, list) or not value or not all(isinstance(turn, str) for turn in value):
            raise RowError("turns must be a list of texts, at least one")
        return value[0], (Message(role="user", content=value[0]),), tuple(value[1:])
    question = _question(value)
    return question[-1].content, question, ()


def _question(value: object) -> tuple[Message, ...]:
    """A recorded conversation up to the first thing that a human says; the recorded answers are not used."""
    messages = []
    for number, entry in enumerate(value if isinstance(value, list) else []):
        speaker = entry.get("from", entry.get("role")) if isinstance(entry, dict) else None
        text = entry.get("value", entry.get("content")) if isinstance(entry, dict) else None
        if not isinstance(speaker, str) or not isinstance(text, str):
            raise RowError(f"conversations.{number} must hold from and value, or role and content, as texts")
        if speaker in _SYSTEMS:
            messages.append(Message(role="system", content=text))
        elif speaker in _HUMANS:
            return (*messages, Message(role="user", content=text))
    raise RowError("conversations holds nothing that a human says")


def _tools(row: Mapping[str, object]) -> tuple[Tool, ...]:
    tools, choice = parse_tools(row.get("tools")), row.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise RowError(f"tool_choice {choice!r} is not supported; auto and none are")
    return () if choice == "none" else tools
