"""The prompts of one row, turn by turn: each answer becomes part of what the next turn is asked with."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from specdecode.core.errors import UsageError
from specdecode.core.text.answer import Answer, parse_answer
from specdecode.core.text.chat_encoding import ChatOptions, render
from specdecode.core.text.conversation import Message
from specdecode.core.text.markers import THINK, THINK_END
from specdecode.core.text.prompt import Prompt
from specdecode.core.text.prompts import encode_prompt
from specdecode.core.text.tokenizer import TextTokenizer


def in_reasoning(ids: Sequence[int], tokenizer: TextTokenizer) -> bool:
    """Whether a prompt ends inside the reasoning: of its markers the last is `<think>`."""
    markers = {name: token for token, name in tokenizer.added.items() if name in (THINK, THINK_END)}
    last = next((token for token in reversed(ids) if token in markers.values()), None)
    return last is not None and last == markers.get(THINK)


class Dialogue:
    """A conversation that goes on, or a text that is continued.

    Args:
        prompt: where it begins.
        chat: encode it as a conversation; otherwise what was said stands one behind the other, as it is.
        system: the system message of a conversation that has none.
        options: how to ask.

    Raises:
        UsageError: tools without chat.
    """

    def __init__(
        self,
        prompt: Prompt,
        tokenizer: TextTokenizer,
        *,
        chat: bool,
        system: str | None = None,
        options: ChatOptions | None = None,
    ) -> None:
        if prompt.tools and not chat:
            raise UsageError(f"{prompt.origin} has tools, and a prompt that is not encoded has no place for them.")
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._chat = chat
        self._options = options or ChatOptions()
        self._messages = list(prompt.messages) or [Message(role="user", content=prompt.text)]
        if system is not None and self._messages[0].role not in ("system", "developer"):
            self._messages.insert(0, Message(role="system", content=system))
        self._text = "".join(message.content for message in prompt.messages) or prompt.text
        self._later = deque(prompt.later)
        self._ids: list[int] | None = None
        self.said = prompt.text
        """What the current turn asks."""

    @property
    def chat(self) -> bool:
        """Whether it is encoded as a conversation."""
        return self._chat

    @property
    def more(self) -> bool:
        """Whether the user has something to say after the next answer."""
        return bool(self._later)

    @property
    def thinking(self) -> bool:
        """Whether the current turn's prompt ends inside the reasoning: of its markers the last is `<think>`."""
        return in_reasoning(self.ids(), self._tokenizer)

    @property
    def answers_thinking(self) -> bool:
        """Whether the current turn is a conversation's whose answer begins with reasoning."""
        last = self._messages[-1]
        return self._chat and self._options.thinking and not (last.prefix and bool(last.content))

    def ids(self) -> list[int]:
        """The prompt of the current turn.

        Raises:
            UsageError: it is no text or asks for an image.
            TokenizerError: the vocabulary has no markers for conversations.
        """
        if self._ids is None:
            self._ids = self._encode()
        return self._ids

    def answer(self, text: str) -> Answer | None:
        """An answer to the current turn, taken apart; None where nothing is encoded."""
        if not self._chat:
            return None
        return parse_answer(text, thinking=self.answers_thinking, tools=bool(self._prompt.tools))

    def take(self, text: str) -> None:
        """Go on to the next turn with this answer; `more` must hold."""
        answer, self.said = self.answer(text), self._later.popleft()
        if answer is not None:
            self._messages += [answer.message(), Message(role="user", content=self.said)]
        self._text += text + self.said
        self._ids = None

    def length(self, max_tokens: int) -> int:
        """Tokens that all turns together may take, generously: an answer is encoded anew in the next prompt."""
        later = sum(len(self._tokenizer.encode(text)) + 8 for text in self._later)
        return len(self.ids()) + later + max_tokens * (1 + 2 * len(self._later))

    def _encode(self) -> list[int]:
        text = Prompt(text=self._text, origin=self._prompt.origin)
        if not self._chat:
            return encode_prompt(text, self._tokenizer)
        try:
            "".join(message.content for message in self._messages).encode()
        except UnicodeEncodeError:
            raise UsageError(f"{self._prompt.origin} is not UTF-8 text.") from None
        return self._tokenizer.encode_pieces(render(self._messages, tools=self._prompt.tools, options=self._options))
