"""MAX's own server with this architecture: the tokens are those of `specdecode generate`, and its log knows acceptance.

Skipped where `max serve` itself is not installed (extra `max`).
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from typer.testing import CliRunner

from specdecode.cli.app import make_app
from specdecode.core.checkpoint.locate import preset_folders

pytest.importorskip("transformers", reason="max serve is not installed: pip install 'specdecode[max]'")
openai = pytest.importorskip("openai")

DEMO = preset_folders()["demo"]
READY_SECONDS = 180
OFFLINE = {"MAX_SERVE_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1"}


class Server:
    """`python -m specdecode.max_arch serve` on a free port, with all that it printed."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "specdecode.max_arch", "serve", "--model", str(DEMO), "--devices", "cpu"]
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port), "--max-batch-size", "4"],
            env=os.environ | OFFLINE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def wait(self) -> None:
        """Until it answers.

        Raises:
            AssertionError: it ended, or takes too long; with what it printed.
        """
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2):
                    return
            except OSError:
                time.sleep(0.5)
        raise AssertionError(f"no server after {READY_SECONDS} s:\n{self.log[-4000:]}")


@pytest.fixture(scope="module")
def server():
    running = Server()
    try:
        running.wait()
        yield running
    finally:
        running.process.send_signal(signal.SIGTERM)
        try:
            running.process.wait(30)
        except subprocess.TimeoutExpired:
            running.process.kill()


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)


def generated(prompt: str, *options: str) -> str:
    """What `specdecode generate` says."""
    result = CliRunner().invoke(make_app(panels=False), ["generate", "-p", prompt, "--quiet", *options])
    assert result.exit_code == 0, result.stderr
    return result.stdout.removesuffix("\n")


SAMPLED = {"temperature": 0.9, "top_p": 0.95, "frequency_penalty": 0.4, "seed": 7}
FLAGS = ["--temperature", "0.9", "--top-p", "0.95", "--frequency-penalty", "0.4", "--seed", "7"]


def complete(client, prompt: str, **options):
    return client.completions.create(model=str(DEMO), prompt=prompt, max_tokens=40, **options)


def test_completions_are_those_of_generate(client):
    prompt = "And God said, Let there be"
    greedy = complete(client, prompt, temperature=0).choices[0]
    assert greedy.text == generated(prompt, "--raw", "--max-tokens", "40", "--temperature", "0")
    assert greedy.finish_reason == "length"
    assert complete(client, prompt, **SAMPLED).choices[0].text == generated(
        prompt, "--raw", "--max-tokens", "40", *FLAGS
    )


def test_streams_are_the_same_text(client):
    prompt = "def main():"
    pieces = [part.choices[0].text for part in complete(client, prompt, stream=True, **SAMPLED) if part.choices]
    assert len(pieces) > 1
    assert "".join(pieces) == generated(prompt, "--raw", "--max-tokens", "40", *FLAGS)


@pytest.mark.parametrize("thinking", [False, True])
def test_conversations_are_encoded_as_the_model_was_trained(client, thinking):
    answer = client.chat.completions.create(
        model=str(DEMO),
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me of Moses."}],
        max_tokens=40,
        temperature=0,
        extra_body={"chat_template_kwargs": {"thinking": thinking}},
    )
    flag = "--thinking" if thinking else "--no-thinking"
    options = ["--chat", flag, "--system", "Be brief.", "--max-tokens", "40", "--temperature", "0"]
    assert answer.choices[0].message.content == generated("Tell me of Moses.", *options)


def test_requests_together_are_requests_alone(client):
    prompts = [f"And God said unto Moses, {number}" for number in range(9)]
    with ThreadPoolExecutor(9) as pool:
        together = list(pool.map(lambda prompt: complete(client, prompt, **SAMPLED).choices[0].text, prompts))
    assert together == [complete(client, prompt, **SAMPLED).choices[0].text for prompt in prompts]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"logprobs": 2}, "logprobs is not supported"), ({"extra_body": {"prompt": [0] * 3000}}, "3000")],
)
def test_what_is_not_possible_is_a_400(client, options, message):
    with pytest.raises(openai.BadRequestError, match=message):
        complete(client, "x", **options)
    assert complete(client, "And God said", temperature=0).choices[0].text


def test_tools_are_refused(client):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    with pytest.raises(openai.BadRequestError, match="tools is not supported"):
        client.chat.completions.create(model=str(DEMO), messages=[{"role": "user", "content": "x"}], tools=[tool])


def test_the_log_knows_acceptance(server, client):
    """MAX prints one batch every few seconds, with its drafts."""
    end = time.monotonic() + 60
    accepted = 0
    while not accepted and time.monotonic() < end:
        client.completions.create(model=str(DEMO), prompt="And God said", max_tokens=300, temperature=0)
        found = re.findall(r"Draft Tokens: (\d+)/(\d+) .* accepted, Acceptance Len: [\d.]+ / 5 toks", server.log)
        assert all(int(some) <= int(drafted) for some, drafted in found)
        accepted = sum(int(some) for some, _ in found)
    assert accepted, server.log[-2000:]
