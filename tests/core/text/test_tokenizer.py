"""Ids, bytes and text, one way and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdecode.core.errors import TokenizerError
from specdecode.core.text.detokenizer import IncrementalDetokenizer
from specdecode.core.text.markers import USER, Marker
from specdecode.core.text.tokenizer import TextTokenizer
from tests.support.byte_tokenizer import BOS, EOS, IMAGE, byte_id, write_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return open_in(folder)


def open_in(folder, **changes) -> TextTokenizer:
    return TextTokenizer.open(folder, **{"bos": BOS, "eos": EOS, "image": IMAGE, "vocab_size": 266, **changes})


def stream(tokenizer, blocks) -> str:
    detokenizer = IncrementalDetokenizer(tokenizer)
    return "".join([*(detokenizer.feed(block) for block in blocks), detokenizer.finish()])


def test_a_text_begins_with_one_bos(tokenizer):
    assert tokenizer.encode("the")[0] == BOS
    assert tokenizer.encode("<|begin|>the") == tokenizer.encode("the")


def test_markers_are_tokens_and_texts_never_are(tokenizer):
    ids = tokenizer.encode_pieces([Marker("<|begin|>"), "a<think>", "<|end|>", Marker("<think>")])
    assert (ids[0], ids[-1]) == (BOS, 265)
    assert tokenizer.decode(ids[1:-1]) == "a<think><|end|>"
    assert not {BOS, EOS, 265} & set(ids[1:-1])


def test_neighbouring_texts_are_encoded_together(tokenizer):
    assert tokenizer.encode_pieces(["t", "he"]) == tokenizer.encode("the")[1:]


def test_a_tokenizer_without_a_marker(tokenizer):
    with pytest.raises(TokenizerError, match=r"has no token <｜User｜>.*Use --raw"):
        tokenizer.encode_pieces([USER])


@given(text=st.text(st.characters(codec="utf-8")))
def test_decoding_gives_back_the_text(tokenizer, text):
    if not any(marker in text for marker in ("<|", "<think>")):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@given(ids=st.lists(st.integers(0, 265)))
def test_decoding_is_the_librarys(tokenizer, ids):
    assert tokenizer.decode(ids) == tokenizer.backend.decode(ids, skip_special_tokens=True)


def test_the_backend_alphabet_is_ours(tokenizer):
    assert tokenizer.decode([byte_id(byte) for byte in b"A\n\xc3\xa9"]) == "A\né"


@given(blocks=st.lists(st.lists(st.integers(0, 265), max_size=6)))
def test_streaming_equals_one_shot(tokenizer, blocks):
    assert stream(tokenizer, blocks) == tokenizer.decode([token for block in blocks for token in block])


def test_a_character_is_held_back_until_it_is_whole(tokenizer):
    ids = [byte_id(byte) for byte in "👍".encode()]
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert [detokenizer.feed([token]) for token in ids] == ["", "", "", "👍"]
    assert detokenizer.finish() == ""


def test_a_cut_character_is_flushed_once(tokenizer):
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert detokenizer.feed([byte_id(byte) for byte in "ok👍".encode()[:-1]]) == "ok"
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


def test_a_genuine_replacement_character_is_text(tokenizer):
    assert stream(tokenizer, [[byte_id(b)] for b in "a\ufffdb".encode()]) == "a\ufffdb"


def test_invalid_bytes_show_at_once(tokenizer):
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert detokenizer.feed([byte_id(0xFF), byte_id(ord("x"))]) == "\ufffdx"


class DecodesEachBlockAlone:
    """The mistake to catch: every block decoded by itself."""

    def __init__(self, tokenizer):
        self.feed = tokenizer.decode
        self.finish = str


def test_a_detokenizer_without_memory_would_be_caught(tokenizer):
    wrong = DecodesEachBlockAlone(tokenizer)
    pieces = [wrong.feed([byte_id(b)]) for b in "é".encode()]
    assert "".join([*pieces, wrong.finish()]) != "é"


def test_special_tokens_have_no_text_and_markers_do(tokenizer):
    assert tokenizer.decode([BOS, *tokenizer.encode("a")[1:], 265, EOS]) == "a<think>"


def test_an_image_is_found(tokenizer):
    assert tokenizer.find_image(tokenizer.encode("see <|image|>"))
    assert not tokenizer.find_image(tokenizer.encode("see image"))


def test_a_configuration_alone_is_called_so(tmp_path):
    with pytest.raises(TokenizerError, match="holds a configuration alone, without weights or a tokenizer"):
        TextTokenizer.open(tmp_path, bos=0, eos=1, image=None, vocab_size=8)


def test_a_missing_tokenizer(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(TokenizerError, match=r"No tokenizer\.json in "):
        open_in(tmp_path)


def test_a_damaged_tokenizer(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="cannot be read"):
        open_in(tmp_path)


def test_another_kind_of_tokenizer(tmp_path):
    write_tokenizer(tmp_path, decoder="Fuse")
    with pytest.raises(TokenizerError, match=r"has the decoder Fuse"):
        open_in(tmp_path)


def test_more_ids_than_the_model_has(tmp_path):
    write_tokenizer(tmp_path)
    with pytest.raises(TokenizerError, match=r"has ids up to 265, but text_config\.vocab_size is 200"):
        open_in(tmp_path, vocab_size=200)


def test_ids_without_a_token(tmp_path):
    path = write_tokenizer(tmp_path)
    content = json.loads(path.read_text())
    assert len(content["model"]["vocab"]) == 264
    with pytest.raises(TokenizerError, match=r"has no token 300, which config\.json names as eos_token_id"):
        open_in(tmp_path, eos=300, vocab_size=400)
