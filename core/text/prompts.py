"""Prompts from a file, standard input or the command line."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import BinaryIO

from specdecode.core.errors import UsageError
from specdecode.core.text.prompt import Prompt
from specdecode.core.text.prompt_rows import SHAPES, parse_row
from specdecode.core.text.row_options import RowError
from specdecode.core.text.tokenizer import TextTokenizer

_GZIP = b"\x1f\x8b"
_TEXT, _JSON = (".txt", ".text", ".md"), (".jsonl", ".ndjson", ".json")


def read_prompts(source: str, stdin: BinaryIO) -> list[Prompt]:
    """Read a prompt file, or standard input for `-`, gzipped or not.

    A file whose name says neither is JSON if it begins like an object or like an array of objects. Blank lines are
    skipped, and a prompt that is there twice is answered twice.

    Raises:
        UsageError: the file cannot be read, is not UTF-8 text or holds no prompt, or a row cannot be used.
    """
    name = "stdin" if source == "-" else source
    content = _content(source, name, stdin)
    prompts = list(_prompts(content, name))
    if not prompts:
        raise UsageError(f"{name} holds no prompt: every line is blank. Write one prompt a line.")
    first: dict[str, str] = {}
    for prompt in prompts:
        if prompt.custom_id is not None and first.setdefault(prompt.custom_id, prompt.origin) != prompt.origin:
            raise UsageError(
                f"{prompt.origin}: the custom_id {prompt.custom_id!r} is that of {first[prompt.custom_id]}, too. "
                "Answers of a batch are told apart by it."
            )
    return prompts


def encode_prompt(prompt: Prompt, tokenizer: TextTokenizer) -> list[int]:
    """The ids of a prompt's text as it stands.

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


def _content(source: str, name: str, stdin: BinaryIO) -> str:
    try:
        raw = stdin.read() if source == "-" else Path(source).read_bytes()
        return (gzip.decompress(raw) if raw.startswith(_GZIP) else raw).decode("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"The prompt file {source} does not exist. For a prompt itself use -p TEXT.") from None
    except IsADirectoryError:
        raise UsageError(f"{source} is a folder, not a prompt file. A checkpoint goes to --model.") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{name} is a damaged gzip file: {error}. Make it again.") from None
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}.") from None


def _prompts(content: str, name: str) -> Iterable[Prompt]:
    suffix = PurePath(name.lower().removesuffix(".gz")).suffix
    if suffix not in _TEXT and re.match(r"\s*\[\s*\{", content):
        return _rows(_array(content, name))
    if suffix == ".json" and (whole := _whole_object(content)):
        return _rows([(f"{name}:1", whole)])
    if suffix in _JSON or (suffix not in _TEXT and re.match(r'\s*\{\s*["}]', content)):
        return _rows(_objects(content, name))
    return (Prompt(text=line.removesuffix("\r"), origin=origin) for origin, line in _lines(content, name))


def _rows(rows: Iterable[tuple[str, object]]) -> Iterator[Prompt]:
    for origin, row in rows:
        try:
            if _has_surrogates(json.dumps(row, ensure_ascii=False)):
                raise RowError("it holds half of a surrogate pair, which is no text")
            yield parse_row(row, origin)
        except RowError as error:
            raise UsageError(f"{origin}: {error}{'' if str(error)[-1] in '.?' else '.'}") from None


def _objects(content: str, name: str) -> Iterator[tuple[str, object]]:
    for origin, line in _lines(content, name):
        try:
            yield origin, _decode(line.strip())
        except ValueError as error:
            shapes = f" {SHAPES}" if isinstance(error, json.JSONDecodeError) else ""
            raise UsageError(f"{origin}: this line is no JSON: {_reason(error)}.{shapes}") from None


def _array(content: str, name: str) -> Iterator[tuple[str, object]]:
    """The items of one array; each is named by the line that it begins in."""
    place, item, line, counted = content.index("[") + 1, 0, 1, 0
    while True:
        place = _skip(content, place)
        line, counted = line + content.count("\n", counted, place), place
        try:
            row, place = _decode_at(content, place)
        except ValueError as error:
            raise UsageError(f"{name}:{line}: item {item} of the array is no JSON: {_reason(error)}.") from None
        yield f"{name}:{line}", row
        place, item = _skip(content, place), item + 1
        mark = content[place : place + 1]
        if mark == "]" and not content[place + 1 :].strip():
            return
        if mark != ",":
            line = content.count("\n", 0, place) + 1
            raise UsageError(f"{name}:{line}: the array goes on with {mark or 'nothing'!r} where , or ] belongs.")
        place += 1


def _whole_object(content: str) -> object:
    try:
        return _decode(content.strip())
    except ValueError:
        return None


def _decode(text: str) -> object:
    value, end = _decode_at(text, 0)
    if end < len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return value


def _decode_at(text: str, place: int) -> tuple[object, int]:
    try:
        return _DECODER.raw_decode(text, place)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _reason(error: ValueError) -> str:
    return f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)


def _skip(content: str, place: int) -> int:
    while content[place : place + 1].isspace():
        place += 1
    return place


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in row if names.count(key) > 1)!r} is there twice")
    return row


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def _has_surrogates(text: str) -> bool:
    """Whether bytes that are not UTF-8 hide in a text, as Python passes them on from a command line."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _lines(content: str, name: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            yield f"{name}:{number}", line
