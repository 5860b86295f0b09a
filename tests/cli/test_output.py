"""Order of texts, streaming, and what a terminal gets that a pipe does not."""

from __future__ import annotations

import io

import pytest

from specdecode.cli.ordered import OrderedTexts
from specdecode.cli.output import Output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Latin(io.StringIO):
    encoding = "latin-1"


def ordered(count: int, *, stream: bool) -> tuple[OrderedTexts, list[object]]:
    seen: list[object] = []
    return OrderedTexts(count, begin=seen.append, show=seen.append, stream=stream), seen


def test_streaming_passes_the_first_text_on_and_holds_the_others():
    texts, seen = ordered(3, stream=True)
    texts.add(1, "b1")
    texts.add(0, "a1")
    texts.add(0, "")
    texts.add(0, "a2")
    assert seen == [0, "a1", "a2"]
    texts.end(1)
    texts.add(2, "c1")
    texts.end(0)
    assert seen == [0, "a1", "a2", "\n", 1, "b1", "\n", 2, "c1"]
    texts.add(2, "c2")
    texts.end(2)
    assert seen[-2:] == ["c2", "\n"]


def test_without_streaming_texts_come_whole():
    texts, seen = ordered(2, stream=False)
    texts.add(0, "a1")
    texts.add(1, "b")
    texts.end(1)
    texts.add(0, "a2")
    assert seen == []
    texts.end(0)
    assert seen == [0, "a1a2", "\n", 1, "b", "\n"]


def test_an_empty_text_is_still_a_text():
    texts, seen = ordered(1, stream=False)
    texts.end(0)
    assert seen == [0, "\n"]


def test_a_dropped_text_shows_nothing_more():
    texts, seen = ordered(3, stream=True)
    texts.add(0, "a")
    texts.add(1, "b")
    texts.drop(1)
    texts.drop(0)
    texts.add(2, "c")
    texts.end(2)
    assert seen == [0, "a", "\n", 2, "c", "\n"]


def test_what_never_ended_is_passed_over_at_the_end():
    texts, seen = ordered(3, stream=False)
    texts.add(0, "a")
    texts.add(1, "b")
    texts.end(2)
    texts.end(1)
    texts.flush()
    assert seen == [1, "b", "\n", 2, "\n"]


def test_text_streams_on_a_terminal_only():
    assert Output(stdout=Terminal(), stderr=io.StringIO()).streams
    assert not Output(stdout=io.StringIO(), stderr=Terminal()).streams
    assert not Output(as_json=True, stdout=Terminal(), stderr=io.StringIO()).streams


def test_ticks_overwrite_a_terminal_line_that_is_cleared_before_anything_else():
    screen = Terminal()
    output = Output(stdout=io.StringIO(), stderr=screen)
    output.tick("compiling", 1.2)
    output.tick("compiling", 2.2)
    output.note("done")
    assert screen.getvalue() == "\r\x1b[Kcompiling … 1 s\r\x1b[Kcompiling … 2 s\r\x1b[Kdone\n"


def test_an_error_does_not_leave_a_progress_line_behind():
    screen = Terminal()
    with pytest.raises(ZeroDivisionError), Output(stdout=io.StringIO(), stderr=screen) as output:  # noqa: PT012
        output.tick("compiling", 1)
        _ = 1 / 0
    assert screen.getvalue().endswith("1 s\r\x1b[K")


def test_ticks_in_a_pipe_are_rare_and_plain():
    pipe = io.StringIO()
    output = Output(stdout=io.StringIO(), stderr=pipe)
    for second in range(1, 62):
        output.tick("compiling", second)
    assert pipe.getvalue() == "compiling … 1 s\ncompiling … 31 s\ncompiling … 61 s\n"


def test_quiet_keeps_errors():
    pipe = io.StringIO()
    output = Output(quiet=True, stdout=io.StringIO(), stderr=pipe)
    output.note("note")
    output.tick("tick", 1)
    output.error("error")
    assert pipe.getvalue() == "error\n"


def test_an_encoding_that_lacks_a_character_gets_a_question_mark():
    out = Latin()
    Output(stdout=out, stderr=io.StringIO()).text("é 👍")
    assert out.getvalue() == "é ?"
