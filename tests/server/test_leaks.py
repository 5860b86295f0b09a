"""Nothing is left of a request once it has ended, however it did."""

from __future__ import annotations

import gc
import json
import socket
import struct
import tracemalloc
from itertools import pairwise

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from specdecode.core.server.calls import Call
from specdecode.core.server.connection import Connection
from tests.support.live import Live
from tests.support.reciting import Letters, chat_tokenizer
from tests.support.replies import write_chat_folder
from tests.support.toy import ToyModel

REQUESTS = 60
MOST = 100_000
"""Bytes that may be there more after a burst: some ten thousand come and go, and kept calls are 250 thousand."""


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    tokenizer = chat_tokenizer(write_chat_folder(tmp_path_factory.mktemp("chat")))
    with Live(model=ToyModel(Letters(), block_size=3, max_length=400, num_pages=2000), tokenizer=tokenizer) as live:
        yield live


def burst(live) -> None:
    """Answers, streams, refusals and clients that go away."""
    for number in range(REQUESTS):
        body = {"prompt": "x", "seed": number, "max_tokens": 6, "stream": number % 2 == 0}
        live.request("POST", "/v1/completions", json.dumps(body).encode())
        if number % 10 == 0:
            live.request("POST", "/v1/completions", b"{")
            leave(live)
    live.wait(live.quiet)
    live.model.steps.clear()  # the toy's own diary


def leave(live) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 300, "stream": True}).encode()
    head = ["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json"]
    with socket.create_connection(("127.0.0.1", live.port)) as raw:
        raw.sendall("\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body)
        raw.recv(10)


def growth(live) -> int:
    """Bytes of Python's own that every burst leaves behind: the least of three, as one may meet a cache that fills."""
    tracemalloc.start()
    try:
        sizes = []
        for _ in range(4):
            burst(live)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
        return min(after - before for before, after in pairwise(sizes))
    finally:
        tracemalloc.stop()


def test_memory_comes_back(live):
    assert growth(live) < MOST


def test_a_server_that_keeps_its_calls_would_be_noticed(live, monkeypatch):
    kept, make = [], Call.__init__

    def keeping(self, *arguments, **named):
        make(self, *arguments, **named)
        kept.append(self)

    monkeypatch.setattr(Call, "__init__", keeping)
    assert growth(live) > MOST


def connections(live) -> int:
    """Connections that are still in memory after clients have reset them, each with its answer complete."""
    for _ in range(10):
        body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
        head = ["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json"]
        with socket.create_connection(("127.0.0.1", live.port)) as raw:
            raw.sendall("\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body)
            answer = b""
            while not answer.endswith(b"}"):
                answer += raw.recv(1 << 16)
            live.wait(live.idle)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        live.wait(live.quiet)
    gc.collect()
    return sum(isinstance(known, H11Protocol) for known in gc.get_objects())


def test_a_connection_that_is_reset_is_forgotten(live):
    assert connections(live) <= 1  # the last one may still be in a frame of the event loop


def test_a_connection_that_is_kept_would_be_noticed(live, monkeypatch):
    monkeypatch.setattr(Connection, "connection_lost", H11Protocol.connection_lost)
    assert connections(live) > 5
