"""One prompt: what to continue or to answer, where it came from, and what it asks for itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specdecode.core.text.conversation import Message, Tool


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A text to continue, or a conversation to answer.

    Attributes:
        text: the text as written, leading and trailing spaces included; of a conversation, its last message.
        origin: `FILE:LINE`, `stdin:LINE` or the option.
        messages: the conversation so far; empty for a text.
        later: what the user says next, each after the answer to what comes before.
        tools: functions that the model may call.
        options: by their names in `row_options.py`; they go before the options of the command line.
        custom_id: the identifier of a request of an OpenAI batch.
        metadata: other keys of the row, which go into the results.
    """

    text: str
    origin: str
    messages: tuple[Message, ...] = ()
    later: tuple[str, ...] = ()
    tools: tuple[Tool, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    custom_id: str | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)
