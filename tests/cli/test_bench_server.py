"""`specdecode bench --base-url`: a server is asked, its counters are read, and what it cannot say is not made up."""

from __future__ import annotations

import socket

import pytest
from typer.testing import CliRunner

from specdecode.cli.app import make_app
from specdecode.core.bench.counters import growth, parse
from specdecode.core.bench.measure import Counts
from specdecode.core.errors import SpecdecodeError
from tests.cli.conftest import document
from tests.support.fake_server import Faults, fake_server


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "one", "seed": 5}\n{"turns": ["first", "second"]}\n')
    return str(file)


def bench(*options: str):
    result = CliRunner().invoke(make_app(panels=False), ["bench", "--max-tokens", "8", "--repeats", "2", *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_modes_by_the_field_and_acceptance_by_the_counters(prompts):
    with fake_server(Faults()) as (url, _):
        result = bench(prompts, "--base-url", url, "--draft-tokens", "0,1,3", "--json")
    assert result.exit_code == 0, result.stderr
    found = document(result)
    assert (found.server, found.model, found.copy_bytes_per_second) == (url, "fake-model", {})
    plain, one, three = found.rows
    assert (plain.mode, plain.acceptance, plain.speed_up) == ("plain", None, None)
    assert (plain.tokens, plain.prompts) == (24, 2)  # three answers of 8 tokens
    assert one.acceptance is not None
    assert (one.mode, one.acceptance.rounds, one.acceptance.rate, one.acceptance.per_position) == (
        "server 1", 12, 1.0, [1.0],
    )  # fmt: skip
    assert three.acceptance is not None
    assert (three.acceptance.length, three.acceptance.length_with_bonus) == (1.0, 2.0)
    assert three.acceptance.per_position == [1.0, 0.0, 0.0]
    assert [(row.identical.same, row.identical.compared) for row in found.rows] == [(2, 2)] * 3
    assert one.speed_up is not None
    assert one.seconds is None
    assert "verify ms" not in result.stdout
    assert "acceptance length = growth of num_accepted_tokens / num_drafts" in result.stdout
    assert "other processes kept" in result.stderr


def test_what_is_asked_of_the_server(prompts):
    with fake_server(Faults()) as (url, state):
        bench(prompts, "--base-url", f"{url}/v1/", "--seed", "3", "--warm-up", "0", "--ignore-eos", "--repeats", "1")
    asked = [(path, body) for path, body in state.asked if body.get("seed")]
    path, body = asked[0]
    fixed = {"model": "fake-model", "max_tokens": 8, "temperature": 0.0, "ignore_eos": True, "stream": True,
             "stream_options": {"include_usage": True}}  # fmt: skip
    assert (path, body) == ("/v1/completions", {**fixed, "prompt": "one", "seed": 5, "draft_tokens": 0})
    chats = [body for path, body in asked if path == "/v1/chat/completions"]
    answer = "in the beginning was in the beginning was "
    assert [message["content"] for message in chats[1]["messages"]] == ["first", answer, "second"]
    widths = [body.get("draft_tokens", "unasked") for _, body in asked]
    assert sorted(map(str, set(widths))) == ["0", "unasked"]


@pytest.mark.parametrize(
    ("faults", "why"),
    [
        (Faults(knows_field=False), "it drafted although draft_tokens was 0, so it does not know that field"),
        (Faults(refuses_field=True), "it refuses draft_tokens: "),
        (Faults(counts=False), "its /metrics has no counters of speculation, so nobody could tell whether it drafts"),
    ],
)
def test_a_server_without_plain_decoding_has_no_speed_up(prompts, faults, why):
    with fake_server(faults) as (url, _):
        result = bench(prompts, "--base-url", url, "--json")
    assert result.exit_code == 0
    [row] = document(result).rows
    assert (row.mode, row.speed_up, row.identical) == ("server default", None, None)
    assert (row.acceptance is None) is not faults.counts
    assert f"note: no plain decoding and so no speed-up: {why}" in result.stderr


def test_other_texts_than_plain_decodings_are_exit_code_5(prompts):
    with fake_server(Faults(honest=False)) as (url, _):
        result = bench(prompts, "--base-url", url, "--json")
    assert result.exit_code == 5
    assert "error: mine, server default differs from plain decoding: " in result.stderr


def test_a_prompt_that_the_server_refuses_fails_alone(tmp_path):
    file = tmp_path / "two.txt"
    file.write_text("bad\ngood\n")
    with fake_server(Faults()) as (url, _):
        result = bench(str(file), "--base-url", url, "--json")
    assert result.exit_code == 1
    assert [(row.failed, row.tokens) for row in document(result).rows] == [(1, 8), (1, 8)]


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        (Faults(usage=False), "does not say how many tokens an answer has (stream_options.include_usage)"),
        (Faults(whole=False), "broke an answer off before its end ([DONE])"),
        (Faults(restarts=True), "The server's counters went back: it was started anew meanwhile."),
        (Faults(key="secret"), "/v1/models answers 401: no."),
    ],
)
def test_a_server_that_cannot_be_measured(prompts, faults, message):
    with fake_server(faults) as (url, _):
        result = bench(prompts, "--base-url", url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr


def test_a_key_is_sent_and_not_shown(prompts, monkeypatch):
    monkeypatch.setenv("SPECDECODE_API_KEY", "secret")
    with fake_server(Faults(key="secret")) as (url, _):
        result = bench(prompts, "--base-url", url, "--json")
    assert result.exit_code == 0
    assert "secret" not in result.stdout + result.stderr


def test_no_server():
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        result = bench("--base-url", f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "cannot be reached: " in result.stderr
    assert "Is the server running?" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--base-url", "localhost:8000"],
            "--base-url localhost:8000 is no address. Write it as http://127.0.0.1:8000.",
        ),
        (["--base-url", "http://x", "--method", "ngram"], "--base-url and --method contradict each other"),
        (["--base-url", "http://x", "--devices", "cpu"], "--base-url and --devices contradict each other"),
    ],
)
def test_options_that_a_server_decides(options, message):
    result = bench(*options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


PAGE = """# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{engine="0"} 3.0
vllm:spec_decode_num_drafts_total{engine="1"} 1.0
# TYPE vllm:spec_decode_num_draft_tokens counter
vllm:spec_decode_num_draft_tokens_total 20.0
# TYPE vllm:spec_decode_num_accepted_tokens counter
vllm:spec_decode_num_accepted_tokens_total 6.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 2.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 4.0
"""


def test_counters_are_summed_over_engines():
    assert parse(PAGE) == Counts(drafts=4, draft_tokens=20, accepted=6, per_position=(4, 2))
    assert parse("# TYPE up gauge\nup 1.0\n") is None


def test_only_growth_counts():
    before = Counts(drafts=1, draft_tokens=5, accepted=2, per_position=(1,))
    after = Counts(drafts=4, draft_tokens=20, accepted=6, per_position=(4, 2))
    assert growth(before, after) == Counts(drafts=3, draft_tokens=15, accepted=4, per_position=(3, 2))
    with pytest.raises(SpecdecodeError, match="went back"):
        growth(after, before)
