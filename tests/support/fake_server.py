"""An OpenAI-compatible server of a few lines that recites a text, with vLLM's counters, and with faults to choose."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORDS = ("in ", "the ", "beginning ", "was ")
DRAFTS = 3


@dataclass(kw_only=True)
class Faults:
    """What the server does wrong.

    Attributes:
        knows_field: it decodes plainly where `draft_tokens` is 0. refuses_field: it answers 400 to that field.
        counts: it has counters. usage: it says how many tokens an answer has. whole: answers end with [DONE].
        honest: its text does not depend on drafting. key: a bearer token that it wants.
        restarts: its counters begin anew with every request.
    """

    knows_field: bool = True
    refuses_field: bool = False
    counts: bool = True
    usage: bool = True
    whole: bool = True
    honest: bool = True
    restarts: bool = False
    key: str | None = None


@dataclass
class State:
    """What has been asked for: bodies by path, and the counters."""

    faults: Faults
    asked: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    counters: list[int] = field(default_factory=lambda: [7, 21, 14, 7, 7, 0])  # earlier traffic, not ours
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def fake_server(faults: Faults) -> Iterator[tuple[str, State]]:
    """Its address and what it was asked for."""
    state = State(faults)
    handler = type("Handler", (_Handler,), {"state": state})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", state
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    state: State

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/metrics" and self.state.faults.counts:
            self._send(200, _metrics(self.state.counters).encode(), "text/plain")
        elif self.path == "/v1/models" and self._allowed():
            self._send(200, json.dumps({"data": [{"id": "fake-model"}]}).encode())
        else:
            self._refuse(401 if self.path == "/v1/models" else 404, "no")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        faults = self.state.faults
        with self.state.lock:
            self.state.asked.append((self.path, body))
        if faults.refuses_field and "draft_tokens" in body:
            self._refuse(400, "Extra inputs are not permitted: draft_tokens")
            return
        if body.get("prompt") == "bad":
            self._refuse(422, "this prompt is bad")
            return
        asked = body.get("draft_tokens", DRAFTS) if faults.knows_field else DRAFTS
        words = [WORDS[place % len(WORDS)] for place in range(body["max_tokens"])]
        if asked and not faults.honest:
            words[-1] = "lie "
        self._count(len(words), asked)
        self._stream(words, chat=self.path.endswith("chat/completions"))

    def _count(self, tokens: int, width: int) -> None:
        """A round accepts one draft of `width`, and so gives two tokens."""
        with self.state.lock:
            if self.state.faults.restarts:
                self.state.counters[:] = [0] * 6
            if width:
                rounds = tokens // 2
                for place, grown in enumerate((rounds, rounds * width, rounds, rounds, 0, 0)):
                    self.state.counters[place] += grown

    def _stream(self, words: list[str], *, chat: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for word in words:
            self._event({"choices": [{"delta": {"content": word}} if chat else {"text": word}]})
        self._event({"choices": [{"text": "", "delta": {}, "finish_reason": "length"}]})
        if self.state.faults.usage:
            self._event({"choices": [], "usage": {"completion_tokens": len(words)}})
        if self.state.faults.whole:
            self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, content: object) -> None:
        self.wfile.write(b"data: " + json.dumps(content).encode() + b"\n\n")

    def _allowed(self) -> bool:
        key = self.state.faults.key
        return key is None or self.headers.get("Authorization") == f"Bearer {key}"

    def _refuse(self, code: int, message: str) -> None:
        self._send(code, json.dumps({"error": {"message": message}}).encode())

    def _send(self, code: int, content: bytes, kind: str = "application/json") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _metrics(counters: list[int]) -> str:
    drafts, proposed, accepted, *positions = counters
    lines = ["# TYPE vllm:requests_running gauge", "vllm:requests_running 0.0"]
    for name, value in (("drafts", drafts), ("draft_tokens", proposed), ("accepted_tokens", accepted)):
        lines += [f"# TYPE vllm:spec_decode_num_{name} counter"]
        lines += [f'vllm:spec_decode_num_{name}_total{{engine="0"}} {float(value)}']
    lines += ["# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter"]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{place}"}} {float(value)}'
        for place, value in enumerate(positions)
    ]
    return "\n".join(lines) + "\n"
