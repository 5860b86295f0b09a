"""From a body to requests of the engine, by the code that reads the rows of an OpenAI batch for `generate`."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from specdecode.core.engine.request import Request, sample_seed
from specdecode.core.errors import ModelError, SpecdecodeError
from specdecode.core.server.errors import ApiError
from specdecode.core.server.schema import ChatRequest, CompletionRequest, Sampling, options
from specdecode.core.text.chat_encoding import DEFAULT_EFFORT, ChatOptions
from specdecode.core.text.constraints import constraint
from specdecode.core.text.dialogue import Dialogue, in_reasoning
from specdecode.core.text.prompt import Prompt
from specdecode.core.text.prompt_rows import parse_row
from specdecode.core.text.row_options import RowError
from specdecode.core.text.tokenizer import TextTokenizer

DEFAULT_TEMPERATURE = 1.0
COMPLETION_TOKENS = 16
"""What a completion is given where it does not say, by OpenAI's API; a chat has what is left of the context."""
_T = TypeVar("_T")
_FIELDS = frozenset(f.name for f in fields(Request))


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One API request, ready for the engine.

    Attributes:
        requests: one a choice, in order: all samples of the first prompt, then those of the next.
        dialogue: what takes a chat's answers apart; None for texts.
        prompt_tokens: of all prompts together. tools: whether answers may call some.
        usage_chunk, trace: whether a stream ends with the usage, and says which tokens were drafted.
    """

    chat: bool
    requests: tuple[Request, ...]
    dialogue: Dialogue | None
    prompt_tokens: int
    tools: bool
    stream: bool
    usage_chunk: bool
    trace: bool

    @property
    def thinking(self) -> bool:
        """Whether answers begin inside the reasoning."""
        return self.dialogue is not None and self.dialogue.answers_thinking


@dataclass(frozen=True, kw_only=True)
class Translator:
    """What a request is checked against.

    Attributes:
        model: the name of the served model.
        max_length: prompt and output together. drafts: the most a round.
        most: answers that the server takes at a time.
        seeds: draws a seed for a request that has none.
    """

    model: str
    tokenizer: TextTokenizer
    max_length: int
    drafts: int
    most: int
    seeds: Callable[[], int] = lambda: secrets.randbelow(2**48)

    def chat(self, body: ChatRequest) -> Asked:
        """A conversation; see `_asked`."""
        said = options(body)
        prompt = self._row(said, "/v1/chat/completions")
        asked = prompt.options
        how = ChatOptions(thinking=bool(asked.get("thinking", True)), effort=_effort(asked))
        dialogue = self._refused(lambda: Dialogue(prompt, self.tokenizer, chat=True, options=how))
        ids = self._refused(dialogue.ids)
        return self._asked(body, said, prompt, [ids], dialogue)

    def completion(self, body: CompletionRequest) -> Asked:
        """Texts or tokens to continue; see `_asked`."""
        said = options(body)
        given = said["prompt"]
        many = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
        prompt = self._row({**said, "prompt": ""}, "/v1/completions")
        for name in ("thinking", "effort"):
            if name in prompt.options:
                raise ApiError(400, f"{name} belongs to conversations, and this is a text.", param=name)
        return self._asked(body, said, prompt, [self._ids(one) for one in many], None)

    def _ids(self, given: str | list[int]) -> list[int]:
        if isinstance(given, str):
            text = Prompt(text=given, origin="The prompt")
            return self._refused(Dialogue(text, self.tokenizer, chat=False).ids)
        beyond = next((token for token in given if token >= self.tokenizer.vocab_size), None)
        if beyond is not None:
            size = self.tokenizer.vocab_size
            raise ApiError(400, f"prompt holds the token {beyond}, and ids run below {size}.", param="prompt")
        if self.tokenizer.find_image(given):
            raise ApiError(400, "prompt holds an image placeholder; images are not supported.", param="prompt")
        return given

    def _row(self, said: Mapping[str, object], url: str) -> Prompt:
        body = {key: value for key, value in said.items() if key != "draft_tokens"}
        try:
            json.dumps(said, ensure_ascii=False).encode()
            return parse_row({"custom_id": "request", "url": url, "body": body}, "The request")
        except (UnicodeEncodeError, RecursionError):
            raise ApiError(400, "The body is nested too deeply, or holds half of a surrogate pair.") from None
        except RowError as error:
            raise _refusal(str(error), said) from None

    def _asked(
        self,
        body: Sampling,
        said: Mapping[str, object],
        prompt: Prompt,
        prompts: list[list[int]],
        talk: Dialogue | None,
    ) -> Asked:
        """Requests of all choices.

        Raises:
            ApiError: an option or a prompt is not possible.
        """
        self._check_model(body.model)
        n, seed = int(str(prompt.options.get("n", 1))), prompt.options.get("seed")
        if n * len(prompts) > self.most:
            raise ApiError(400, f"{n * len(prompts)} answers are more than this server takes at a time, {self.most}.")
        base = self.seeds() if seed is None else int(str(seed))
        requests = []
        for ids in prompts:
            first = self._refused(lambda ids=ids: self._request(ids, prompt.options, said, base, talk))  # type: ignore[misc]
            requests += [_sample(first, sample) for sample in range(n)]
        stream = body.stream_options
        return Asked(
            chat=talk is not None,
            requests=tuple(requests),
            dialogue=talk,
            prompt_tokens=sum(map(len, prompts)),
            tools=bool(prompt.tools),
            stream=bool(body.stream),
            usage_chunk=stream is not None and bool(stream.include_usage),
            trace=stream is not None and bool(stream.include_trace),
        )

    def _request(
        self, ids: list[int], asked: Mapping[str, object], said: Mapping[str, object], seed: int, talk: Dialogue | None
    ) -> Request:
        room = self.max_length - len(ids)
        if room < 1:
            raise ApiError(
                400,
                f"The prompt has {len(ids)} tokens, and the context of {self.max_length} (--max-length) has no room "
                "for it and one token of output.",
                param="prompt" if talk is None else "messages",
                code="context_length_exceeded",
            )
        drafts = said.get("draft_tokens")
        if isinstance(drafts, int) and drafts > self.drafts:
            raise ApiError(
                400, f"draft_tokens is {drafts}; this server drafts up to {self.drafts}.", param="draft_tokens"
            )
        given: dict[str, object] = {
            "max_tokens": room if talk is not None else COMPLETION_TOKENS,
            "temperature": DEFAULT_TEMPERATURE,
            **{key: value for key, value in asked.items() if key in _FIELDS},
        }
        self._check_tokens(asked)
        request = Request(
            **{  # type: ignore[arg-type]
                **given,
                "prompt": tuple(ids),
                "seed": seed,
                "stop_ids": self._stops(asked),
                "draft_tokens": self.drafts if drafts is None else drafts,
                "starts_thinking": in_reasoning(ids, self.tokenizer),
            }
        )
        # Compiled here, in a thread of its own, and kept; the engine, which all requests wait for, looks it up.
        constraint(
            self.tokenizer,
            grammar=request.grammar,
            thinking=request.starts_thinking,
            thinking_budget=request.thinking_budget,
            stop_ids=request.stop_ids,
        )
        return request

    def _stops(self, asked: Mapping[str, object]) -> frozenset[int]:
        given = asked.get("stop_token_ids", ())
        ends = () if asked.get("ignore_eos") else (self.tokenizer.eos,)
        return frozenset((*given, *ends))  # type: ignore[misc]

    def _check_tokens(self, asked: Mapping[str, object]) -> None:
        size = self.tokenizer.vocab_size
        for name in ("stop_token_ids", "logit_bias"):
            beyond = [t for t in asked.get(name, ()) if not 0 <= t < size]  # type: ignore[attr-defined]
            if beyond:
                raise ApiError(
                    400, f"{name} names the token {beyond[0]}, and ids run from 0 to {size - 1}.", param=name
                )

    def _check_model(self, name: str | None) -> None:
        if name not in (None, self.model):
            message = f"The model {name!r} does not exist; this server has {self.model!r}."
            raise ApiError(404, message, param="model", code="model_not_found")

    def _refused(self, action: Callable[[], _T]) -> _T:
        """Run, and turn what is wrong with the request into a refusal."""
        try:
            return action()
        except ModelError as error:
            raise ApiError(400, str(error), code="not_supported_by_model") from None
        except SpecdecodeError as error:
            raise ApiError(400, str(error)) from None


def _effort(asked: Mapping[str, object]) -> int:
    effort = asked.get("effort", DEFAULT_EFFORT)
    return effort if isinstance(effort, int) else DEFAULT_EFFORT


def _sample(first: Request, sample: int) -> Request:
    return replace(first, seed=sample_seed(first.seed, sample))


def _refusal(message: str, said: Mapping[str, object]) -> ApiError:
    """A row's message as ours: it begins with the field that it is about, if there is one."""
    words = re.match(r"[\w]+", message)
    param = words[0] if words is not None and words[0] in said else None
    return ApiError(400, f"{message.rstrip('.')}.", param=param)
