"""/v1/completions and /v1/chat/completions through the official client, on the embedded checkpoint."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from specdecode.core.engine.request import sample_seed

PROMPT = "And God said"


def complete(live, **options):
    return live.client.completions.create(**{"model": "demo", "prompt": PROMPT, "max_tokens": 24, **options})


def streamed(live, **options):
    return list(complete(live, stream=True, **options))


def text(chunks, choice: int = 0) -> str:
    return "".join(c.text for chunk in chunks for c in chunk.choices if c.index == choice)


def test_a_completion(demo):
    made = complete(demo, temperature=0)
    [choice] = made.choices
    assert (made.object, made.model, choice.index, choice.finish_reason) == ("text_completion", "demo", 0, "length")
    assert choice.text.startswith(", I have not")
    assert (made.usage.prompt_tokens, made.usage.completion_tokens, made.usage.total_tokens) == (4, 24, 28)


def test_speculation_changes_no_answer(demo):
    """A wrong twin: another seed must give another text, or this would prove nothing."""
    for temperature in (0, 0.9):
        plain = complete(demo, temperature=temperature, seed=5, extra_body={"draft_tokens": 0})
        drafted = complete(demo, temperature=temperature, seed=5)
        assert plain.choices[0].text == drafted.choices[0].text
        assert plain.usage.speculative["rounds"] == 0 < drafted.usage.speculative["rounds"]
    assert complete(demo, temperature=0.9, seed=6).choices[0].text != drafted.choices[0].text


def test_usage_says_what_speculation_did(demo):
    usage = complete(demo, temperature=0, max_tokens=40).usage.speculative
    assert (usage["method"], usage["draft_tokens"]) == ("dspark", 5)
    assert 0 < usage["accepted"] <= usage["proposed"] <= 5 * usage["rounds"]
    assert sum(usage["accepted_per_position"]) == usage["accepted"]
    assert usage["accepted_per_position"] == sorted(usage["accepted_per_position"], reverse=True)
    assert usage["acceptance_rate"] == usage["accepted"] / usage["proposed"]
    assert usage["verify_seconds"] > 0 <= usage["draft_seconds"]  # on a busy machine the difference may drown
    assert usage["step_seconds"] == pytest.approx(usage["verify_seconds"] + usage["draft_seconds"])
    plain = complete(demo, temperature=0, extra_body={"draft_tokens": 0}).usage.speculative
    assert (plain["proposed"], plain["draft_seconds"], plain["steps"]) == (0, 0, 23)


def test_a_stream_says_the_same(demo):
    whole = complete(demo, temperature=0.8, seed=1)
    chunks = streamed(demo, temperature=0.8, seed=1, stream_options={"include_usage": True})
    assert text(chunks) == whole.choices[0].text
    assert [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason] == ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 24
    assert chunks[-1].usage.speculative["proposed"] == whole.usage.speculative["proposed"]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert streamed(demo, temperature=0.8, seed=1)[-1].choices[0].finish_reason == "length"


def test_samples_have_seeds_of_their_own(demo):
    made = complete(demo, temperature=1, seed=7, n=3)
    assert [c.seed for c in made.choices] == [sample_seed(7, place) for place in range(3)]
    assert len({c.text for c in made.choices}) == 3
    for choice in made.choices:
        assert complete(demo, temperature=1, seed=choice.seed).choices[0].text == choice.text
    chunks = streamed(demo, temperature=1, seed=7, n=3)
    assert [text(chunks, place) for place in range(3)] == [c.text for c in made.choices]
    assert made.usage.completion_tokens == 3 * 24


def test_a_seed_nobody_gave_is_reported_and_reproduces(demo):
    first, other = complete(demo, temperature=1), complete(demo, temperature=1)
    assert first.choices[0].seed != other.choices[0].seed
    assert complete(demo, temperature=1, seed=first.choices[0].seed).choices[0].text == first.choices[0].text
    assert streamed(demo, temperature=1)[-1].choices[0].seed is not None


def test_several_prompts_and_tokens(demo, demo_tokenizer):
    ids = demo_tokenizer.encode(PROMPT)
    both = complete(demo, prompt=[PROMPT, "Moses"], temperature=0, n=1)
    assert [c.index for c in both.choices] == [0, 1]
    assert both.choices[0].text == complete(demo, temperature=0).choices[0].text
    assert both.choices[1].text == complete(demo, prompt="Moses", temperature=0).choices[0].text
    assert complete(demo, prompt=ids, temperature=0).choices[0].text == both.choices[0].text
    assert len(complete(demo, prompt=[ids, ids], temperature=0).choices) == 2


def test_logprobs(demo):
    made = complete(demo, temperature=0, max_tokens=8, logprobs=2).choices[0]
    assert "".join(made.logprobs.tokens) == made.text
    assert all(value <= 0 for value in made.logprobs.token_logprobs)
    assert all(
        max(top.values()) == value
        for top, value in zip(made.logprobs.top_logprobs, made.logprobs.token_logprobs, strict=True)
    )
    chunks = [c for chunk in streamed(demo, temperature=0, max_tokens=8, logprobs=2) for c in chunk.choices]
    parts = [c.logprobs for c in chunks if c.logprobs]
    assert [t for part in parts for t in part.tokens] == made.logprobs.tokens
    assert [v for part in parts for v in part.token_logprobs] == made.logprobs.token_logprobs
    assert [v for part in parts for v in part.text_offset] == made.logprobs.text_offset
    chat = demo.client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Moses"}],
        max_tokens=4,
        logprobs=True,
        top_logprobs=1,
        temperature=0,
    )
    content = chat.choices[0].logprobs.content
    assert len(content) == 4
    assert content[0].top_logprobs[0].token == content[0].token


def test_stops(demo):
    whole = complete(demo, temperature=0, max_tokens=40).choices[0].text
    made = complete(demo, temperature=0, max_tokens=40, stop=["misery", "never"]).choices[0]
    assert (made.text, made.finish_reason) == (whole.partition("misery")[0], "stop")
    assert text(streamed(demo, temperature=0, max_tokens=40, stop="misery")) == made.text


def test_structured_output(demo):
    schema = {"type": "object", "properties": {"said": {"enum": ["light", "earth"]}}, "required": ["said"]}
    chat = demo.client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Moses"}],
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        reasoning_effort="none",
        seed=1,
    )
    assert json.loads(chat.choices[0].message.content)["said"] in ("light", "earth")
    made = complete(demo, extra_body={"guided_regex": "[0-9]{3} years"}).choices[0]
    assert re.fullmatch("[0-9]{3} years", made.text)
    assert made.finish_reason == "stop"


def test_chat_streams_what_it_answers(demo):
    asked = {
        "model": "demo",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Who?"}]},
        ],
        "max_completion_tokens": 24,
        "seed": 3,
        "temperature": 1,
        "n": 2,
    }
    whole = demo.client.chat.completions.create(**asked)
    chunks = list(demo.client.chat.completions.create(**asked, stream=True))
    for place, choice in enumerate(whole.choices):
        deltas = [c.delta for chunk in chunks for c in chunk.choices if c.index == place]
        assert deltas[0].role == "assistant"
        assert "".join(d.content or "" for d in deltas) == choice.message.content
        thought = "".join(getattr(d, "reasoning_content", None) or "" for d in deltas)
        assert thought == (getattr(choice.message, "reasoning_content", None) or "")


def test_the_trace_tells_tokens_apart(demo):
    chunks = streamed(demo, temperature=1, seed=2, max_tokens=60, stream_options={"include_trace": True})
    traces = [c.trace for chunk in chunks for c in chunk.choices if hasattr(c, "trace")]
    tokens = [token for trace in traces for token in trace["tokens"]]
    assert "".join(token["text"] for token in tokens) == text(chunks)
    assert len(tokens) == 60
    kinds = [token["kind"] for token in tokens]
    accepted = sum(trace["accepted"] for trace in traces)
    assert (kinds[0], kinds.count("accepted")) == (None, accepted)
    assert {"accepted", "corrected", "bonus"} <= set(kinds)


def test_no_tokens_asked_for(demo):
    made = complete(demo, max_tokens=0)
    assert (made.choices[0].text, made.choices[0].finish_reason, made.usage.completion_tokens) == ("", "length", 0)


def test_without_max_tokens(demo):
    assert demo.client.completions.create(model="demo", prompt=PROMPT, temperature=0).usage.completion_tokens == 16
    made = demo.client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "x"}], temperature=0, extra_body={"ignore_eos": True}
    )
    assert made.choices[0].finish_reason == "length"
    assert made.usage.total_tokens == 512


def test_many_at_once_say_what_each_says_alone(demo):
    asked = [
        {"seed": n, "temperature": n % 3 / 2, "prompt": f"{PROMPT} {n % 5}", "max_tokens": 4 + n} for n in range(12)
    ]
    alone = [complete(demo, **one).choices[0].text for one in asked]
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda one: complete(demo, **one).choices[0].text, asked))
    assert together == alone
    assert len(set(alone)) > 8
    demo.wait(demo.idle)


def test_models(demo):
    [model] = demo.client.models.list().data
    assert (model.id, model.max_model_len) == ("demo", 512)
    assert demo.client.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError, match="The model 'gpt-4' does not exist; this server has 'demo'"):
        demo.client.models.retrieve("gpt-4")
    with pytest.raises(openai.NotFoundError) as caught:
        complete(demo, model="gpt-4")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
