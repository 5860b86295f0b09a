"""Requests to a running server: OpenAI's completions and chat completions, streamed, and its counters."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from specdecode.core.bench import counters
from specdecode.core.bench.measure import Counts
from specdecode.core.errors import SpecdecodeError, UsageError

_TIMEOUT = 600.0  # seconds without a byte


class RefusedError(SpecdecodeError):
    """The server answered a request with an error."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One streamed answer. tokens: by the server's `usage`; first, last: seconds from sending to streamed text."""

    text: str
    finish_reason: str | None
    tokens: int
    first: float | None
    last: float | None


class Client:
    """A server.

    Args:
        base_url: with or without /v1 at its end.
        api_key: a bearer token, where the server wants one.

    Raises:
        UsageError: it is no http or https address.
    """

    def __init__(
        self, base_url: str, *, api_key: str | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UsageError(f"--base-url {base_url} is no address. Write it as http://127.0.0.1:8000.")
        self.base = base_url.rstrip("/").removesuffix("/v1")
        self._clock = clock
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def model(self) -> str:
        """The name of the first model that the server lists.

        Raises:
            SpecdecodeError: it cannot be reached or lists none.
        """
        with self._open("/v1/models") as response:
            content = _json(response.read(), f"{self.base}/v1/models")
        try:
            return str(content["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise SpecdecodeError(
                f"{self.base}/v1/models lists no model. Is this an OpenAI-compatible server?"
            ) from None

    def counters(self) -> Counts | None:
        """Its counters of speculation now; None where it has none.

        Raises:
            SpecdecodeError: it cannot be reached.
        """
        try:
            with self._open("/metrics") as response:
                return counters.parse(response.read().decode("utf-8", errors="replace"))
        except RefusedError:
            return None

    def complete(self, path: str, body: Mapping[str, object]) -> Answer:
        """Stream one answer to its end.

        Args:
            path: /v1/completions or /v1/chat/completions.

        Raises:
            RefusedError: the server refuses it. SpecdecodeError: it breaks off or does not say how many tokens it made.
        """
        start = self._clock()
        text, reason, tokens = "", None, None
        first = last = None
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with self._open(path, asked) as response:
            for event in self._events(response):
                if "error" in event:
                    raise RefusedError(f"{self.base} broke an answer off: {_message(event)}.")
                usage = event.get("usage")
                tokens = usage.get("completion_tokens", tokens) if isinstance(usage, dict) else tokens
                for choice in event.get("choices") or []:
                    piece = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
                    piece = piece or (choice.get("delta") or {}).get("reasoning_content") or ""
                    reason = choice.get("finish_reason") or reason
                    if piece:
                        last = self._clock() - start
                        first = last if first is None else first
                        text += piece
        if tokens is None:
            raise SpecdecodeError(
                f"{self.base} does not say how many tokens an answer has (stream_options.include_usage), so nothing "
                "can be measured."
            )
        return Answer(text=text, finish_reason=reason, tokens=int(tokens), first=first, last=last)

    def _events(self, response: HTTPResponse) -> Iterator[dict[str, Any]]:
        """The JSON of every server-sent event."""
        done = False
        try:
            for line in response:
                data = line.strip().removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
                done = done or data == b"[DONE]"
                if data and not done:
                    yield _json(data, self.base)
        except (OSError, HTTPException) as error:
            raise SpecdecodeError(f"{self.base} broke an answer off: {error}.") from None
        if not done:
            raise SpecdecodeError(f"{self.base} broke an answer off before its end ([DONE]).")

    def _open(self, path: str, body: Mapping[str, object] | None = None) -> HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, self._headers)
        try:
            response: HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            with error:
                content = error.read()
            raise RefusedError(f"{self.base}{path} answers {error.code}: {_message(_json(content, None))}.") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise SpecdecodeError(f"{self.base} cannot be reached: {reason}. Is the server running?") from None
        return response


def _json(content: bytes, place: str | None) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    if place is None:
        return {"error": content.decode("utf-8", errors="replace")[:200]}
    raise SpecdecodeError(f"{place} answers with what is no JSON object. Is this an OpenAI-compatible server?")


def _message(content: Mapping[str, Any]) -> str:
    error = content.get("error", content.get("message", content.get("detail", content)))
    return str(error.get("message", error) if isinstance(error, dict) else error).rstrip(".")
