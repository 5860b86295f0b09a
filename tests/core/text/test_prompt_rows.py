"""Rows of prompt files in the six shapes of data sets and engines, and what is refused."""

from __future__ import annotations

import contextlib
import gzip
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode.core.errors import UsageError
from specdecode.core.text.conversation import Message
from specdecode.core.text.prompt import Prompt
from specdecode.core.text.prompt_rows import SHAPES
from specdecode.core.text.prompts import read_prompts

USER = Message(role="user", content="hi")


def read(*lines: object, packed: bool = False) -> list[Prompt]:
    """Read rows from standard input; what is no text is written as JSON."""
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    data = gzip.compress(text.encode()) if packed else text.encode()
    return read_prompts("-", io.BytesIO(data))


def conversation(**options) -> Prompt:
    return Prompt(**{"text": "hi", "origin": "stdin:1", "messages": (USER,), **options})


BATCH = {"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions"}
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        # HumanEval, and the custom formats of vLLM and TensorRT-LLM.
        ({"prompt": "a\nb"}, Prompt(text="a\nb", origin="stdin:1")),
        ({"task_id": 0, "prompt": "a"}, Prompt(text="a", origin="stdin:1", metadata={"task_id": 0})),
        ({"prompt": "a", "output_tokens": 10}, Prompt(text="a", origin="stdin:1", options={"max_tokens": 10})),
        ({"messages": MESSAGES}, conversation()),
        (
            {"messages": MESSAGES, "max_tokens": 8, "temp": 0, "seed": 3, "stop": "x", "source": "s"},
            conversation(
                options={"max_tokens": 8, "temperature": 0, "seed": 3, "stop": ("x",)}, metadata={"source": "s"}
            ),
        ),
        # MT-bench, Spec-Bench, DeepSpec.
        ({"turns": ["hi"]}, conversation()),
        (
            {"question_id": 81, "category": "writing", "turns": ["hi", "again"], "reference": ["r", "s"]},
            conversation(
                later=("again",), metadata={"question_id": 81, "category": "writing", "reference": ["r", "s"]}
            ),
        ),
        # ShareGPT, also as SGLang writes it: the prompt is what the human says first.
        (
            {
                "id": "c",
                "conversations": [
                    {"from": "gpt", "value": "x"},
                    {"from": "human", "value": "hi"},
                    {"from": "gpt", "value": "y"},
                    {"from": "human", "value": "z"},
                ],
            },
            conversation(metadata={"id": "c"}),
        ),
        (
            {"conversations": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]},
            conversation(messages=(Message(role="system", content="s"), USER)),
        ),
        (
            {**BATCH, "body": {"model": "m", "messages": MESSAGES, "max_completion_tokens": 9, "user": "u"}},
            conversation(custom_id="r-1", options={"max_tokens": 9}),
        ),
        (
            {**BATCH, "url": "/v1/completions", "body": {"model": "m", "prompt": "a", "n": 1, "min_p": 0.0}},
            Prompt(text="a", origin="stdin:1", custom_id="r-1", options={"n": 1, "min_p": 0.0}),
        ),
    ],
)
def test_shapes(row, prompt):
    assert read(row) == [prompt]
    assert read(row, packed=True) == [prompt]
    assert read(f"[{json.dumps(row)}]") == [prompt]


@pytest.mark.parametrize(
    ("options", "meaning"),
    [
        ({"max_new_tokens": 5}, {"max_tokens": 5}),
        ({"n_predict": 5, "max_tokens": 5}, {"max_tokens": 5}),
        ({"stop": ["a", "b"], "stop_token_ids": [1, 2]}, {"stop": ("a", "b"), "stop_token_ids": (1, 2)}),
        ({"stop": None, "seed": None}, {}),
        ({"ignore_eos": True, "min_tokens": 2}, {"ignore_eos": True, "min_tokens": 2}),
        ({"top_k": 40, "top_p": 0.9, "n": 3}, {"top_k": 40, "top_p": 0.9, "n": 3}),
        ({"top_k": -1, "top_p": 1}, {"top_k": 0, "top_p": 1}),
        ({"include_stop_str_in_output": True}, {"include_stop": True}),
        ({"reasoning_effort": "low"}, {"effort": 50}),
        ({"reasoning_effort": "none"}, {"thinking": False}),
        ({"thinking": {"type": "disabled"}}, {"thinking": False}),
        ({"chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": 7}}, {"thinking": True, "effort": 7}),
    ],
)
def test_options_under_the_names_of_peers(options, meaning):
    assert read({"messages": MESSAGES, **options})[0].options == meaning
    assert read({**BATCH, "body": {"messages": MESSAGES, **options}})[0].options == meaning


