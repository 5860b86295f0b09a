"""Pieces of a prompt that are single tokens of the vocabulary, such as those that begin a user's turn."""

from __future__ import annotations


class Marker(str):
    """One token of the vocabulary, unlike the same characters in somebody's text."""

    __slots__ = ()


BOS, EOS = Marker("<｜begin▁of▁sentence｜>"), Marker("<｜end▁of▁sentence｜>")
SYSTEM, USER, ASSISTANT = Marker("<｜System｜>"), Marker("<｜User｜>"), Marker("<｜Assistant｜>")
REMINDER = Marker("<｜latest_reminder｜>")
THINK, THINK_END, DSML = Marker("<think>"), Marker("</think>"), Marker("｜DSML｜")
