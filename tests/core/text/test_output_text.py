"""Stop strings and characters, however the model cuts them into tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode.core.text.output_text import OutputText


class Chunks:
    """A tokenizer whose token n is the n-th of some byte strings."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    def token_bytes(self, token: int) -> bytes:
        return self._chunks[token]


def shown(chunks: list[bytes], stops: list[str], *, include: bool = False, watch_from: int = 0):
    """The pieces of a text, and the stop that ended it."""
    text, pieces = OutputText(Chunks(chunks), stops, include_stop=include), []
    for token in range(len(chunks)):
        piece, stop = text.feed(token, watch=token >= watch_from)
        pieces.append(piece)
        if stop is not None:
            return pieces, stop
    return [*pieces, text.finish()], None


def by_definition(data: bytes, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Byte by byte: the first byte at which a stop is complete, the longest stop there."""
    for end in range(1, len(data) + 1):
        complete = [stop for stop in stops if data[:end].endswith(stop.encode())]
        if complete:
            stop = max(complete, key=lambda s: len(s.encode()))
            return data[: end if include else end - len(stop.encode())].decode(errors="replace"), stop
    return data.decode(errors="replace"), None


@st.composite
def cut_texts(draw):
    """A text over few characters, cut anywhere, also inside a character."""
    data = draw(st.text("ab é👍\ufffd", max_size=12)).encode()
    data += draw(st.sampled_from([b"", b"", "👍".encode()[:3], b"\xff"]))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@settings(max_examples=400)
@given(
    chunks=cut_texts(),
    stops=st.lists(st.text("ab é👍", min_size=1, max_size=3), max_size=3),
    include=st.booleans(),
)
def test_the_text_is_that_of_the_definition(chunks, stops, include):
    pieces, stop = shown(chunks, stops, include=include)
    assert ("".join(pieces), stop) == by_definition(b"".join(chunks), stops, include)


class LooksAtEachTokenAlone(OutputText):
    """The mistake to catch: a stop is looked for in the newest token only."""

    def feed(self, token, *, watch=True):
        self._held = b""
        return super().feed(token, watch=watch)


def test_a_watch_without_memory_would_be_caught():
    text = LooksAtEachTokenAlone(Chunks([b"E", b"ND"]), ["END"])
    assert [text.feed(0)[1], text.feed(1)[1]] == [None, None]
    assert shown([b"E", b"ND"], ["END"])[1] == "END"


def test_what_may_become_a_stop_is_held_back_and_nothing_else():
    pieces, stop = shown([b"xE", b"N", b"x", b"yEN", b"D", b"never"], ["END"])
    assert (pieces, stop) == (["x", "", "ENx", "y", ""], "END")


def test_what_did_not_become_a_stop_comes_at_the_end():
    assert shown([b"xEN"], ["END"])[0] == ["x", "EN"]


def test_the_stop_that_is_complete_first_wins():
    assert shown([b"abc"], ["abc", "b"]) == (["a"], "b")
    assert shown([b"abc"], ["c", "bc"]) == (["a"], "bc")


@pytest.mark.parametrize(("watch_from", "text"), [(0, ""), (1, "END "), (2, "END END.")])
def test_a_stop_counts_from_the_wanted_token_on(watch_from, text):
    assert "".join(shown([b"END", b" END", b"."], ["END"], watch_from=watch_from)[0]) == text


def test_a_stop_token_is_shown_only_if_asked_for():
    for include, text in ((False, "a"), (True, "a.")):
        watched = OutputText(Chunks([b"a", b"."]), [], include_stop=include)
        assert watched.feed(0)[0] + watched.feed_stop(1) == text
