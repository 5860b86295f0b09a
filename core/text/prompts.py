"""Prompts from a text file, standard input or the command line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from specdecode.core.errors import UsageError
from specdecode.core.text.tokenizer import TextTokenizer


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt and where it came from, for messages.

    Attributes:
        text: the prompt as written, leading and trailing spaces included.
        origin: `FILE:LINE`, `stdin:LINE` or the option.
    """

    text: str
    origin: str


def read_prompts(source: str, stdin: BinaryIO) -> list[Prompt]:
    """Read a text file with one prompt a line, or standard input for `-`. Blank lines are skipped.

    Raises:
        UsageError: the file is missing or not UTF-8 text, or holds no prompt.
    """
    name = "stdin" if source == "-" else source
    try:
        raw = stdin.read() if source == "-" else Path(source).read_bytes()
        content = raw.decode("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"The prompt file {source} does not exist. For a prompt itself use -p TEXT.") from None
    except IsADirectoryError:
        raise UsageError(f"{source} is a folder, not a prompt file. A checkpoint goes to --model.") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}.") from None
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}.") from None
    prompts = list(_lines(content, name))
    if not prompts:
        raise UsageError(f"{name} holds no prompt: every line is blank. Write one prompt a line.")
    return prompts


def encode_prompt(prompt: Prompt, tokenizer: TextTokenizer) -> list[int]:
    """The ids of a prompt.

    Raises:
        UsageError: it asks for an image, or is no text.
    """
    if _has_surrogates(prompt.text):
        raise UsageError(f"{prompt.origin} is not UTF-8 text.")
    ids = tokenizer.encode(prompt.text)
    if tokenizer.find_image(ids):
        raise UsageError(
            f"{prompt.origin} contains an image placeholder (token {tokenizer.image}), and images are "
            "not supported. Remove it from the prompt."
        )
    return ids


def _has_surrogates(text: str) -> bool:
    """Whether bytes that are not UTF-8 hide in a text, as Python passes them on from a command line."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _lines(content: str, name: str) -> Iterable[Prompt]:
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            yield Prompt(text=line.removesuffix("\r"), origin=f"{name}:{number}")
