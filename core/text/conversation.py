"""Messages and tools as the OpenAI API and its kin write them, checked by their JSON.

They are what a row of a prompt file holds and what `chat_encoding.py` renders.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

_CLOSED = ConfigDict(frozen=True, extra="forbid", strict=True)


def _joined(content: object) -> object:
    """Content parts as one text, as the official encoding joins them; images are not supported."""
    if not isinstance(content, list):
        return "" if content is None else content
    parts = []
    for part in content:
        if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
            kind = part.get("type") if isinstance(part, dict) else part
            raise ValueError(f"content part {kind!r} is not supported, only text")
        parts.append(part["text"])
    return "\n\n".join(parts)


def _no_parameters() -> dict[str, JsonValue]:
    return {"type": "object", "properties": {}}


class Function(BaseModel):
    """A function that the model may call; `parameters` is a JSON schema."""

    model_config = _CLOSED

    name: str = Field(pattern=r"^[a-zA-Z0-9_:.-]+$")
    description: str = ""
    parameters: dict[str, JsonValue] = Field(default_factory=_no_parameters)
    strict: bool | None = None


class Tool(BaseModel):
    """An entry of `tools`."""

    model_config = _CLOSED

    type: Literal["function"] = "function"
    function: Function


class Called(BaseModel):
    """What a call names: the function, and its arguments as JSON text."""

    model_config = _CLOSED

    name: str
    arguments: str


class ToolCall(BaseModel):
    """A call that an assistant message made."""

    model_config = _CLOSED

    id: str
    type: Literal["function"] = "function"
    function: Called


class Message(BaseModel):
    """One message.

    Attributes:
        content: its text; parts are joined by an empty line.
        reasoning_content: an assistant's reasoning before it; None = not given.
        tool_calls: what an assistant called.
        tool_call_id: the call that a tool message answers.
        prefix: a last assistant message that is to be continued rather than answered.
    """

    model_config = _CLOSED

    role: Literal["system", "developer", "user", "assistant", "tool", "latest_reminder"]
    content: Annotated[str, BeforeValidator(_joined)] = ""
    reasoning_content: str | None = None
    tool_calls: Annotated[tuple[ToolCall, ...], BeforeValidator(lambda v: tuple(v or ()))] = ()
    tool_call_id: str | None = None
    prefix: bool = False

    def as_json(self) -> dict[str, Any]:
        """The message as the API writes it, without what is not set."""
        content = self.model_dump(mode="json", exclude_none=True)
        return {key: value for key, value in content.items() if value or key == "content"}


class ConversationError(ValueError):
    """Messages or tools are not what they should be; the message names the place, as in `messages.0.role`."""


_MESSAGES = TypeAdapter(list[Message])
_TOOLS = TypeAdapter(list[Tool])


def parse_messages(value: object, place: str = "messages") -> tuple[Message, ...]:
    """Check a list of messages.

    Raises:
        ConversationError: it is none, is empty, a prefix is not last, or results do not answer the calls before them.
    """
    messages: tuple[Message, ...] = tuple(_checked(_MESSAGES, value, place))
    if not messages:
        raise ConversationError(f"{place} is empty")
    for number, message in enumerate(messages):
        last = number == len(messages) - 1
        if message.prefix and not (last and message.role == "assistant"):
            raise ConversationError(f"{place}.{number}.prefix belongs to a last assistant message only")
    _check_results(messages, place)
    return messages


def parse_tools(value: object, place: str = "tools") -> tuple[Tool, ...]:
    """Check a list of tools; None is none.

    Raises:
        ConversationError: it is none, or two have one name.
    """
    tools: tuple[Tool, ...] = tuple(_checked(_TOOLS, [] if value is None else value, place))
    names = [tool.function.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise ConversationError(f"{place} holds two functions {name!r}")
    return tools


def _check_results(messages: tuple[Message, ...], place: str) -> None:
    """Every call is answered by a tool message right behind it, in any order."""
    open_calls: list[str] = []
    for number, message in enumerate([*messages, None]):
        if message is not None and message.role == "tool":
            if message.tool_call_id not in open_calls:
                raise ConversationError(
                    f"{place}.{number}.tool_call_id {message.tool_call_id!r} is no open call of the assistant before"
                )
            open_calls.remove(message.tool_call_id)
            continue
        if open_calls:
            raise ConversationError(f"{place}.{number}: before it, no tool message answers the call {open_calls[0]!r}")
        open_calls = [call.id for call in message.tool_calls] if message is not None else []


def _checked(adapter: TypeAdapter[Any], value: object, place: str) -> Any:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join([place, *map(str, first["loc"])])
        raise ConversationError(f"{where}: {_words(first['msg'])}") from None


def _words(message: str) -> str:
    """Pydantic's message in our style: what follows a colon begins small."""
    message = message.removeprefix("Value error, ").replace("Extra inputs are not permitted", "unknown key")
    return message[:1].lower() + message[1:]
