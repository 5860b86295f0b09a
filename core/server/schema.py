"""Bodies of requests: types are checked here; what options mean together is said by `core/text/row_options.py`.

Other keys pass: they are further names of these options, say nothing, or are refused there by their names.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, WithJsonSchema

_OPEN = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, json_schema_extra={"additionalProperties": False})


def _whole(value: object) -> object:
    """JSON does not tell 3.0 from 3."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_WHOLE = BeforeValidator(_whole)
Natural = Annotated[int, Field(ge=0), _WHOLE]
Token = Annotated[int, Field(ge=0, lt=2**31), _WHOLE]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Texts = str | Annotated[list[str], Field(max_length=64)]


class StreamOptions(BaseModel):
    """How to stream.

    Attributes:
        include_usage: end with a chunk that holds the usage.
        include_trace: say of each token whether it was an accepted draft, a correction or a bonus.
    """

    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool | None = None
    include_trace: bool | None = None


class Sampling(BaseModel):
    """What both kinds of requests share.

    Attributes:
        model: the name of the served model, which may be left out.
        draft_tokens: the most drafts a round for this request; 0 turns speculation off. It never changes the answer.
        seed: key of the draws; without one the server draws it and says it in the answer.
    """

    model_config = _OPEN

    model: str | None = None
    max_tokens: Natural | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=128), _WHOLE] | None = None
    stop: Texts | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64), _WHOLE] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, JsonValue] | None = None
    top_k: Annotated[int, Field(ge=-1), _WHOLE] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.001, le=1000)] | None = None
    min_tokens: Natural | None = None
    stop_token_ids: list[Token] | None = None
    ignore_eos: bool | None = None
    guided_regex: Annotated[str, Field(min_length=1)] | None = None
    guided_grammar: Annotated[str, Field(min_length=1)] | None = None
    guided_choice: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | None = None
    user: str | None = None
    metadata: dict[str, JsonValue] | None = None
    draft_tokens: Natural | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class CompletionRequest(Sampling):
    """A body of /v1/completions: one or more texts, or token ids, to continue."""

    prompt: Annotated[
        str
        | Annotated[list[str], Field(min_length=1)]
        | Annotated[list[Token], Field(min_length=1)]
        | Annotated[list[Annotated[list[Token], Field(min_length=1)]], Field(min_length=1)],
        Field(description="A text, token ids, or a list of either."),
    ]
    logprobs: Annotated[int, Field(ge=0, le=20), _WHOLE] | None = None


_TEXT: dict[str, JsonValue] = {"type": "string", "description": "A list of text parts is taken, too."}
_CALL: dict[str, JsonValue] = {
    "type": "object",
    "required": ["id", "function"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string"},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name", "arguments"],
            "additionalProperties": False,
            "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}},
        },
    },
}
_SAID: dict[str, JsonValue] = {
    "type": "object",
    "required": ["role", "content"],
    "additionalProperties": False,
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant"]},
        "content": _TEXT,
        "reasoning_content": {"type": "string", "description": "Of an assistant."},
        "tool_calls": {"type": "array", "items": _CALL, "description": "Of an assistant; results follow."},
    },
}
_RESULT: dict[str, JsonValue] = {
    "type": "object",
    "required": ["role", "content", "tool_call_id"],
    "additionalProperties": False,
    "properties": {"role": {"const": "tool"}, "content": _TEXT, "tool_call_id": {"type": "string"}},
}


def _without_nulls(messages: object) -> object:
    """Clients send answers back with every field that they know of."""
    if not isinstance(messages, list):
        return messages
    return [{k: v for k, v in m.items() if v is not None} if isinstance(m, dict) else m for m in messages]


class ChatRequest(Sampling):
    """A body of /v1/chat/completions: a conversation to answer."""

    messages: Annotated[
        list[dict[str, JsonValue]],
        Field(min_length=1),
        BeforeValidator(_without_nulls),
        WithJsonSchema({"type": "array", "minItems": 1, "items": {"anyOf": [_SAID, _RESULT]}}),
    ]
    max_completion_tokens: Natural | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20), _WHOLE] | None = None
    tools: list[dict[str, JsonValue]] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    reasoning_effort: Effort | Annotated[int, Field(ge=1, le=100), _WHOLE] | None = None


def options(body: Sampling) -> dict[str, Any]:
    """What a body says, without what is null and without the model and how to stream."""
    said = body.model_dump(exclude_unset=True, exclude_none=True)
    return {key: value for key, value in said.items() if key not in ("model", "stream", "stream_options")}
