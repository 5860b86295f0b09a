"""`specdecode generate` with conversations: what the model is asked, and what becomes of its answer."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Command
from tests.support.replies import Replies, tokens, write_chat_folder
from tests.support.toy import ToyModel

THOUGHT = "<think>R</think>C"
EFFORT = "Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"


class Listens(ToyModel):
    """Keeps the prompts that it is given."""

    asked: list[list[int]]

    def step(self, rows, *, width, draft):
        Listens.asked += [list(row.tokens) for row in rows if row.cache_length == 0]
        return super().step(rows, width=width, draft=draft)


@pytest.fixture
def chat(specdecode, tmp_path, monkeypatch) -> Command:
    specdecode.checkpoint = write_chat_folder(tmp_path)
    specdecode.script = Replies(THOUGHT)
    specdecode.model_type = Listens
    monkeypatch.setattr(Listens, "asked", [], raising=False)
    return specdecode


def rows(tmp_path, *content: object) -> str:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in content))
    return str(file)


def results(result) -> list[dict[str, object]]:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["results"]


def spelt(ids: list[int]) -> list[int]:
    """Ids with merged tokens of the test's tokenizer taken apart."""
    merged = {259: "th", 260: "the", 261: " the", 262: "an", 263: " t"}
    return [i for token in ids for i in (tokens(merged[token]) if token in merged else [token])]


def test_messages_are_encoded_and_the_answer_is_taken_apart(chat, tmp_path):
    [answer] = results(
        chat("generate", rows(tmp_path, {"messages": [{"role": "user", "content": "Q<think>"}]}), "--json")
    )
    prompt = [*tokens(f"{BOS}<｜System｜>{EFFORT}<｜User｜>Q"), *map(ord_id, "<think>")]
    assert list(map(spelt, Listens.asked)) == [prompt + tokens("<｜Assistant｜><think>")]
    assert answer["text"] == "R</think>C"
    assert answer["message"] == {"role": "assistant", "content": "C", "reasoning_content": "R"}
    assert (answer["finish_reason"], answer["stopped_by"]) == ("stop", 1)


def ord_id(character: str) -> int:
    return tokens(character)[0]


def test_chat_mode_effort_and_system(chat, tmp_path):
    chat.script = Replies("</think>C")
    file = rows(tmp_path, {"messages": [{"role": "user", "content": "Q"}]})
    [answer] = results(chat("generate", file, "--no-thinking", "--system", "S", "--json"))
    assert Listens.asked == [tokens(f"{BOS}<｜System｜>S<｜User｜>Q<｜Assistant｜></think>")]
    assert answer["message"] == {"role": "assistant", "content": "C"}
    chat("generate", file, "--effort", "low", "--json")
    effort = EFFORT.replace("75", "50")
    assert spelt(Listens.asked[1]) == tokens(f"{BOS}<｜System｜>{effort}<｜User｜>Q<｜Assistant｜><think>")


def test_turns_are_asked_one_after_the_other(chat, tmp_path):
    file = rows(tmp_path, {"question_id": 81, "turns": ["P", "Q"]}, {"turns": ["X"]})
    first, second = results(chat("generate", file, "--json"))
    assert first["metadata"] == {"question_id": 81}
    assert [turn["prompt"] for turn in first["turns"]] == ["P", "Q"]
    assert [turn["message"]["content"] for turn in first["turns"]] == ["C", "C"]
    assert second["message"]["content"] == "C"
    # The answer to the turn before is in the history, its reasoning is not.
    history = f"<｜User｜>P<｜Assistant｜></think>C{EOS}<｜User｜>Q<｜Assistant｜><think>"
    assert spelt(Listens.asked[-1]) == tokens(f"{BOS}<｜System｜>{EFFORT}{history}")


def test_turns_as_text(chat, tmp_path):
    result = chat("generate", rows(tmp_path, {"turns": ["P", "Q"]}, {"turns": ["X"]}), "-q")
    assert result.stdout == "R</think>C\nR</think>C\n\nR</think>C\n"


def test_answers_and_prompts_are_counted_apart(chat, tmp_path):
    result = chat("generate", rows(tmp_path, {"turns": ["P", "Q"]}, {"turns": ["X"]}))
    assert "\n2 prompts with 3 answers, 12 tokens, " in result.stderr


