"""Answers taken apart as the official parser does it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode.core.text.answer import parse_answer
from specdecode.core.text.chat_encoding import ChatOptions, render
from specdecode.core.text.chat_tools import calls_block
from specdecode.core.text.conversation import Called, ToolCall, parse_messages, parse_tools
from specdecode.core.text.markers import THINK

# Neither text holds markup, nor begins or ends with what the parsers trim.
WORDS = st.from_regex(r"\A[a-zé👍][a-z é👍\n]{0,8}[a-zé👍]\Z")
VALUES = st.one_of(WORDS, st.integers(-9, 9), st.booleans(), st.none(), st.lists(st.integers(0, 3), max_size=2))
CALLS = st.lists(
    st.builds(
        lambda name, args: (name, json.dumps(args)),
        st.sampled_from("fg"),
        st.dictionaries(st.sampled_from(["city", "n_1"]), VALUES),
    ),
    max_size=3,
)


def official(text: str, *, thinking: bool, tools: bool) -> dict[str, object]:
    recipe = pytest.importorskip("deepseek_recipe")
    mode = {"thinking": {"type": "enabled" if thinking else "disabled"}}
    body = {"model": "DeepSeek-V4.1-Flash", "messages": [{"role": "user", "content": "x"}], **mode}
    if tools:
        body["tools"] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    request = recipe.ChatCompletionRequest(body).convert(recipe.ConversionOptions())
    generator = recipe.ChatCompletionRequest.chunk_generator(request, "id", "model")
    processor = recipe.StreamProcessor(generator, request.parsing_options)
    response = recipe.ChatCompletionResponse("id", "model", 0, 1, 0)
    usage = recipe.PromptUsage(prompt_tokens=1, prompt_cache_hit_tokens=0)
    finish = recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Stop)
    for piece in (recipe.InferenceChunk.ready(prompt_usage=usage), recipe.InferenceChunk.text(text, 1), finish):
        for chunk in processor.push(piece):
            response.accumulate(chunk)
    for chunk in processor.finish():
        response.accumulate(chunk)
    return json.loads(response.to_json())["choices"][0]["message"]


@settings(max_examples=100, deadline=None)
@given(reasoning=st.none() | WORDS | st.just(""), content=WORDS | st.just(""), calls=CALLS)
def test_answers_are_parsed_as_the_official_parser_does(reasoning, content, calls):
    made = [ToolCall(id=str(n), function=Called(name=f, arguments=a)) for n, (f, a) in enumerate(calls)]
    text = content + ("".join(calls_block(made)) if made else "")
    text = text if reasoning is None else f"{reasoning}</think>{text}"
    theirs = official(text, thinking=reasoning is not None, tools=bool(calls))
    ours = parse_answer(text, thinking=reasoning is not None, tools=bool(calls))
    assert (ours.reasoning, ours.content) == (theirs.get("reasoning_content"), theirs["content"])
    found = [call["function"] for call in theirs.get("tool_calls", [])]
    assert [(c.function.name, json.loads(c.function.arguments)) for c in ours.tool_calls] == [
        (f["name"], json.loads(f["arguments"])) for f in found
    ]


@settings(max_examples=60, deadline=None)
@given(reasoning=WORDS, content=WORDS, calls=CALLS)
def test_an_answer_goes_back_into_the_prompt_as_it_was(reasoning, content, calls):
    made = [ToolCall(id=str(n), function=Called(name=f, arguments=a)) for n, (f, a) in enumerate(calls)]
    text = f"{reasoning}</think>{content}" + ("".join(calls_block(made)) if made else "")
    answer = parse_answer(text, thinking=True, tools=True)
    tools = parse_tools([{"function": {"name": "f"}}])
    question = parse_messages([{"role": "user", "content": "q"}])
    prompt = "".join(render([*question, answer.message()], tools=tools, options=ChatOptions()))
    assert f"<｜Assistant｜>{THINK}{text}<｜end▁of▁sentence｜>" in prompt


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("\nR\n</think>\n\nC\n", "R", "C\n"),
        ("R only", "R only", ""),
        ("R</think>C</think>D", "R", "CD"),
        ("</think>", "", ""),
        ("R</think>C <｜DSM", "R", "C <｜DSM"),
    ],
)
def test_odd_answers(text, reasoning, content):
    answer = parse_answer(text, thinking=True, tools=True)
    theirs = official(text, thinking=True, tools=True)
    assert (answer.reasoning, answer.content) == (reasoning, content)
    assert (theirs["reasoning_content"], theirs["content"]) == (reasoning, content)


def test_a_call_without_an_end_stays_in_the_content():
    call = "".join(calls_block([ToolCall(id="1", function=Called(name="f", arguments='{"a": 1}'))]))
    answer = parse_answer("C" + call[:-5], thinking=False, tools=True)
    assert (answer.content, answer.tool_calls) == ("C" + call[:-5], ())


def test_a_call_ends_the_reasoning():
    call = "".join(calls_block([ToolCall(id="1", function=Called(name="f", arguments="{}"))]))
    answer = parse_answer("R" + call + "</think>C", thinking=True, tools=True)
    assert (answer.reasoning, answer.content, len(answer.tool_calls)) == ("R", "", 1)


def test_without_tools_their_markup_is_text():
    call = "".join(calls_block([ToolCall(id="1", function=Called(name="f", arguments="{}"))]))
    assert parse_answer(call, thinking=False, tools=False).content == call


def test_a_parameter_that_is_no_json_is_text():
    call = "".join(calls_block([ToolCall(id="1", function=Called(name="f", arguments='{"n": 3}'))]))
    [made] = parse_answer(call.replace(">3<", ">three<"), thinking=False, tools=True).tool_calls
    assert json.loads(made.function.arguments) == {"n": "three"}
