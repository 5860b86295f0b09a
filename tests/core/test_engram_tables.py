"""Engram's constants: published ones of the release, a hash by its definition, reference sets if there "
"are any."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from specdecode.core.errors import ConfigError, TokenizerError
from specdecode.core.models.deepseek_v41 import engram_tables
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.engram_tables import EngramTables, compressed_token_map
from tests.support.byte_tokenizer import byte_id, write_tokenizer
from tests.support.golden import golden_sets
from tests.support.released import released_config
from tests.support.tiny import CONFIG

TEXT = DeepseekV41Config.from_json(CONFIG).text_config


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.from_file(str(write_tokenizer(tmp_path_factory.mktemp("tokenizer"))))


@pytest.fixture(scope="module")
def tables(tokenizer):
    return EngramTables.build(TEXT, tokenizer)


def test_the_released_primes_and_multipliers():
    text = DeepseekV41Config.from_json(released_config()).text_config
    primes = engram_tables._primes(text)
    assert primes[:, [0, -1]].tolist() == [[16000057, 16000463], [16000477, 16000889]]
    assert primes.sum(axis=1).tolist() == [384006168, 384016682]
    assert engram_tables._multipliers(text).tolist() == [
        [76632096046245, 4839876093313, 35959672319349, 73987337458391],
        [67716810739261, 51510806800915, 30921347202721, 82619226485591],
    ]


def test_tokens_that_read_alike_share_a_class(tokenizer):
    ids = compressed_token_map(tokenizer, 266)
    a, upper_a = byte_id(ord("a")), byte_id(ord("A"))
    space, newline, tab = (byte_id(ord(c)) for c in " \n\t")
    assert ids[a] == ids[upper_a]
    assert ids[space] == ids[newline] == ids[tab] != ids[a]
    assert ids[byte_id(0xC3)] != ids[byte_id(0xC4)]  # parts of characters stay apart
    assert ids[260] == ids[261]  # "the" and " the"
    assert sorted(set(ids.tolist())) == list(range(int(ids.max()) + 1))
    assert ids[:3].tolist() == [0, 1, 2]


def slow_rows(tables: EngramTables, ids: list[int]) -> list[list[list[int]]]:
    """The hash token by token, in Python's unbounded integers cut to 64 bits."""
    span = tables.multipliers.shape[1]
    out = []
    for t in range(len(ids)):
        classes = [int(tables.token_map[ids[t - s]]) if t >= s else tables.pad for s in range(span)]
        layers = []
        for factors, primes, offsets in zip(tables.multipliers, tables.primes, tables.offsets, strict=True):
            row, mixed = [], 0
            for s in range(span):
                product = (classes[s] * int(factors[s]) + 2**63) % 2**64 - 2**63
                mixed ^= product
                if s:
                    part = range((s - 1) * tables.heads, s * tables.heads)
                    row += [mixed % int(primes[i]) + int(offsets[i]) for i in part]
            layers.append(row)
        out.append(layers)
    return out


@settings(max_examples=60, deadline=None)
@given(ids=st.lists(st.integers(0, 265), min_size=1, max_size=12), data=st.data())
def test_rows_by_definition_and_for_any_cut(tables, ids, data):
    whole = tables.hash_rows(np.array(ids))
    assert whole.tolist() == slow_rows(tables, ids)
    cut = data.draw(st.integers(0, len(ids)))
    assert np.array_equal(tables.hash_rows(np.array(ids[cut:], np.int64), np.array(ids[:cut])), whole[cut:])


def test_rows_stay_inside_their_part_of_the_table(tables):
    rows = tables.hash_rows(np.arange(266))
    assert (rows >= tables.offsets).all()
    assert (rows < tables.offsets + tables.primes).all()
    assert rows.max() < TEXT.engram_num_embeddings[0]


def test_another_tokenizer_is_refused(tokenizer):
    wrong = replace(TEXT, engram_compressed_vocab_size=200)
    with pytest.raises(TokenizerError, match=r"compresses to \d+ classes, but .*engram_compressed_vocab_size is 200"):
        EngramTables.build(wrong, tokenizer)


def test_a_table_of_another_size_is_refused(tokenizer):
    wrong = replace(TEXT, engram_num_embeddings=(221,))
    with pytest.raises(ConfigError, match=r"gives layer 1 221 rows, but its primes .* add up to 220"):
        EngramTables.build(wrong, tokenizer)


def test_no_engram_layers(tokenizer):
    none = replace(TEXT, engram_layer_ids=(), engram_num_embeddings=())
    assert EngramTables.build(none, tokenizer).hash_rows(np.array([5, 6])).shape == (2, 0, 4)


@pytest.mark.parametrize("path", golden_sets(), ids=lambda path: path.name)
def test_reference_sets(path):
    golden = json.loads((path / "golden.json").read_text(encoding="utf-8"))
    text = DeepseekV41Config.from_json(path).text_config
    tables = EngramTables.build(text, Tokenizer.from_file(str(path / "tokenizer.json")))
    expected = golden["engram"]
    assert tables.token_map.tolist() == golden["compressed_token_map"]
    assert tables.multipliers.tolist() == expected["multipliers"]
    assert tables.primes.tolist() == np.reshape(expected["primes"], tables.primes.shape).tolist()
    assert tables.offsets.tolist() == expected["offsets"]
    assert tables.pad == expected["pad_compressed_id"]