def test_a_conversation_that_outgrows_the_context_fails_alone(chat, tmp_path):
    file = rows(tmp_path, {"turns": ["P", "Q" * 1200, "Z" * 1200]}, {"turns": ["X"]})
    result = chat("generate", file, "--json", "-q")
    first, second = json.loads(result.stdout)["results"]
    assert result.exit_code == 1
    assert first["error"].startswith("turn 3: A request of 2")
    assert second["message"]["content"] == "C"


def test_texts_are_conversations_if_asked(chat):
    chat("generate", "-p", "Q", "--chat")
    chat("generate", "-p", "Q", "--thinking")
    chat("generate", "-p", "Q", "--system", "S")
    chat("generate", "-p", "Q")
    assert [len(asked) > 2 for asked in Listens.asked] == [True, True, True, False]


def test_raw_conversations_are_what_was_said(chat, tmp_path):
    chat.script = Replies("Ab")
    messages = [{"role": "user", "content": "P"}, {"role": "user", "content": "A"}]
    [answer] = results(chat("generate", rows(tmp_path, {"messages": messages}), "--raw", "--json"))
    assert Listens.asked == [tokens(f"{BOS}PA")]
    assert answer["text"] == "b"
    assert "message" not in answer


def test_tool_calls(chat, tmp_path):
    chat.script = Replies("</think>C")
    tools = [{"type": "function", "function": {"name": "f"}}]
    file = rows(tmp_path, {"messages": [{"role": "user", "content": "Q"}], "tools": tools})
    [answer] = results(chat("generate", file, "--no-thinking", "--json"))
    assert answer["message"]["content"] == "C"
    assert len(Listens.asked[0]) == 512  # the first chunk of a long prompt
    result = chat("generate", file, "--raw")
    assert (result.exit_code, "has tools, and a prompt that is not encoded" in result.stderr) == (2, True)


BATCH = {"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions"}


def test_a_batch_is_answered_as_one(chat, tmp_path):
    file = rows(
        tmp_path,
        {**BATCH, "body": {"model": "m", "messages": [{"role": "user", "content": "Q"}], "max_tokens": 2}},
        {**BATCH, "custom_id": "r-2", "url": "/v1/completions", "body": {"prompt": "R", "stop": "C"}},
    )
    out = tmp_path / "out.jsonl"
    result = chat("generate", file, "--output", str(out), "-q")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    first, second = map(json.loads, out.read_text().splitlines())
    assert first.keys() == {"id", "custom_id", "response", "error"}
    assert (first["custom_id"], first["response"]["status_code"], first["error"]) == ("r-1", 200, None)
    body = first["response"]["body"]
    assert (body["object"], body["choices"][0]["finish_reason"]) == ("chat.completion", "length")
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "", "reasoning_content": "R"}
    # The second token is </think>: no more of them are reasoning than there are.
    assert body["usage"]["completion_tokens"] == 2
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 1}
    body = second["response"]["body"]
    assert (body["object"], body["choices"][0]["text"]) == ("text_completion", "</think>")
    assert body["usage"]["prompt_tokens"] == 2


def test_reasoning_that_is_cut_counts_what_there_is(chat, tmp_path):
    file = rows(tmp_path, {**BATCH, "body": {"messages": [{"role": "user", "content": "Q"}], "max_tokens": 1}})
    chat("generate", file, "--output", str(tmp_path / "out"), "-q")
    usage = json.loads((tmp_path / "out").read_text())["response"]["body"]["usage"]
    assert usage["completion_tokens"] == usage["completion_tokens_details"]["reasoning_tokens"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--raw", "--system", "S"], "--raw and --system contradict each other: a raw prompt has no place for it."),
        (["--raw", "--thinking"], "--raw and --thinking contradict each other: a raw prompt has no place for it."),
        (["--no-thinking", "--effort", "9"], "--no-thinking and --effort contradict each other. Leave one out."),
        (
            ["--effort", "0"],
            "effort 0 is not possible: use a number from 1 to 100, or minimal, low, medium, high, xhigh, max.",
        ),
    ],
)
def test_contradictions(chat, options, message):
    result = chat("generate", "-p", "x", *options)
    assert (result.exit_code, result.stderr) == (2, f"error: {message}\n")


def test_a_checkpoint_without_markers(specdecode):
    result = specdecode("generate", "-p", "x", "--chat")
    assert result.exit_code == 3
    assert "The tokenizer has no token <｜begin▁of▁sentence｜>" in result.stderr
