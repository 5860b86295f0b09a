"""The command itself: port, loading, readiness, signals and exit codes, in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from specdecode.core.checkpoint.locate import preset_folders

COMMAND = [sys.executable, "-m", "specdecode.cli", "serve-local"]


@contextmanager
def serving(*options: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address, as soon as the port is open."""
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    assert process.stderr is not None
    first = process.stderr.readline()
    try:
        yield process, first.split()[0]
    finally:
        process.kill()
        process.communicate()


def get(url: str, body: dict | None = None, **headers: str) -> tuple[int, dict, dict]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.loads(response.read()), dict(response.headers)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()), dict(error.headers)


def ended(process: subprocess.Popen[str], seconds: float = 15) -> tuple[int, str]:
    _, errors = process.communicate(timeout=seconds)
    assert "Traceback" not in errors
    return process.returncode, errors


class Stream(threading.Thread):
    """A streamed answer, read in a thread."""

    def __init__(self, address: str, **body: object) -> None:
        super().__init__()
        self.text, self.error, self.done = "", None, False
        self._began = threading.Event()
        content = {"prompt": "And God said", "temperature": 0, "stream": True, **body}
        headers = {"Content-Type": "application/json"}
        self._request = urllib.request.Request(f"{address}/v1/completions", json.dumps(content).encode(), headers)

    def run(self) -> None:
        with urllib.request.urlopen(self._request, timeout=60) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    chunk = json.loads(line[6:])
                    self.error = chunk.get("error", self.error)
                    self.text += "".join(choice["text"] for choice in chunk.get("choices", []))
                    self._began.set()
                self.done = self.done or line == b"data: [DONE]\n"

    def begin(self) -> None:
        self.start()
        assert self._began.wait(30)


def test_from_an_open_port_to_a_drained_end():
    with serving("--max-length", "1024") as (process, address):
        # The port answers at once, and says that there is no model yet.
        assert get(f"{address}/health")[:2] == (200, {"status": "loading"})
        status, body, headers = get(f"{address}/ready")
        assert (status, body["error"]["code"], headers["retry-after"]) == (503, "unavailable", "1")
        status, body, headers = get(f"{address}/v1/completions", {"prompt": "x"})
        assert (status, headers["retry-after"]) == (503, "1")
        assert "being loaded" in body["error"]["message"]
        assert process.stdout.readline() == f"{address}\n"
        assert get(f"{address}/ready")[:2] == (200, {"status": "ready"})
        whole = get(f"{address}/v1/completions", {"prompt": "And God said", "temperature": 0, "max_tokens": 500})[1]
        stream = Stream(address, max_tokens=500, draft_tokens=0)  # slow enough to be caught at it
        stream.begin()
        process.send_signal(signal.SIGTERM)
        while get(f"{address}/health")[1] != {"status": "draining"}:
            time.sleep(0.01)
        status, body, _ = get(f"{address}/v1/completions", {"prompt": "x"})
        assert (status, "is stopping" in body["error"]["message"]) == (503, True)
        stream.join(30)
        assert (stream.done, stream.error, stream.text) == (True, None, whole["choices"][0]["text"])
        code, errors = ended(process)
        assert code == 0
        assert "stopping; 1 answers have 30 s to finish" in errors


def test_answers_that_take_too_long_are_ended_with_a_message():
    with serving("--drain-timeout", "0") as (process, address):
        assert process.stdout.readline() == f"{address}\n"
        stream = Stream(address, max_tokens=2000)
        stream.begin()
        process.send_signal(signal.SIGTERM)
        stream.join(30)
        assert (stream.done, stream.error["code"]) == (True, "stopping")
        assert ended(process)[0] == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_while_it_loads(number, code):
    with serving() as (process, _):
        process.send_signal(number)
        assert ended(process)[0] == code


def test_a_port_that_is_taken_is_noticed_before_anything_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        start = time.monotonic()
        result = subprocess.run([*COMMAND, "--port", str(port)], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f"error: Port {port} of 127.0.0.1 cannot be opened: Address already in use. Stop what listens there, or choose "
        "another with --port; 0 takes any that is free.\n"
    )
    assert time.monotonic() - start < 10


def test_a_model_that_cannot_be_loaded(tmp_path):
    folder = shutil.copytree(preset_folders()["demo"], tmp_path / "broken")
    shard = folder / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:100_000])
    with serving(str(folder)) as (process, _):
        code, errors = ended(process)
    assert (code, errors.count("error: ")) == (3, 1)
    assert shard.name in errors


def test_the_key_from_the_environment():
    with serving(SPECDECODE_API_KEY="secret") as (_, address):
        assert get(f"{address}/v1/models")[0] == 401
        assert get(f"{address}/v1/models", Authorization="Bearer secret")[0] == 200