def test_tools():
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert [t.function.name for t in read({"messages": MESSAGES, "tools": tools})[0].tools] == ["f"]
    assert read({"messages": MESSAGES, "tools": tools, "tool_choice": "none"})[0].tools == ()


def test_rows_keep_their_lines_and_blank_ones_are_skipped():
    assert [p.origin for p in read("", {"prompt": "a"}, "  ", {"turns": ["b"]})] == ["stdin:2", "stdin:4"]
    assert [p.origin for p in read('[\n{"prompt": "a"},\n\n{"prompt":\n "b"}\n]')] == ["stdin:2", "stdin:4"]


def test_a_prompt_that_is_there_twice_is_two_prompts():
    assert len(read({"prompt": "a"}, {"prompt": "a"})) == 2


def test_the_name_decides_before_the_content(tmp_path):
    for name, count in (("p.txt", 2), ("p.jsonl", 1), ("p", 1)):
        file = tmp_path / name
        file.write_text('{"prompt":\r\n "a"}' if name == "p.txt" else '{"prompt": "a"}\n')
        assert len(read_prompts(str(file), io.BytesIO())) == count
    file = tmp_path / "p.json"
    file.write_text('{\n "prompt": "a"\n}')
    assert read_prompts(str(file), io.BytesIO()) == [Prompt(text="a", origin=f"{file}:1")]
    (tmp_path / "q.jsonl.gz").write_bytes(gzip.compress(b"no json"))
    with pytest.raises(UsageError, match=r"q\.jsonl\.gz:1: this line is no JSON"):
        read_prompts(str(tmp_path / "q.jsonl.gz"), io.BytesIO())


