"""What a benchmark runs: modes of decoding, and lists of sizes to sweep over."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from specdecode.core.device_names import DeviceNames
from specdecode.core.errors import UsageError

Width = int | Literal["auto", "default"]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Mode:
    """One way to decode.

    Attributes:
        method: dspark, eagle, ngram, none, or server where somebody else's process decodes.
        width: the most drafts a round; `auto` = as many as pay, `default` = what the server does unasked.
    """

    method: str
    width: Width

    @property
    def plain(self) -> bool:
        """Whether nobody drafts."""
        return self.width == 0

    @property
    def name(self) -> str:
        """What tables call it."""
        return "plain" if self.plain else f"{self.method} {self.width}"


PLAIN = Mode(method="none", width=0)


@dataclass(frozen=True, kw_only=True)
class Drafter:
    """A method that is asked for, with the most drafts of a round and whether its drafts have confidences."""

    method: str
    most: int
    confident: bool = True


def modes(drafters: Sequence[Drafter], widths: Sequence[Width]) -> tuple[list[Mode], list[str]]:
    """Plain decoding first, then each method at each width; and which pairs there are not, as lines for people.

    Args:
        widths: empty for the most that each method drafts.

    Raises:
        UsageError: a width that no method can draft.
    """
    found, left_out = [PLAIN], []
    for drafter in drafters:
        for width in widths or (drafter.most,):
            if width == 0:
                continue
            why = _unfit(drafter, width)
            if why is None:
                found.append(Mode(method=drafter.method, width=width))
            else:
                left_out.append(f"{drafter.method} {width} is left out: {why}")
    for width in widths:
        if drafters and width != 0 and not any(mode.width == width for mode in found):
            reasons = "; ".join(f"{drafter.method}: {_unfit(drafter, width)}" for drafter in drafters)
            raise UsageError(f"--draft-tokens {width} is not possible ({reasons}). Leave it out.")
    return found, left_out


def parse_widths(text: str) -> tuple[Width, ...]:
    """`0,3,auto` of --draft-tokens."""
    return parse_list("--draft-tokens", text, lambda item: "auto" if item == "auto" else _whole(item), "0,3,auto")


def parse_sizes(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers from 1 on, as `1,8`."""
    return parse_list(option, text, _positive, "1,8")


def parse_temperatures(text: str) -> tuple[float, ...]:
    """`0,1` of --temperature."""
    return parse_list("--temperature", text, float, "0,1")


def parse_devices(text: str) -> tuple[str, ...]:
    """`cpu,gpu:0` of --devices; a number behind a GPU is one more GPU of the same run: `gpu:0,1` is one item."""
    found: list[str] = []
    for item in re.findall(r"gpu:[0-9]+(?:,[0-9]+)+|[^,]*", text.replace(" ", "")):
        if not item:
            continue
        name = DeviceNames.parse(item).text
        if name in found:
            raise UsageError(f"--devices {text} names {name} twice. Leave one out.")
        found.append(name)
    if not found or re.search(r",\s*(,|$)|^\s*,", text):
        raise UsageError(f"--devices {text}: an empty item is not possible. Write a list as cpu,gpu:0.")
    return tuple(found)


def parse_list(option: str, text: str, value: Callable[[str], T], example: str) -> tuple[T, ...]:
    """Items between commas, each there once.

    Raises:
        UsageError: an item that `value` refuses, or one that is there twice.
    """
    found: list[T] = []
    for item in (part.strip() for part in text.split(",")):
        try:
            parsed = value(item) if item else None
        except ValueError:
            parsed = None
        if parsed is None:
            raise UsageError(f"{option} {text}: {item or 'an empty item'} is not possible. Write a list as {example}.")
        if parsed in found:
            raise UsageError(f"{option} {text} names {item} twice. Leave one out.")
        found.append(parsed)
    return tuple(found)


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """The items in turn, the first one changing from turn to turn."""
    place = turn % len(items)
    return [*items[place:], *items[:place]]


def groups(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Items that run together, in order."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def by_category(items: Sequence[T], category: Callable[[T], str]) -> Mapping[str, list[T]]:
    """Items by their categories, both in the order in which they first come."""
    found: dict[str, list[T]] = {}
    for item in items:
        found.setdefault(category(item), []).append(item)
    return found


def _unfit(drafter: Drafter, width: Width) -> str | None:
    if width == "auto":
        return None if drafter.confident else "it has no confidences to choose by"
    if isinstance(width, int) and width > drafter.most:
        return f"it drafts up to {drafter.most} tokens a round"
    return None


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def _positive(text: str) -> int:
    number = _whole(text)
    if number < 1:
        raise ValueError(text)
    return number
