"""MAX's tokenizer with this project's own encoding of prompts and conversations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from max.pipelines.context import InputError, PromptTooLongError, TextContext
from max.pipelines.lib.tokenizer import TextTokenizer
from numpy.typing import NDArray

from specdecode.core.errors import SpecdecodeError
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.text import tokenizer as own
from specdecode.core.text.chat_encoding import ChatOptions, parse_effort, render
from specdecode.core.text.conversation import parse_messages
from specdecode.core.text.prompt import Prompt
from specdecode.core.text.prompts import encode_prompt

_TEMPLATE_OPTIONS = ("thinking", "enable_thinking", "effort", "reasoning_effort", "add_generation_prompt")


class ConversationTokenizer(TextTokenizer):  # type: ignore[misc]
    """Encodes prompts as `specdecode generate` does, and `messages` as V4.1 was trained with, which is no template."""

    def __init__(self, model_path: str, pipeline_config: Any, **options: Any) -> None:
        super().__init__(model_path, pipeline_config, **options)
        folder = Path(model_path)
        self._own = own.TextTokenizer.of(folder, DeepseekV41Config.from_json(folder))

    async def _generate_prompt_and_token_ids(
        self,
        prompt: Sequence[int] | str | None,
        messages: list[Any],
        tools: list[Any] | None = None,
        **options: Any,
    ) -> tuple[str | list[int], NDArray[np.int64]]:
        """The ids of a prompt or a conversation.

        Raises:
            InputError: a message or an option that is not possible. PromptTooLongError: no room for an answer.
        """
        try:
            if isinstance(prompt, str):
                ids = encode_prompt(Prompt(text=prompt, origin="prompt"), self._own)
            elif prompt is not None:
                ids = list(prompt)
            else:
                ids = self._conversation([message.flatten_content() for message in messages], options)
        except SpecdecodeError as error:
            raise InputError(str(error)) from None
        if self.max_length and len(ids) >= self.max_length:
            raise PromptTooLongError(len(ids), self.max_length)
        return prompt if isinstance(prompt, str) else ids, np.array(ids, np.int64)

    def _conversation(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> list[int]:
        unknown = [name for name in options if name not in _TEMPLATE_OPTIONS]
        if unknown:
            raise InputError(f"chat_template_kwargs {unknown[0]} is not possible: thinking and effort are")
        thinking = bool(options.get("thinking", options.get("enable_thinking", ChatOptions().thinking)))
        effort = options.get("effort", options.get("reasoning_effort", ChatOptions().effort))
        known = parse_messages([{k: v for k, v in message.items() if v is not None} for message in messages])
        pieces = render(known, options=ChatOptions(thinking=thinking, effort=parse_effort(effort)))
        return self._own.encode_pieces(pieces)

    async def new_context(self, request: Any) -> TextContext:
        """MAX's context, after refusing what the pipeline would have to ignore.

        Raises:
            InputError: log-probabilities, tools or structured output are asked for.
        """
        form = request.response_format
        asked = {
            "logprobs": bool(request.logprobs),
            "tools": bool(request.tools),
            "response_format": form is not None and bool(form.json_schema or form.grammar),
        }
        for name, wanted in asked.items():
            if wanted:
                raise InputError(f"{name} is not supported under max serve; specdecode serve-local has it")
        return await super().new_context(request)
