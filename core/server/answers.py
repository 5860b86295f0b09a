"""Whole answers and chunks of streamed ones, in the shapes of OpenAI's API."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from specdecode.core.engine.request import Completion, FinishReason, TokensEvent
from specdecode.core.server.calls import Ended
from specdecode.core.server.chat_stream import ChatStream, Delta
from specdecode.core.server.translate import Asked
from specdecode.core.server.usage import UsageReport
from specdecode.core.text import logprobs_json
from specdecode.core.text.conversation import ToolCall
from specdecode.core.text.tokenizer import TextTokenizer


@dataclass(kw_only=True)
class Answers:
    """The answer of one API request.

    Attributes:
        asked: the request. model: the name of the model.
    """

    asked: Asked
    model: str
    tokenizer: TextTokenizer
    report: UsageReport
    created: int = field(default_factory=lambda: int(time.time()))
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:24])
    _streams: dict[int, ChatStream] = field(default_factory=dict)
    _offsets: dict[int, int] = field(default_factory=dict)
    _calls: dict[int, bool] = field(default_factory=dict)

    def whole(self, ended: Sequence[Ended]) -> dict[str, object]:
        """The response; one of `ended` for each choice, in any order."""
        kind = "chat.completion" if self.asked.chat else "text_completion"
        choices = [self._choice(one) for one in sorted(ended, key=lambda one: one.choice)]
        return {**self._head(kind), "choices": choices, "usage": self.report.of(self.asked, ended)}

    def begin(self) -> list[dict[str, object]]:
        """The chunks that open a stream: of a chat the role of each choice."""
        if not self.asked.chat:
            return []
        role = {"role": "assistant", "content": ""}
        return [self._chunk(choice, {"delta": role}) for choice in range(len(self.asked.requests))]

    def gained(self, choice: int, event: TokensEvent) -> dict[str, object] | None:
        """A choice's new tokens; None where there is nothing to say of them yet."""
        content: dict[str, object] = {"text": event.text}
        if self.asked.chat:
            content = self._delta(choice, self._stream(choice).feed(event.text))
        if self.asked.requests[choice].logprobs is not None:
            content["logprobs"] = self._logprobs(choice, event)
        if self.asked.trace:
            content["trace"] = _trace(event)
        if content in ({"delta": {}}, {"text": ""}):
            return None
        return self._chunk(choice, content)

    def ended(self, one: Ended) -> dict[str, object]:
        """The last chunk of a choice."""
        reason = _reason(one.completion)
        if not self.asked.chat:
            return self._chunk(one.choice, {"text": ""}, finish_reason=reason)
        content = self._delta(one.choice, self._stream(one.choice).finish())
        called = self._calls.get(one.choice, False) and reason == "stop"
        return self._chunk(one.choice, content, finish_reason="tool_calls" if called else reason)

    def usage(self, ended: Sequence[Ended]) -> dict[str, object]:
        """The chunk behind all choices."""
        kind = "chat.completion.chunk" if self.asked.chat else "text_completion"
        return {**self._head(kind), "choices": [], "usage": self.report.of(self.asked, ended)}

    def _head(self, kind: str) -> dict[str, object]:
        prefix = "chatcmpl" if self.asked.chat else "cmpl"
        return {"id": f"{prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model}

    def _chunk(self, choice: int, content: dict[str, object], finish_reason: str | None = None) -> dict[str, object]:
        kind = "chat.completion.chunk" if self.asked.chat else "text_completion"
        one = {"index": choice, **content, "finish_reason": finish_reason}
        one.setdefault("logprobs", None)
        if finish_reason is not None:
            one["seed"] = self.asked.requests[choice].seed
        empty = {"usage": None} if self.asked.usage_chunk else {}
        return {**self._head(kind), "choices": [one], **empty}

    def _choice(self, one: Ended) -> dict[str, object]:
        completion, request = one.completion, self.asked.requests[one.choice]
        reason, found = _reason(completion), completion.logprobs
        choice: dict[str, object] = {"index": one.choice, "seed": request.seed, "logprobs": None}
        if found is not None:
            shape = logprobs_json.of_chat if self.asked.chat else logprobs_json.of_completion
            choice["logprobs"] = shape(found, self.tokenizer)
        if self.asked.dialogue is None:
            return {**choice, "text": completion.text, "finish_reason": reason}
        answer = self.asked.dialogue.answer(completion.text)
        assert answer is not None  # a chat's is always taken apart
        message: dict[str, object] = {"role": "assistant", "content": answer.content}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            message["content"] = answer.content or None
            message["tool_calls"] = [self._call(one.choice, call) for call in answer.tool_calls]
        called = reason == "stop" and bool(answer.tool_calls)
        return {**choice, "message": message, "finish_reason": "tool_calls" if called else reason}

    def _delta(self, choice: int, delta: Delta) -> dict[str, object]:
        said: dict[str, object] = {}
        if delta.reasoning:
            said["reasoning_content"] = delta.reasoning
        if delta.content:
            said["content"] = delta.content
        if delta.tool_calls:
            calls = [self._call(choice, call) for call in delta.tool_calls]
            said["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls)]
            self._calls[choice] = True
        return {"delta": said}

    def _stream(self, choice: int) -> ChatStream:
        if choice not in self._streams:
            self._streams[choice] = ChatStream(thinking=self.asked.thinking, tools=self.asked.tools)
        return self._streams[choice]

    def _call(self, choice: int, call: ToolCall) -> dict[str, object]:
        """A call whose id nobody else's is, in this conversation or another."""
        function = {"name": call.function.name, "arguments": call.function.arguments}
        return {"id": f"{call.id}_{self.id}_{choice}", "type": "function", "function": function}

    def _logprobs(self, choice: int, event: TokensEvent) -> dict[str, object]:
        if self.asked.chat:
            return logprobs_json.of_chat(event.logprobs, self.tokenizer)
        made = logprobs_json.of_completion(event.logprobs, self.tokenizer)
        start = self._offsets.get(choice, 0)
        self._offsets[choice] = start + sum(len(self.tokenizer.decode([one.token])) for one in event.logprobs)
        return {**made, "text_offset": [start + offset for offset in made["text_offset"]]}  # type: ignore[attr-defined]


def _reason(completion: Completion) -> str:
    return "stop" if completion.reason is FinishReason.STOP else "length"


def _trace(event: TokensEvent) -> dict[str, object]:
    """A round, and what each of its tokens was; a token that only begins a character has no text yet."""
    tokens = [{"text": piece, "kind": event.kind(place)} for place, piece in enumerate(event.pieces)]
    return {"proposed": event.proposed, "accepted": event.drafted, "tokens": tokens}
