"""A streamed answer adds up to the whole one, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode.core.server.chat_stream import ChatStream
from specdecode.core.text.answer import parse_answer
from specdecode.core.text.markers import DSML, THINK_END

CALL = f'<{DSML} invoke name="f">\n<{DSML} parameter name="x" string="true">1</{DSML} parameter>\n</{DSML} invoke>\n'
PARTS = ["a", "\n", "\n\n", " ", THINK_END, THINK_END[:4], THINK_END[4:], f"<{DSML} calls>", f"</{DSML} calls>"]
PARTS += [f"<{DSML}", " calls>", f"<{DSML} calls>\n{CALL}</{DSML} calls>", "<"]
texts = st.lists(st.sampled_from(PARTS), max_size=12).map("".join)


def streamed(stream: ChatStream, text: str, cuts: list[int]) -> tuple[str, str, tuple]:
    deltas, start = [], 0
    for cut in [*sorted(cuts), len(text)]:
        cut = min(cut, len(text))
        deltas.append(stream.feed(text[start:cut]))
        start = cut
    deltas.append(stream.finish())
    calls = tuple(call for delta in deltas for call in delta.tool_calls)
    return "".join(d.reasoning for d in deltas), "".join(d.content for d in deltas), calls


def whole(text: str, thinking: bool, tools: bool) -> tuple[str, str, tuple]:
    answer = parse_answer(text, thinking=thinking, tools=tools)
    return answer.reasoning or "", answer.content, answer.tool_calls


@settings(max_examples=400, deadline=None)
@given(text=texts, cuts=st.lists(st.integers(0, 120), max_size=8), thinking=st.booleans(), tools=st.booleans())
def test_pieces_add_up(text, cuts, thinking, tools):
    stream = ChatStream(thinking=thinking, tools=tools)
    assert streamed(stream, text, cuts) == whole(text, thinking, tools)


class Hasty(ChatStream):
    """Holds nothing back."""

    def _certain(self):
        return parse_answer(self._text, thinking=self._thinking, tools=self._tools)


@pytest.mark.parametrize(
    ("text", "cut", "thinking"),
    [
        (f"a{THINK_END}b", 3, True),
        (f"a{THINK_END}b", 3, False),
        (f"a\n\n<{DSML} calls>\n{CALL}</{DSML} calls>", 7, False),
    ],
)
def test_a_hasty_stream_is_caught(text, cut, thinking):
    assert streamed(Hasty(thinking=thinking, tools=True), text, [cut]) != whole(text, thinking, True)
    assert streamed(ChatStream(thinking=thinking, tools=True), text, [cut]) == whole(text, thinking, True)


def test_what_is_certain_does_not_wait():
    stream = ChatStream(thinking=True, tools=True)
    assert stream.feed("why").reasoning == "why"
    assert stream.feed(f" so{THINK_END}the").content == "the"
    assert stream.feed("n").content == "n"
