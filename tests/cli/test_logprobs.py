"""`--logprobs` in each shape of results; the toy's logits rise by a hundredth from id to id."""

from __future__ import annotations

import json

import numpy as np
import pytest

LIKELIEST = [265, 264]
LOG_SUM = float(np.log(np.exp(np.arange(266) / 100).sum()))


def expected(token: int) -> float:
    return token / 100 - LOG_SUM


def run(specdecode, *arguments: str):
    return json.loads(specdecode("generate", *arguments, "--max-tokens", "5", "--json", "-q").stdout)["results"][0]


@pytest.mark.parametrize("width", ["0", "3"])
def test_in_our_own_shape(specdecode, width):
    result = run(specdecode, "-p", "one", "--logprobs", "2", "--draft-tokens", width)
    assert [one["token"] for one in result["logprobs"]] == result["tokens"]
    for one in result["logprobs"]:
        assert one["logprob"] == pytest.approx(expected(one["token"]), abs=1e-5)
        assert [other["token"] for other in one["top"]] == LIKELIEST
    assert "logprobs" not in run(specdecode, "-p", "one")


@pytest.mark.parametrize(
    ("body", "keys"),
    [
        ({"prompt": "one", "logprobs": 2}, {"tokens", "token_logprobs", "top_logprobs", "text_offset"}),
        ({"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 2}, {"content"}),
        ({"messages": [{"role": "user", "content": "hi"}], "logprobs": True}, {"content"}),
    ],
)
def test_in_a_batch(specdecode, tmp_path, body, keys):
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    url = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    head = {"custom_id": "r", "method": "POST", "url": url}
    rows.write_text(json.dumps({**head, "body": {"model": "m", "max_tokens": 4, **body}}))
    assert specdecode("generate", str(rows), "--raw", "--output", str(out), "-q").exit_code == 0
    choice = json.loads(out.read_text())["response"]["body"]["choices"][0]
    said = choice["logprobs"]
    assert said.keys() == keys
    count = body.get("top_logprobs", 0) if "messages" in body else body["logprobs"]
    if "content" in said:
        assert len(said["content"]) == 4
        assert all(len(one["top_logprobs"]) == count for one in said["content"])
        assert all(bytes(one["bytes"]).decode(errors="replace") == one["token"] for one in said["content"])
    else:
        assert len(said["tokens"]) == len(said["token_logprobs"]) == len(said["text_offset"]) == 4
        assert said["text_offset"] == [sum(map(len, said["tokens"][:place])) for place in range(4)]


def test_without_them_there_are_none(specdecode, tmp_path):
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    body = {"model": "m", "prompt": "a", "max_tokens": 2, "logprobs": False}
    rows.write_text(json.dumps({"custom_id": "r", "method": "POST", "url": "/v1/completions", "body": body}))
    specdecode("generate", str(rows), "--output", str(out), "-q")
    assert json.loads(out.read_text())["response"]["body"]["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"top_logprobs": 3}, "top_logprobs is 3; it needs logprobs, which must be true"),
        ({"logprobs": -1}, "logprobs is -1; it must be a whole number"),
        ({"logprobs": "yes"}, "logprobs is 'yes'; it must be a whole number"),
        ({"logit_bias": [1]}, "logit_bias is [1]; it must be an object of token ids and numbers"),
        ({"logit_bias": {"x": 1}}, "it must be an object of token ids and numbers"),
        ({"logit_bias": {"9999": 1}}, "logit_bias names the token 9999"),
        ({"min_p": 2}, "min_p is 2; it must be a number from 0"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; it must be a number from 0.001 to 1000"),
    ],
)
def test_rows_that_are_not_possible(specdecode, tmp_path, body, message):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "a", **body}))
    result = specdecode("generate", str(rows), "-q")
    assert (result.exit_code, specdecode.loads) == (2, [])
    assert message in result.stderr
    assert f"{rows}:1" in result.stderr


def test_a_bias_on_the_command_line(specdecode):
    result = specdecode("generate", "-p", "x", "--logit-bias", "17=-2.5", "--logit-bias", "3=1", "--show-config")
    assert "17=-2.5 3=1" in result.stdout
    result = specdecode("generate", "-p", "x", "--logit-bias", "17")
    assert result.exit_code == 2
    assert "--logit-bias 17 is not possible. Write a token id and a number, as 17=-2.5." in result.stderr
