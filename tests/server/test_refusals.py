"""Every refusal is an error object, and names what it is about."""

from __future__ import annotations

import json
import socket

import pytest

from tests.support.live import Live
from tests.support.reciting import Letters, chat_tokenizer
from tests.support.replies import write_chat_folder
from tests.support.toy import ToyModel

KEY = {"Authorization": "Bearer secret"}


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    tokenizer = chat_tokenizer(write_chat_folder(tmp_path_factory.mktemp("chat")))
    model = ToyModel(Letters(), block_size=3, max_length=400, num_pages=400)
    with Live(model=model, tokenizer=tokenizer, max_body=2000, api_key="secret") as live:
        yield live


def refused(live, path="/v1/completions", *, body=None, raw=None, method="POST", headers=KEY):
    made = live.request(method, path, raw if raw is not None else json.dumps(body).encode(), **headers)
    error = json.loads(made.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return made, error


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "prompt", "prompt: field required."),
        ({"prompt": 5}, "prompt", "prompt must be a text, a list of texts, token ids, or a list of those; "),
        ({"prompt": []}, "prompt", "prompt must be a text"),
        ({"prompt": [5, 400]}, "prompt", "prompt holds the token 400, and ids run below 272."),
        ({"prompt": [264]}, "prompt", "prompt holds an image placeholder; images are not supported."),
        ({"prompt": "<|image|>"}, None, "images are not supported"),
        ({"prompt": "x", "temperature": -1}, "temperature", "temperature: input should be greater than or equal to 0."),
        ({"prompt": "x", "temperature": "hot"}, "temperature", "temperature: input should be a valid number."),
        ({"prompt": "x", "n": 0}, "n", "n: input should be greater than or equal to 1."),
        ({"prompt": "x", "n": 100}, None, "100 answers are more than this server takes at a time, 72."),
        ({"prompt": "x", "suffix": "y"}, "suffix", "suffix is no option."),
        ({"prompt": "x", "best_of": 2}, "best_of", "best_of 2 is not supported."),
        ({"prompt": "x", "echo": True}, "echo", "echo True is not supported."),
        ({"prompt": "x", "tempersture": 1}, "tempersture", "tempersture is no option; did you mean temperature?"),
        ({"prompt": "x", "seed": -1}, "seed", "seed: input should be greater than or equal to 0."),
        ({"prompt": "x", "stop": ""}, "stop", "it must be a text or a list of texts, none of them empty."),
        ({"prompt": "x", "logit_bias": {"999": 1}}, "logit_bias", "logit_bias names the token 999"),
        ({"prompt": "x", "stop_token_ids": [300]}, "stop_token_ids", "stop_token_ids names the token 300"),
        ({"prompt": "x", "draft_tokens": 4}, "draft_tokens", "draft_tokens is 4; this server drafts up to 3."),
        ({"prompt": "x", "guided_regex": "("}, None, "The regular expression cannot be used"),
        (
            {"prompt": "x", "min_tokens": 20},
            None,
            "min_tokens is 20; it must be a whole number from 0 to max_tokens, 16.",
        ),
        ({"prompt": "x" * 400}, "prompt", "The prompt has 401 tokens, and the context of 400"),
        ({"prompt": "x", "enable_thinking": True}, "thinking", "thinking belongs to conversations"),
        ({"prompt": "\ud800"}, None, "The prompt is not UTF-8 text."),
        ({"prompt": "x", "user": "\ud800"}, None, "half of a surrogate pair"),
        ([], None, "The body must be a JSON object"),
    ],
)
def test_a_completion_that_is_not_possible(live, body, param, message):
    made, error = refused(live, body=body)
    assert (made.status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert message in error["message"]


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"messages": []}, "messages", "messages: list should have at least 1 item"),
        ({"messages": [{"role": "user"}, {"role": "judge"}]}, None, "messages.1.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, None, "'image_url' is not supported"),
        ({"messages": [{"role": "user", "content": "x"}], "functions": []}, "functions", "functions is no option"),
        ({"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        (
            {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "xml"}},
            "response_format",
            "xml",
        ),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "a"}]}, None, "is no open call"),
    ],
)
def test_a_chat_that_is_not_possible(live, body, param, message):
    made, error = refused(live, "/v1/chat/completions", body=body)
    assert made.status == 400
    assert message in error["message"]
    assert param in (None, error["param"])


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b'{"prompt": "x"', b"[" * 1900, b'{"prompt": NaN}', b"\xff\xfe", b'{"max_tokens": ' + b"9" * 1900],
)
def test_what_is_no_json(live, raw):
    made, error = refused(live, raw=raw)
    assert (made.status, error["type"]) == (400, "invalid_request_error")


def test_a_body_of_another_type(live):
    made, error = refused(live, raw=b"x=1", headers={**KEY, "Content-Type": "application/x-www-form-urlencoded"})
    assert (made.status, "JSON object, sent as application/json" in error["message"]) == (400, True)


def test_what_changes_nothing_is_taken(live):
    body = {"prompt": "x", "user": "me", "metadata": {"a": "b"}, "best_of": 1, "echo": False, "suffix": None, "seed": 1}
    assert live.request("POST", "/v1/completions", json.dumps(body).encode(), **KEY).status == 200


def test_paths_and_methods(live):
    made, error = refused(live, "/v1/embeddings", body={})
    assert (made.status, error["type"], error["message"]) == (
        404,
        "not_found_error",
        "There is no /v1/embeddings here.",
    )
    made, error = refused(live, "/v1/completions", method="GET")
    assert (made.status, made.headers["Allow"]) == (405, "POST")
    assert error["message"] == "/v1/completions does not take GET."


def test_a_body_that_is_too_large(live):
    large = json.dumps({"prompt": "x" * 5000}).encode()
    made, error = refused(live, raw=large)
    assert (made.status, error["code"]) == (413, "body_too_large")
    assert "2000 bytes (--max-body)" in error["message"]
    with socket.create_connection(("127.0.0.1", live.port)) as raw:
        head = [
            "POST /v1/completions HTTP/1.1",
            "Host: x",
            "Authorization: Bearer secret",
            "Transfer-Encoding: chunked",
        ]
        raw.sendall("\r\n".join([*head, "", ""]).encode() + b"1000\r\n" + b"x" * 4096 + b"\r\n0\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 413")
    assert live.request("POST", "/v1/completions", b'{"prompt": "x"}', **KEY).status == 200


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}])
def test_the_key(live, headers):
    made, error = refused(live, body={"prompt": "x"}, headers=headers)
    assert (made.status, made.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert live.request("GET", "/v1/models").status == 401
    for path in ("/health", "/ready", "/metrics", "/"):
        assert live.request("GET", path).status == 200
    assert live.client.models.list().data[0].id == "demo"
