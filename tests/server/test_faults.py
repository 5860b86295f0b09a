"""One request's misfortune is its own: clients that go away or do not read, steps that fail, queues that are full."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import openai
import pytest

from specdecode.core.engine.request import FailedEvent, FinishedEvent, Request
from specdecode.core.server.state import State
from tests.support.live import Live
from tests.support.reciting import BreakingModel, Letters, SlowModel, chat_tokenizer
from tests.support.replies import write_chat_folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return chat_tokenizer(write_chat_folder(tmp_path_factory.mktemp("chat")))


def serve(tokenizer, model=SlowModel, **options) -> Live:
    made = model(Letters(), block_size=3, max_length=4000, num_pages=9000)
    return Live(model=made, tokenizer=tokenizer, **options)


def complete(live, seed: int, tokens: int = 40, **options):
    return live.client.completions.create(
        model="demo", prompt="x", seed=seed, max_tokens=tokens, temperature=1, **options
    )


def begun(live, **body) -> socket.socket:
    """A connection that has asked and not read the answer."""
    content = json.dumps({"prompt": "x", "seed": 1, "max_tokens": 3000, **body}).encode()
    head = ["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json"]
    head += [f"Content-Length: {len(content)}", "", ""]
    raw = socket.create_connection(("127.0.0.1", live.port))
    raw.sendall("\r\n".join(head).encode() + content)
    return raw


def aborted(live) -> float:
    return live.metrics.registry.get_sample_value(
        "vllm:request_success_total", {"model_name": "demo", "finished_reason": "abort"}
    )


@pytest.mark.parametrize("body", [{"stream": True}, {"stream": False}, {"n": 3, "stream": True}])
def test_a_client_that_goes_away_frees_its_pages(tokenizer, body):
    with serve(tokenizer, batch=2) as live:
        raw = begun(live, **body)
        live.wait(lambda: live.engine.load.running == min(2, body.get("n", 1)))
        assert not live.idle()
        raw.close()
        live.wait(live.idle, seconds=3)  # it would take far longer to finish
        assert aborted(live) == body.get("n", 1)
        assert complete(live, 2).choices[0].finish_reason == "length"


def test_a_client_that_goes_away_while_it_waits(tokenizer):
    with serve(tokenizer, batch=1) as live:
        first = begun(live)
        live.wait(lambda: live.engine.load.running == 1)
        second = begun(live)
        live.wait(lambda: live.engine.load.waiting == 1)
        second.close()
        live.wait(lambda: live.engine.load.waiting == 0)
        assert live.engine.load.running == 1
        first.close()
        live.wait(live.idle)


def test_a_slow_reader_holds_up_nobody(tokenizer):
    with serve(tokenizer, SlowModel, batch=4) as live:
        alone = complete(live, 5).choices[0].text
        raw = begun(live, stream=True, n=2)  # never read: megabytes would be needed to fill what lies between
        live.wait(lambda: live.engine.load.running == 2)
        assert complete(live, 5).choices[0].text == alone
        raw.close()
        live.wait(live.idle)


def test_a_full_queue(tokenizer):
    with serve(tokenizer, batch=1, waiting=1) as live:
        holding = [begun(live), begun(live)]
        live.wait(lambda: live.runner.in_flight == 2)
        with pytest.raises(openai.RateLimitError) as caught:
            complete(live, 1)
        assert caught.value.code == "queue_full"
        assert int(caught.value.response.headers["Retry-After"]) >= 1
        for raw in holding:
            raw.close()
        live.wait(live.idle)
        assert complete(live, 1).choices[0].finish_reason == "length"


def test_a_request_that_breaks_a_step_fails_alone(tokenizer):
    with serve(tokenizer, BreakingModel, batch=4) as live:
        seeds = [1, 2, 3]
        alone = [complete(live, seed).choices[0].text for seed in seeds]
        with ThreadPoolExecutor(5) as pool:
            broken = pool.submit(complete, live, 13)
            together = list(pool.map(lambda seed: complete(live, seed).choices[0].text, seeds))
            with pytest.raises(openai.InternalServerError, match=r"failed on this request \(ValueError: thirteen\)"):
                broken.result()
        assert together == alone
        assert live.log == ["a request failed in the engine; others go on: thirteen"]
        with pytest.raises(openai.APIError, match="thirteen"):
            list(complete(live, 13, stream=True))
        live.wait(live.idle)
        assert live.runner.state is State.READY


def test_a_step_that_fails_as_a_whole_ends_its_requests_and_no_more(tokenizer, monkeypatch):
    with serve(tokenizer) as live:
        plan, calls = live.engine._scheduler.plan, []

        def failing():
            calls.append(1)
            if len(calls) == 3:
                raise RuntimeError("no plan")
            return plan()

        monkeypatch.setattr(live.engine._scheduler, "plan", failing)
        with pytest.raises(openai.InternalServerError, match="RuntimeError"):
            complete(live, 1)
        live.wait(live.idle)
        assert complete(live, 2).choices[0].finish_reason == "length"


def test_an_engine_that_fails_for_good_says_so(tokenizer, monkeypatch):
    def failing():
        raise RuntimeError("broken")

    with serve(tokenizer) as live:
        monkeypatch.setattr(live.engine._scheduler, "plan", failing)
        for _ in range(3):
            with pytest.raises(openai.InternalServerError):
                complete(live, 1)
        live.wait(lambda: live.runner.state is State.FAILED)
        assert live.request("GET", "/health").status == 503
        assert live.request("GET", "/ready").status == 503
        with pytest.raises(openai.InternalServerError) as caught:
            complete(live, 1)
        assert caught.value.status_code == 503


def test_a_server_is_not_ready_before_a_token_was_generated(tokenizer):
    states = []

    class Watched(SlowModel):
        def step(self, rows, *, width: int, draft: bool):
            states.append(live.runner.state)
            return super().step(rows, width=width, draft=draft)

    live = serve(tokenizer, Watched)
    with live:
        assert states == [State.LOADING]
        assert live.request("GET", "/ready").status == 200


def test_a_model_that_gives_no_token_is_never_ready(tokenizer):
    class Broken(SlowModel):
        def step(self, rows, *, width: int, draft: bool):
            return replace(super().step(rows, width=width, draft=draft), finite=np.zeros(len(rows), np.bool_))

    with serve(tokenizer, Broken) as live:
        assert live.request("GET", "/ready").status == 503
        assert live.request("GET", "/health").status == 503
    assert live.log == ["ended: The model was tried and gave no token. The checkpoint or the device is broken."]


def test_an_engine_without_a_listener_lets_failures_out():
    from specdecode.core.engine.engine import Engine

    def events(failures):
        engine = Engine(BreakingModel(Letters(), max_length=100, num_pages=200), failures=failures)
        for seed in (13, 1):
            engine.submit(Request(prompt=(4, 5), max_tokens=40, seed=seed, temperature=1.0))
        return list(engine.run())

    with pytest.raises(ValueError, match="thirteen"):
        events(None)
    heard: list[Exception] = []
    ends = [event for event in events(heard.append) if isinstance(event, FailedEvent | FinishedEvent)]
    assert [type(event) for event in ends] == [FailedEvent, FinishedEvent]
    assert len(heard) == 1
    assert len(ends[1].completion.tokens) == 40
