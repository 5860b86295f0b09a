"""Tool calls: asked for, streamed, answered, through the official client."""

from __future__ import annotations

import json

import openai
import pytest

from specdecode.core.text.markers import DSML, THINK, THINK_END
from tests.support.live import Live
from tests.support.reciting import Recital, chat_tokenizer
from tests.support.replies import write_chat_folder
from tests.support.toy import ToyModel

CALLED = (
    f'I look.\n\n<{DSML} calls>\n<{DSML} invoke name="weather">\n'
    f'<{DSML} parameter name="city" string="true">Paris</{DSML} parameter>\n'
    f'<{DSML} parameter name="days" string="false">3</{DSML} parameter>\n'
    f"</{DSML} invoke>\n</{DSML} calls>"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Of a city.",
            "parameters": {"type": "object", "properties": {}},
        },
    }
]
ASKED = {"model": "demo", "messages": [{"role": "user", "content": "Rain?"}], "max_tokens": 400, "tools": TOOLS}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return chat_tokenizer(write_chat_folder(tmp_path_factory.mktemp("chat")))


def serve(tokenizer, text: str, opener=THINK_END) -> Live:
    return Live(
        model=ToyModel(Recital(text, opener), block_size=3, max_length=4096, num_pages=4200), tokenizer=tokenizer
    )


def test_a_call_and_its_result(tokenizer):
    with serve(tokenizer, CALLED) as live:
        made = live.client.chat.completions.create(**ASKED, reasoning_effort="none")
        [choice] = made.choices
        [call] = choice.message.tool_calls
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
        assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Paris", "days": 3})
        # The answer goes back as the client holds it, nulls included.
        messages = [*ASKED["messages"], choice.message.model_dump()]
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "sun"})
        again = live.client.chat.completions.create(**{**ASKED, "messages": messages}, reasoning_effort="none")
        assert again.usage.prompt_tokens > made.usage.prompt_tokens


def test_a_streamed_call(tokenizer):
    with serve(tokenizer, CALLED) as live:
        chunks = list(live.client.chat.completions.create(**ASKED, reasoning_effort="none", stream=True))
    deltas = [c.delta for chunk in chunks for c in chunk.choices]
    assert "".join(d.content or "" for d in deltas) == "I look."
    [call] = [call for d in deltas for call in d.tool_calls or []]
    assert (call.index, call.function.name) == (0, "weather")
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_reasoning_is_apart(tokenizer):
    with serve(tokenizer, f"hm{THINK_END}yes", THINK) as live:
        asked = {**ASKED, "tools": openai.omit}
        made = live.client.chat.completions.create(**asked)
        assert (made.choices[0].message.reasoning_content, made.choices[0].message.content) == ("hm", "yes")
        assert made.usage.completion_tokens_details.reasoning_tokens == 2


def test_tools_that_are_not_to_be_called(tokenizer):
    with serve(tokenizer, CALLED) as live:
        made = live.client.chat.completions.create(**ASKED, reasoning_effort="none", tool_choice="none")
        assert made.choices[0].message.tool_calls is None
        assert made.choices[0].finish_reason == "stop"
        with pytest.raises(openai.BadRequestError, match="tool_choice"):
            live.client.chat.completions.create(**ASKED, tool_choice="required")
