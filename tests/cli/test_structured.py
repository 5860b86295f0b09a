"""`generate` with grammars and thinking budgets, over a model that writes nonsense wherever it may."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

from tests.cli.conftest import Command
from tests.cli.test_conversations import results, rows
from tests.support.replies import MARKERS, VOCAB, write_chat_folder
from tests.support.tiny import CONFIG

SCHEMA = {
    "type": "object",
    "properties": {"age": {"enum": [1, 22]}, "name": {"type": "string", "pattern": "^[a-z]{1,3}$"}},
    "required": ["age", "name"],
    "additionalProperties": False,
}
TEXT = json.dumps(SCHEMA)
THINK_END = MARKERS["</think>"]
QUESTION = {"messages": [{"role": "user", "content": "Q"}]}


class Noise:
    """In place of tables: every token is as likely as any other; the drafter is right about the noise alone."""

    target = SimpleNamespace(shape=(VOCAB,))
    drafter = None

    def sample(self, table, before, last, *, position: int, seed: int, temperature: float, mask=None, **limits) -> int:
        noise = np.random.default_rng([seed, position]).random(VOCAB)
        noise[[token for token in MARKERS.values() if token != THINK_END]] = -1
        return int(np.argmax(noise if mask is None else np.where(mask, noise, -np.inf)))


@pytest.fixture
def noise(specdecode, tmp_path) -> Command:
    specdecode.checkpoint = write_chat_folder(tmp_path)
    specdecode.script = Noise()
    return specdecode


def valid(text: str) -> bool:
    value = json.loads(text)
    return (
        list(value) == ["age", "name"]
        and value["age"] in (1, 22)
        and re.fullmatch("[a-z]{1,3}", value["name"]) is not None
    )


@pytest.mark.parametrize("more", [(), ("--no-speculation",), ("--draft-tokens", "1")])
def test_answers_are_of_the_schema(noise, more):
    found = results(
        noise("generate", "-p", "x", "--raw", "--json-schema", TEXT, "--n", "6", "--max-tokens", "300", "--json", *more)
    )
    assert all(r["finish_reason"] == "stop" and valid(r["text"]) for r in found)
    assert len({r["text"] for r in found}) > 1
    again = results(
        noise("generate", "-p", "x", "--raw", "--json-schema", TEXT, "--n", "6", "--max-tokens", "300", "--json")
    )
    assert [r["tokens"] for r in again] == [r["tokens"] for r in found]


def test_after_the_reasoning(noise, tmp_path):
    file = rows(tmp_path, {**QUESTION, "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}})
    more = ("--thinking-budget", "20", "--n", "4", "--max-tokens", "400", "--json")
    for answer in results(noise("generate", file, *more)):
        thought = answer["tokens"].index(THINK_END)
        assert thought <= 20
        assert valid(answer["message"]["content"])
    [answer] = results(noise("generate", file, "--no-thinking", "--max-tokens", "400", "--json"))
    assert valid(answer["text"])
    assert "reasoning_content" not in answer["message"]


def test_every_turn_has_the_grammar(noise, tmp_path):
    file = rows(tmp_path, {"turns": ["Q", "again"], "guided_regex": "[a-f]{4}", "thinking_budget": 2})
    [answer] = results(noise("generate", file, "--json"))
    contents = [turn["message"]["content"] for turn in answer["turns"]]
    assert [bool(re.fullmatch("[a-f]{4}", content)) for content in contents] == [True, True]
    assert all(turn["tokens"].index(THINK_END) <= 2 for turn in answer["turns"])


def test_a_raw_prompt_may_spell_that_it_thinks(noise):
    more = ("--raw", "--regex", "[a-f]{4}", "--thinking-budget", "1", "--json")
    [answer] = results(noise("generate", "-p", "x<think>", *more))
    assert re.fullmatch(r"(?s:.?)</think>[a-f]{4}", answer["text"])
    [answer] = results(noise("generate", "-p", "<think>x</think>", *more))
    assert re.fullmatch("[a-f]{4}", answer["text"])


def test_the_other_kinds(noise, tmp_path):
    grammar = tmp_path / "list.lark"
    grammar.write_text('start: word ("," word)*\nword: "so" | "ho"\n')
    schema = tmp_path / "schema.json"
    schema.write_text(TEXT)
    [lark] = results(noise("generate", "-p", "x", "--raw", "--grammar", str(grammar), "--json"))
    assert re.fullmatch(r"(so|ho)(,(so|ho))*(,?(s|h)?)?", lark["text"])
    [file] = results(
        noise("generate", "-p", "x", "--raw", "--json-schema", str(schema), "--max-tokens", "300", "--json")
    )
    assert valid(file["text"])
    [some] = results(noise("generate", "-p", "x", "--raw", "--json-object", "--json", "--ignore-eos"))
    assert some["text"].startswith("{")
    comparison = noise("generate", "-p", "x", "--raw", "--json-object", "--compare", "-q")
    assert comparison.exit_code == 0


def test_a_row_goes_before_the_command_line(noise, tmp_path):
    file = rows(tmp_path, {"prompt": "x", "guided_choice": ["so", "ho"]}, {"prompt": "x"})
    first, second = results(noise("generate", file, "--regex", "[a-f]{4}", "--json"))
    assert first["text"] in ("so", "ho")
    assert re.fullmatch("[a-f]{4}", second["text"])


def test_who_asked_for_it_is_shown(noise, tmp_path):
    file = rows(tmp_path, {"prompt": "x", "guided_regex": "a+", "thinking_budget": 3}, {"prompt": "y"})
    page = noise("generate", file, "--json-object", "--show-config").stdout
    assert re.search(rf"{file}:1: grammar +regular expression a\+ +row {file}:1\n", page)
    assert re.search(rf"{file}:2: grammar +JSON object +--json-object\n", page)
    assert re.search(rf"{file}:1: thinking_budget +3 +row {file}:1\n", page)
    assert re.search(rf"{file}:1: chat +yes +row {file}:1\n", page)
    document = json.loads(noise("generate", file, "--json-schema", TEXT, "--show-config", "--json").stdout)
    assert document["prompts"][0]["grammar"] == {
        "value": {"kind": "regex", "text": "a+"},
        "source": f"row {file}:1",
    }
    assert document["prompts"][1]["grammar"]["value"] == {"kind": "json_schema", "text": TEXT}
    assert document["prompts"][1]["thinking_budget"] == {"value": None, "source": "default"}


def test_another_grammar_is_another_result(noise, tmp_path):
    answers = str(tmp_path / "answers.jsonl")
    first = ("generate", "-p", "x", "--raw", "--max-tokens", "4", "--output", answers)
    assert noise(*first, "--regex", "[a-f]{4}").exit_code == 0
    assert noise(*first, "--regex", "[a-f]{4}", "--resume").exit_code == 0
    assert noise(*first, "--regex", "[a-f]{3}", "--resume").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--json-object", "--regex", "a"),
            "--json-object and --regex contradict each other: an answer has one grammar.",
        ),
        (("--json-schema", "{}", "--grammar", "x"), "--json-schema and --grammar contradict each other"),
        (("--no-thinking", "--thinking-budget", "3"), "--no-thinking and --thinking-budget contradict each other."),
        (("--json-schema", "{"), "--json-schema { cannot be used: it is no JSON: Expecting property name"),
        (("--json-schema", "no.json"), "--json-schema no.json cannot be read: No such file or directory; the schema"),
        (("--grammar", "no.lark"), "--grammar no.lark cannot be read: No such file or directory."),
        (("--grammar", "/"), "--grammar / cannot be read: Is a directory."),
        (
            ("--json-schema", '{"type": "objct"}'),
            "--json-schema: The JSON schema cannot be used: Invalid type: objct. Correct it,",
        ),
        (("--regex", "a(b"), "--regex: The regular expression cannot be used: unclosed group in 'a(b'."),
        (("--regex", ""), "--regex: The grammar allows the empty text only."),
    ],
)
def test_what_is_refused_before_a_model_is_loaded(noise, arguments, message):
    result = noise("generate", "-p", "x", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message}")
    assert noise.loads == []


def test_a_row_is_named(noise, tmp_path):
    file = rows(tmp_path, {"prompt": "x"}, {"prompt": "x", "guided_regex": "a(b"})
    result = noise("generate", file)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {file}:2: The regular expression cannot be used: unclosed group")
    file = rows(tmp_path, {"prompt": "x", "thinking_budget": -1})
    assert f"{file}:1: thinking_budget is -1; it must be a whole number" in noise("generate", file).stderr


def test_a_schema_file_that_is_no_text(noise, tmp_path):
    file = tmp_path / "schema.json"
    file.write_bytes(b"\xff{}")
    result = noise("generate", "-p", "x", "--json-schema", str(file))
    assert (result.exit_code, result.stderr) == (2, f"error: --json-schema {file} is not UTF-8 text.\n")


def test_a_vocabulary_without_an_end_of_reasoning(specdecode):
    assert CONFIG["text_config"]["vocab_size"] == 266  # this checkpoint has <think> alone
    result = specdecode("generate", "-p", "<think>", "--raw", "--regex", "a")
    assert result.exit_code == 3
    assert "has no token </think>" in result.stderr
