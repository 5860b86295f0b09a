"""Results of prompts as JSON: in our own shape, and as the responses of an OpenAI batch."""

from __future__ import annotations

import time
from collections.abc import Sequence

from specdecode.cli.jobs import Job
from specdecode.cli.passes import Outcome, Turn
from specdecode.core.engine.request import FinishReason
from specdecode.core.errors import UsageError
from specdecode.core.text import logprobs_json as logprobs
from specdecode.core.text.markers import THINK_END
from specdecode.core.text.tokenizer import TextTokenizer

FORMATS = ("auto", "results", "openai-batch")


def choose_format(asked: str, jobs: Sequence[Job]) -> str:
    """The shape of results; `auto` answers a batch as a batch.

    Raises:
        UsageError: the shape is unknown, or a batch was asked for and a prompt has no custom_id.
    """
    if asked not in FORMATS:
        raise UsageError(f"--output-format {asked} is not possible. Use {', '.join(FORMATS)}.")
    alone = next((job.prompt.origin for job in jobs if job.prompt.custom_id is None), None)
    if asked == "openai-batch" and alone is not None:
        raise UsageError(f"--output-format openai-batch needs a custom_id for every prompt, and {alone} has none.")
    return ("results" if alone is not None else "openai-batch") if asked == "auto" else asked


def result(job: Job, outcome: Outcome) -> dict[str, object]:
    """One prompt's result in our own shape."""
    content: dict[str, object] = {
        "prompt": job.prompt.text,
        "origin": job.prompt.origin,
        "sample": job.sample,
        "seed": job.first.seed,
    }
    if job.prompt.custom_id is not None:
        content["custom_id"] = job.prompt.custom_id
    if job.prompt.metadata:
        content["metadata"] = dict(job.prompt.metadata)
    if not outcome.done:
        return {**content, "error": outcome.error}
    turns = [_turn(turn, job.tokenizer) for turn in outcome.turns]
    if len(turns) == 1:
        return {**content, **turns[0]}
    return {**content, "turns": [{"prompt": t.said, **made} for t, made in zip(outcome.turns, turns, strict=True)]}


def line(jobs: Sequence[Job], outcomes: Sequence[Outcome], *, key: str, form: str, model: str) -> dict[str, object]:
    """A line of a results file: one job's, or in a batch those of all samples of a request; its `id` carries `key`."""
    if form == "results":
        return {"id": f"req_{key}", **result(jobs[0], outcomes[0])}
    head: dict[str, object] = {"id": f"batch_req_{key}", "custom_id": jobs[0].prompt.custom_id}
    failed = next((outcome.error for outcome in outcomes if not outcome.done), None)
    if failed is not None:
        return {**head, "response": None, "error": {"code": "request_failed", "message": failed}}
    body = _body(jobs, [outcome.turns[0] for outcome in outcomes], model)
    response = {"status_code": 200, "request_id": f"req_{key}", "body": {"id": f"req_{key}", **body}}
    return {**head, "response": response, "error": None}


def _turn(turn: Turn, tokenizer: TextTokenizer) -> dict[str, object]:
    completion = turn.completion
    content: dict[str, object] = {
        "text": completion.text,
        "tokens": list(completion.tokens),
        "finish_reason": completion.reason.value,
        "stopped_by": completion.stopped_by,
        "rounds": [[r.proposed, r.accepted, r.emitted] for r in completion.rounds],
        "time_to_first_token": completion.timing.first_token,
        "time_per_output_token": completion.timing.per_token,
    }
    if turn.answer is not None:
        content["message"] = turn.answer.message().as_json()
    if completion.logprobs is not None:
        content["logprobs"] = logprobs.listed(completion.logprobs, tokenizer)
    return content


def _body(jobs: Sequence[Job], turns: Sequence[Turn], model: str) -> dict[str, object]:
    """A chat completion, or a completion of a text, as OpenAI's API has it; one choice a sample."""
    prompt = jobs[0].prompt
    tokens = sum(len(turn.completion.tokens) for turn in turns)
    usage: dict[str, object] = {
        "prompt_tokens": turns[0].prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": turns[0].prompt_tokens + tokens,
    }
    if prompt.messages and turns[0].answer is not None:
        reasoning = sum(_reasoning_tokens(job, turn) for job, turn in zip(jobs, turns, strict=True))
        usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    kind = "chat.completion" if prompt.messages else "text_completion"
    choices = [_choice(job, turn) for job, turn in zip(jobs, turns, strict=True)]
    return {"object": kind, "created": int(time.time()), "model": model, "choices": choices, "usage": usage}


def _choice(job: Job, turn: Turn) -> dict[str, object]:
    completion, answer = turn.completion, turn.answer
    reason = "stop" if completion.reason is FinishReason.STOP else "length"
    made = None
    if completion.logprobs is not None:
        shape = logprobs.of_chat if job.prompt.messages else logprobs.of_completion
        made = shape(completion.logprobs, job.tokenizer)
    choice: dict[str, object] = {"index": job.sample, "logprobs": made}
    if not job.prompt.messages:
        return {**choice, "text": completion.text, "finish_reason": reason}
    if answer is None:
        return {**choice, "message": {"role": "assistant", "content": completion.text}, "finish_reason": reason}
    calls = reason == "stop" and bool(answer.tool_calls)
    return {**choice, "message": answer.message().as_json(), "finish_reason": "tool_calls" if calls else reason}


def _reasoning_tokens(job: Job, turn: Turn) -> int:
    """Tokens before `</think>`; all of them where it never came."""
    if turn.answer is None or turn.answer.reasoning is None:
        return 0
    end = job.tokenizer.backend.token_to_id(THINK_END)
    tokens = turn.completion.tokens
    return tokens.index(end) if end in tokens else len(tokens)
