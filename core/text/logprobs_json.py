"""Log-probabilities in JSON: in our own shape, and in those of OpenAI's chats and completions."""

from __future__ import annotations

from collections.abc import Sequence

from specdecode.core.engine.logprobs import TokenLogprob
from specdecode.core.text.tokenizer import TextTokenizer


def listed(found: Sequence[TokenLogprob], tokenizer: TextTokenizer) -> list[dict[str, object]]:
    """One object a token, with the likeliest tokens in it; ids beside texts."""

    def named(token: int, logprob: float) -> dict[str, object]:
        return {"token": token, "text": tokenizer.decode([token]), "logprob": logprob}

    return [{**named(one.token, one.logprob), "top": [named(*other) for other in one.top]} for one in found]


def of_chat(found: Sequence[TokenLogprob], tokenizer: TextTokenizer) -> dict[str, object]:
    """`choices[].logprobs` of a chat completion."""

    def named(token: int, logprob: float) -> dict[str, object]:
        content = list(tokenizer.token_bytes(token))
        return {"token": tokenizer.decode([token]), "logprob": logprob, "bytes": content}

    return {
        "content": [
            {**named(one.token, one.logprob), "top_logprobs": [named(*other) for other in one.top]} for one in found
        ]
    }


def of_completion(found: Sequence[TokenLogprob], tokenizer: TextTokenizer) -> dict[str, object]:
    """`choices[].logprobs` of a completion; offsets count characters of the texts put together."""
    texts = [tokenizer.decode([one.token]) for one in found]
    offsets = [sum(map(len, texts[:place])) for place in range(len(texts))]
    return {
        "tokens": texts,
        "token_logprobs": [one.logprob for one in found],
        "top_logprobs": [{tokenizer.decode([token]): value for token, value in one.top} for one in found],
        "text_offset": offsets,
    }
