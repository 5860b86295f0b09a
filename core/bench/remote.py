"""Modes that decode on a running server, which is asked for each by a field of the request."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from specdecode.core.bench.client import Answer, Client, RefusedError
from specdecode.core.bench.counters import growth
from specdecode.core.bench.measure import Played, Reply, Run
from specdecode.core.bench.plan import Mode
from specdecode.core.text.prompt import Prompt

FIELD = "draft_tokens"
"""The field that asks for a draft width, 0 for plain decoding; a server that does not know it decodes as ever."""
_PROBE = {"prompt": "The quick brown fox jumps over the lazy dog. The quick brown fox", "max_tokens": 24}
_SAME_NAMES = ("max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty",
               "frequency_penalty", "presence_penalty", "stop_token_ids", "ignore_eos")  # fmt: skip


class RemoteArm:
    """An `Arm` on a server; prompts that start together are so many requests at once.

    Args:
        options: fields of every request; a prompt's own go before them.
    """

    def __init__(
        self,
        mode: Mode,
        client: Client,
        *,
        model: str,
        options: Mapping[str, object],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.mode = mode
        self._client, self._clock = client, clock
        self._fixed = {"model": model, **options, **({} if mode.width == "default" else {FIELD: mode.width})}

    def start(self) -> None:
        """Nothing to forget here; what the server remembers is its own."""

    def run(self, prompts: Sequence[Prompt]) -> Run:
        """Answer prompts that start together."""
        before = self._client.counters()
        start = self._clock()
        with ThreadPoolExecutor(len(prompts)) as pool:
            played = tuple(pool.map(self._play, prompts))
        seconds = self._clock() - start
        after = self._client.counters()
        counts = None if before is None or after is None else growth(before, after)
        return Run(seconds=seconds, played=played, counts=counts)

    def _play(self, prompt: Prompt) -> Played:
        options = {name: value for name, value in prompt.options.items() if name in _SAME_NAMES}
        if prompt.options.get("stop"):
            options["stop"] = list(prompt.options["stop"])  # type: ignore[call-overload]
        body = {**self._fixed, **options}
        messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
        replies: list[Reply] = []
        try:
            if not messages:
                return Played(
                    replies=(_reply(self._client.complete("/v1/completions", {**body, "prompt": prompt.text})),)
                )
            for said in (None, *prompt.later):
                if said is not None:
                    messages.append({"role": "user", "content": said})
                answer = self._client.complete("/v1/chat/completions", {**body, "messages": messages})
                messages.append({"role": "assistant", "content": answer.text})
                replies.append(_reply(answer))
        except RefusedError as error:
            return Played(replies=tuple(replies), error=str(error))
        return Played(replies=tuple(replies))


def plain_is_possible(client: Client, model: str) -> str | None:
    """Why a server's plain decoding cannot be measured; None where it can.

    It is asked for one answer without drafts, and its counters must not move meanwhile.
    """
    before = client.counters()
    if before is None:
        return "its /metrics has no counters of speculation, so nobody could tell whether it drafts"
    try:
        client.complete("/v1/completions", {"model": model, "temperature": 0, **_PROBE, FIELD: 0})
    except RefusedError as error:
        return f"it refuses {FIELD}: {error}"
    after = client.counters()
    if after is None or growth(before, after).drafts:
        return f"it drafted although {FIELD} was 0, so it does not know that field"
    return None


def _reply(answer: Answer) -> Reply:
    spread = None if answer.first is None or answer.last is None else answer.last - answer.first
    return Reply(
        output=(answer.text, answer.finish_reason),
        tokens=answer.tokens,
        first_token=answer.first,
        per_token=None if spread is None or answer.tokens < 2 else spread / (answer.tokens - 1),
    )
