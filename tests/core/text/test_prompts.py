"""Prompt files, standard input, and what is refused."""

from __future__ import annotations

import io

import pytest

from specdecode.core.errors import UsageError
from specdecode.core.text.prompt import Prompt
from specdecode.core.text.prompts import encode_prompt, read_prompts
from specdecode.core.text.tokenizer import TextTokenizer
from tests.support.byte_tokenizer import BOS, EOS, IMAGE, write_tokenizer

NO_STDIN = io.BytesIO()


def test_one_prompt_a_line_with_its_number(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufefffirst\r\n\n   \n  indented \u2028 same line \nlast".encode())
    assert read_prompts(str(file), NO_STDIN) == [
        Prompt(text="first", origin=f"{file}:1"),
        Prompt(text="  indented \u2028 same line ", origin=f"{file}:4"),
        Prompt(text="last", origin=f"{file}:5"),
    ]


def test_a_dash_reads_standard_input():
    assert read_prompts("-", io.BytesIO(b"a\n\nb\n")) == [
        Prompt(text="a", origin="stdin:1"),
        Prompt(text="b", origin="stdin:3"),
    ]


def test_a_missing_file(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        read_prompts(str(tmp_path / "none.txt"), NO_STDIN)


def test_a_folder(tmp_path):
    with pytest.raises(UsageError, match="is a folder"):
        read_prompts(str(tmp_path), NO_STDIN)


def test_not_utf8(tmp_path):
    (tmp_path / "p").write_bytes(b"ok\n\xff\n")
    with pytest.raises(UsageError, match="is not UTF-8 text: invalid start byte at byte 3"):
        read_prompts(str(tmp_path / "p"), NO_STDIN)


def test_nothing_but_blank_lines():
    with pytest.raises(UsageError, match="stdin holds no prompt"):
        read_prompts("-", io.BytesIO(b"\n \n"))


@pytest.fixture
def tokenizer(tmp_path):
    write_tokenizer(tmp_path)
    return TextTokenizer.open(tmp_path, bos=BOS, eos=EOS, image=IMAGE, vocab_size=266)


def test_bytes_from_the_command_line_that_are_no_text(tokenizer):
    with pytest.raises(UsageError, match=r"^-p is not UTF-8 text"):
        encode_prompt(Prompt(text="a\udcff", origin="-p"), tokenizer)


def test_an_image_is_refused_with_its_place(tokenizer):
    with pytest.raises(UsageError, match=r"^p\.txt:3 contains an image placeholder \(token 264\)"):
        encode_prompt(Prompt(text="what is <|image|>?", origin="p.txt:3"), tokenizer)