@pytest.mark.parametrize("text", ["{ int x; }", "[section]", "[1, 2]", "{% if x %}"])
def test_text_that_only_looks_like_json(text):
    assert read(text) == [Prompt(text=text, origin="stdin:1")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a"}, f"its keys are text. {SHAPES}"),
        ({}, f"its keys are none. {SHAPES}"),
        ({"prompt": "a", "turns": ["a"]}, f"it holds both prompt and turns. {SHAPES}"),
        ({"prompt": 5}, "prompt must be a text."),
        ({"turns": []}, "turns must be a list of texts, at least one."),
        ({"conversations": [{"from": "gpt", "value": "a"}]}, "conversations holds nothing that a human says."),
        ({"conversations": [5]}, "conversations.0 must hold from and value, or role and content, as texts."),
        ({"messages": []}, "messages is empty."),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content: input should be a valid string."),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages.0.content: content part 'image_url' is not supported, only text.",
        ),
        ({"messages": MESSAGES, "tool_choice": "required"}, "tool_choice 'required' is not supported; auto and none"),
        ({"prompt": "a", "max_token": 5}, "max_token is no option; did you mean max_tokens?"),
        ({"prompt": "a", "top-k": 3}, "top-k is no option; did you mean top_k?"),
        ({"prompt": "a", "topP": 0.3}, "topP is no option; did you mean top_p?"),
        ({"prompt": "a", "max_tokens": "5"}, "max_tokens is '5'; it must be a whole number."),
        ({"prompt": "a", "temperature": 10**400}, "temperature is 1000"),
        ({"prompt": "a", "max_tokens": True}, "max_tokens is True; it must be a whole number."),
        ({"prompt": "a", "max_tokens": 5, "n_predict": 6}, "n_predict 6 contradicts max_tokens 5."),
        ({"prompt": "a", "stop": ["x", ""]}, "stop is ['x', '']; it must be a text or a list of texts, none of"),
        ({"prompt": "a", "reasoning_effort": "huge"}, "reasoning_effort is 'huge'; use a number from 1 to 100, or "),
        ({"prompt": "\ud83d"}, "it holds half of a surrogate pair, which is no text."),
        ({"turns": ["\ud83d"]}, "it holds half of a surrogate pair, which is no text."),
        ({**BATCH, "body": {"messages": MESSAGES, "foo": 1}}, "foo is no option."),
        ({**BATCH, "body": {"messages": MESSAGES, "best_of": 2}}, "best_of 2 is not supported."),
        ({**BATCH, "body": {"messages": MESSAGES, "best_of": True}}, "best_of True is not supported."),
        ({"prompt": "a", "n": True}, "n is True; it must be a whole number."),
        ({"prompt": "a", "top_k": 2.5}, "top_k is 2.5; it must be a whole number."),
        ({"prompt": "a", "top_p": "0.9"}, "top_p is '0.9'; it must be a number."),
        ({**BATCH, "body": {"prompt": "a"}}, "body holds no messages, which /v1/chat/completions needs."),
        ({**BATCH, "url": "/v1/embeddings", "body": {"input": "a"}}, "url is '/v1/embeddings'; supported are "),
        ({**BATCH, "extra": 1, "body": {"messages": MESSAGES}}, "extra is no key of a batch request"),
        ({"body": {"messages": MESSAGES}}, "custom_id is missing or no text"),
        ('{"prompt": "a"', f"this line is no JSON: Expecting ',' delimiter at column 15. {SHAPES}"),
        ('{"prompt": "a", "prompt": "b"}', "this line is no JSON: the key 'prompt' is there twice."),
        ('{"prompt": "a", "temperature": NaN}', "this line is no JSON: NaN is no JSON."),
    ],
)
def test_what_is_refused_names_its_line(row, message):
    with pytest.raises(UsageError) as caught:
        read({"prompt": "fine"}, row)
    assert str(caught.value).startswith(f"stdin:2: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"prompt": "a"},\n5]', f"stdin:2: it is no JSON object. {SHAPES}"),
        ('[{"prompt": "a"},\n{"b"]', "stdin:2: item 1 of the array is no JSON: Expecting ':' delimiter at column 5."),
        ('[{"prompt": "a"}\n', "stdin:2: the array goes on with 'nothing' where , or ] belongs."),
        ('[{"prompt": "a"}] b', "stdin:1: the array goes on with ']' where , or ] belongs."),
    ],
)
def test_arrays_that_are_refused(text, message):
    with pytest.raises(UsageError) as caught:
        read(text)
    assert str(caught.value) == message


def test_two_answers_cannot_have_one_custom_id():
    row = {**BATCH, "body": {"messages": MESSAGES}}
    with pytest.raises(UsageError, match=r"^stdin:2: the custom_id 'r-1' is that of stdin:1, too"):
        read(row, row)


def test_a_damaged_gzip_file():
    with pytest.raises(UsageError, match=r"^stdin is a damaged gzip file: "):
        read_prompts("-", io.BytesIO(gzip.compress(b"text")[:-4]))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(["user", 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NAMES = [
    "prompt",
    "messages",
    "turns",
    "conversations",
    "body",
    "custom_id",
    "role",
    "content",
    "from",
    "value",
    "tools",
]
OPTIONS = ["stop", "max_tokens", "temperature", "seed", "thinking", "reasoning_effort", "n", "top_p", "logit_bias"]
OPTIONS += ["response_format", "guided_json", "structured_outputs", "thinking_budget"]


@settings(max_examples=100, deadline=None)
@given(row=st.dictionaries(st.sampled_from([*NAMES, *OPTIONS, "chat_template_kwargs"]), JSON, max_size=4))
def test_whatever_a_row_holds_it_is_a_prompt_or_refused_by_its_line(row):
    try:
        [prompt] = read(json.dumps(row))
    except UsageError as error:
        assert str(error).startswith("stdin:1: ")  # noqa: PT017
    else:
        assert isinstance(prompt.text, str)


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=40) | st.text('{}[]",: \n\\apromt', max_size=20).map(str.encode))
def test_whatever_a_file_holds_it_is_prompts_or_refused(data):
    for content in (data, gzip.compress(data), b'{"prompt": ' + data, b"[{" + data):
        with contextlib.suppress(UsageError):
            assert read_prompts("-", io.BytesIO(content))


def test_nesting_without_end():
    with pytest.raises(UsageError, match=r"^stdin:1: this line is no JSON: it is nested too deeply"):
        read('{"prompt": ' + "[" * 100_000)
