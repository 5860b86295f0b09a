"""Grammars of rows, under the names that engines use."""

from __future__ import annotations

import json

import pytest

from specdecode.core.errors import UsageError
from specdecode.core.text.grammar import Grammar
from tests.core.text.test_prompt_rows import BATCH, MESSAGES, read

SCHEMA = {"type": "object", "properties": {"é": {"type": "integer"}}}
WANTED = Grammar(kind="json_schema", text='{"type": "object", "properties": {"é": {"type": "integer"}}}')
OBJECT, REGEX = Grammar(kind="json_object"), Grammar(kind="regex", text="a+")
LARK, CHOICE = Grammar(kind="lark", text='start: "a"'), Grammar(kind="lark", text='start: "a" | "b\\"|"')
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}


@pytest.mark.parametrize(
    ("row", "grammar"),
    [
        ({"response_format": FORMAT}, WANTED),
        ({"response_format": {"type": "json_object"}}, OBJECT),
        ({"guided_json": SCHEMA}, WANTED),
        ({"guided_json": json.dumps(SCHEMA)}, WANTED),
        ({"guided_json_object": True}, OBJECT),
        ({"guided_regex": "a+"}, REGEX),
        ({"guided_grammar": 'start: "a"'}, LARK),
        ({"guided_choice": ["a", 'b"|']}, CHOICE),
        ({"structured_outputs": {"json": SCHEMA}}, WANTED),
        ({"structured_outputs": {"regex": "a+", "json": None}}, REGEX),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, LARK),
        ({"structured_outputs": {"choice": ["a", 'b"|']}}, CHOICE),
        ({"structured_outputs": {"json_object": True}, "response_format": {"type": "json_object"}}, OBJECT),
        ({"guided_regex": "a+", "response_format": {"type": "text"}}, REGEX),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "guided_json": None}, None),
        ({"guided_json_object": False}, None),
    ],
)
def test_all_names_of_a_grammar(row, grammar):
    expected = {} if grammar is None else {"grammar": grammar}
    for shape in ({"prompt": "a", **row}, {**BATCH, "body": {"messages": MESSAGES, **row}}):
        [prompt] = read(shape)
        assert prompt.options == expected
        assert prompt.metadata == {}


def test_a_thinking_budget():
    [prompt] = read({"prompt": "a", "thinking_budget": 9, "thinking_token_budget": 9})
    assert prompt.options == {"thinking_budget": 9}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"response_format": "json"}, 'its type must be "text", "json_object" or "json_schema"'),
        ({"response_format": {"type": "xml"}}, 'its type must be "text", "json_object" or "json_schema"'),
        (
            {"response_format": {"type": "json_schema", "schema": {}}},
            "json_schema must be an object that holds the schema as an object",
        ),
        ({"guided_json": [1]}, "guided_json is [1]; it must be a JSON object"),
        ({"guided_json": "{"}, "guided_json is '{'; it is no JSON: Expecting property name"),
        ({"guided_json": "[" * 100_000}, "; it is no JSON: "),
        ({"guided_regex": ""}, "guided_regex is ''; it must be a text, and not empty"),
        ({"guided_choice": []}, "guided_choice is []; it must be a list of texts, none of them empty"),
        ({"guided_choice": [""]}, "it must be a list of texts, none of them empty"),
        ({"guided_json_object": 1}, "it must be true or false"),
        ({"structured_outputs": {}}, "it must hold one of json, json_object, regex, grammar, choice"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "it must hold one of json"),
        (
            {"guided_regex": "a", "guided_json": SCHEMA},
            "guided_regex contradicts guided_json: an answer has one grammar",
        ),
        ({"thinking_budget": 1.5}, "thinking_budget is 1.5; it must be a whole number"),
        ({"regex": ""}, "regex is ''; it must be a text, and not empty"),
        ({"acceptance": "block"}, "acceptance is an option of the command line, not of a row"),
        ({"draft_tokens": 3}, "draft_tokens is an option of the command line, not of a row"),
        ({"best_of": 2}, "best_of 2 is not supported"),
        ({"thinking": False, "thinking_budget": 3}, "thinking_budget contradicts thinking, which is off"),
        ({"logit_bias": {"5": 1, "05": 2}}, "it names a token twice"),
        ({"temperature": 1e308}, "it must be a number that is not so large"),
        ({"response_fromat": FORMAT}, "response_fromat is no option; did you mean response_format?"),
    ],
)
def test_what_is_refused(row, message):
    with pytest.raises(UsageError) as caught:
        read({"prompt": "a", **row})
    assert str(caught.value).startswith("stdin:1: ")
    assert message in str(caught.value)
