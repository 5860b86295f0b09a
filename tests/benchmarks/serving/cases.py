"""What clients ask for: seeded requests of every kind, whose answers never depend on who else asks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

PROMPTS = ("And God said", "def __init__(self,", "To be, or not to be", "The LORD is my shepherd;", "import os")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One request."""

    path: str
    body: dict[str, Any]

    def content(self, *, stream: bool) -> dict[str, Any]:
        """Its body, streamed as `vllm bench serve` does it, or whole."""
        if not stream:
            return self.body
        return {**self.body, "stream": True, "stream_options": {"include_usage": True}}


def cases() -> list[Case]:
    """Completions and chats, greedy and sampled, one or several answers, with stops, grammars, limits and penalties."""
    made = []
    for place, prompt in enumerate(PROMPTS):
        for seed in range(2):
            sampled = {"prompt": prompt, "seed": 10 * place + seed, "max_tokens": 16 + 8 * place}
            made += [
                {**sampled, "temperature": 0.0, "ignore_eos": True},
                {**sampled, "temperature": 1.0, "n": 1 + seed},
                {**sampled, "temperature": 0.8, "top_k": 40, "repetition_penalty": 1.2, "stop": ["\n", ". "]},
            ]
    made += [{"prompt": PROMPTS[0], "seed": 1, "guided_regex": "[0-9]{3} years", "max_tokens": 16}]
    found = [Case(path="/v1/completions", body=body) for body in made]
    for place, prompt in enumerate(PROMPTS):
        chat = {"messages": [{"role": "user", "content": prompt}], "seed": place, "max_tokens": 24, "temperature": 0.9}
        effort = {"reasoning_effort": "none"} if place % 2 else {"thinking_budget": 8}
        found.append(Case(path="/v1/chat/completions", body={**chat, **effort}))
    return found


def whole_answers(body: dict[str, Any]) -> list[str]:
    """What a response says, one text a choice, reasoning and reasons included; then what became of the drafts."""
    said = []
    for choice in sorted(body["choices"], key=lambda choice: choice["index"]):
        message = choice.get("message", {})
        parts = (message.get("reasoning_content", ""), message.get("content") or "", choice.get("text", ""))
        said.append("|".join((*parts, choice["finish_reason"])))
    return [*said, _acceptance(body["usage"])]


def _acceptance(usage: dict[str, Any]) -> str:
    """What became of the drafts: exactly the same each time, or acceptance has drifted."""
    told = usage["speculative"]
    return f"accepted {told['accepted_per_position']}, {told['proposed']} drafts in {told['rounds']} rounds"


class Streamed:
    """The same of a stream, from its events.

    Attributes:
        tokens: completion tokens by the usage at the end. done: whether the stream came to its end.
        error: what an error object said.
    """

    def __init__(self) -> None:
        self.tokens, self.done, self.error = 0, False, ""
        self._acceptance = ""
        self._parts: dict[int, list[str]] = {}
        self._reasons: dict[int, str] = {}

    def line(self, line: str) -> bool:
        """A line of the stream; whether it held text."""
        if line == "data: [DONE]":
            self.done = True
        if not line.startswith("data: {"):
            return False
        chunk = json.loads(line[6:])
        self.error = chunk.get("error", {}).get("message", self.error)
        usage = chunk.get("usage")
        if usage:
            self.tokens, self._acceptance = usage["completion_tokens"], _acceptance(usage)
        told = [self._choice(choice) for choice in chunk.get("choices", ())]
        return any(told)

    def answers(self) -> list[str]:
        """As `whole_answers`."""
        said = ["|".join((*self._parts[index], self._reasons.get(index, ""))) for index in sorted(self._parts)]
        return [*said, self._acceptance]

    def _choice(self, choice: dict[str, Any]) -> bool:
        parts = self._parts.setdefault(choice["index"], ["", "", ""])
        delta = choice.get("delta", {})
        new = (delta.get("reasoning_content", ""), delta.get("content", ""), choice.get("text", ""))
        for place, piece in enumerate(new):
            parts[place] += piece
        if choice["finish_reason"]:
            self._reasons[choice["index"]] = choice["finish_reason"]
        return any(new)
