"""Our chat encoding is the official one, marker by marker, whatever the conversation."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specdecode.core.errors import UsageError
from specdecode.core.text.chat_encoding import ChatOptions, parse_effort, render
from specdecode.core.text.conversation import parse_messages, parse_tools
from specdecode.core.text.markers import Marker

TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.sampled_from(["", "a\n\nb", "<｜User｜>", "</think>", "｜DSML｜ calls", '{"a": 1}', "<tool_result>"]),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**6), 10**6), TEXTS),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["city", "n", "o"]), VALUES, max_size=3)
TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "Dé.", "parameters": {"type": "object"}}},
    {
        "type": "function",
        "function": {"name": "g", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    },
]


@st.composite
def conversations(draw):
    """Messages that the official converter takes."""
    messages = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(TEXTS)})
    for number in range(draw(st.integers(1, 4))):
        role = draw(st.sampled_from(["user", "user", "assistant", "calls", "system", "latest_reminder"]))
        if role == "calls":
            ids = [f"{number}.{place}" for place in range(draw(st.integers(1, 3)))]
            calls = [
                {"id": i, "type": "function", "function": {"name": "f", "arguments": json.dumps(draw(ARGUMENTS))}}
                for i in ids
            ]
            answer = {"role": "assistant", "content": draw(TEXTS), "tool_calls": calls}
            messages.append(answer | {"reasoning_content": draw(TEXTS)})
            messages += [
                {"role": "tool", "tool_call_id": i, "content": draw(TEXTS)} for i in draw(st.permutations(ids))
            ]
        elif role == "assistant":
            messages.append({"role": role, "content": draw(TEXTS), "reasoning_content": draw(TEXTS)})
        else:
            messages.append({"role": role, "content": draw(TEXTS)})
    if draw(st.integers(0, 4)) == 0:
        messages.append({"role": "assistant", "content": draw(TEXTS), "prefix": True, "reasoning_content": draw(TEXTS)})
    else:
        messages.append({"role": "user", "content": draw(TEXTS)})
    return messages


def official(messages, tools, *, thinking: bool, effort: str) -> list[str]:
    """The official prompt, its special tokens as markers."""
    recipe = pytest.importorskip("deepseek_recipe")
    mode = {"thinking": {"type": "enabled" if thinking else "disabled"}}
    body = {"model": "DeepSeek-V4.1-Flash", "messages": messages, "reasoning_effort": effort, **mode}
    request = recipe.ChatCompletionRequest(body | ({"tools": tools} if tools else {}))
    converted = request.convert(recipe.ConversionOptions())
    rendered = recipe.DeepseekV41Encoding().render_conversation(converted.conversation)
    pieces, place = [], 0
    for start, end in rendered.special_ranges:
        pieces += [rendered.prompt[place:start], Marker(rendered.prompt[start:end])]
        place = end
    return merged([*pieces, rendered.prompt[place:]])


def merged(pieces: list[str]) -> list[tuple[bool, str]]:
    """Neighbouring texts joined, so that only the markers divide."""
    result: list[tuple[bool, str]] = []
    for piece in pieces:
        marker = isinstance(piece, Marker)
        if result and not marker and not result[-1][0]:
            result[-1] = (False, result[-1][1] + piece)
        elif piece:
            result.append((marker, str(piece)))
    return result


@settings(max_examples=100, deadline=None)
@given(
    messages=conversations(),
    tools=st.sampled_from([[], TOOLS, TOOLS[:1]]),
    thinking=st.booleans(),
    effort=st.sampled_from(["low", "high", "max"]),
)
def test_the_encoding_is_the_official_one(messages, tools, thinking, effort):
    has_tools = tools or any("tool_calls" in message for message in messages)
    assume(not (has_tools and messages[-1]["role"] == "assistant"))  # the official converter refuses it
    options = ChatOptions(thinking=thinking, effort=parse_effort(effort))
    ours = render(parse_messages(messages), tools=parse_tools(tools), options=options)
    assert merged(ours) == official(messages, tools, thinking=thinking, effort=effort)


def test_content_parts_are_joined():
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    ours = render(parse_messages(messages), options=ChatOptions())
    assert merged(ours) == official(messages, [], thinking=True, effort="high")


def test_a_conversation_by_hand():
    messages = parse_messages(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": "2", "reasoning_content": "easy"},
            {"role": "user", "content": "2+2?"},
        ]
    )
    assert "".join(render(messages, options=ChatOptions(effort=33))) == (
        "<｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: 33 (range 1-100, the higher the value, the more thorough "
        "the reasoning)\n\nBe brief.<｜User｜>1+1?<｜Assistant｜></think>2<｜end▁of▁sentence｜><｜User｜>2+2?"
        "<｜Assistant｜><think>"
    )
    assert "".join(render(messages[1:2], options=ChatOptions(thinking=False))) == (
        "<｜begin▁of▁sentence｜><｜User｜>1+1?<｜Assistant｜></think>"
    )


@pytest.mark.parametrize(("value", "effort"), [("low", 50), ("high", 75), ("max", 100), (1, 1), ("100", 100)])
def test_efforts(value, effort):
    assert parse_effort(value) == effort


@pytest.mark.parametrize("value", ["", "0", "101", "-1", "extreme", "7.5", True, "²"])
def test_no_efforts(value):
    with pytest.raises(UsageError, match=r"use a number from 1 to 100, or minimal, low, "):
        parse_effort(value)
