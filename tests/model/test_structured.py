"""Grammars, thinking budgets and edits at once on the embedded checkpoint: the same tokens at every draft width."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from specdecode.core.checkpoint.locate import preset_folders
from specdecode.core.engine.engine import Engine
from specdecode.core.engine.request import Completion, FinishedEvent, FinishReason, Request
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.text.grammar import Grammar
from specdecode.core.text.tokenizer import TextTokenizer

SCHEMA = {
    "type": "object",
    "properties": {"said": {"enum": ["light", "earth", "heaven"]}, "verse": {"type": "integer", "maximum": 99}},
    "required": ["said", "verse"],
    "additionalProperties": False,
}
GRAMMARS = {
    "schema": Grammar(kind="json_schema", text=json.dumps(SCHEMA)),
    "regex": Grammar(kind="regex", text=r"(yea|nay), [A-Z][a-z]{2,8}( and [A-Z][a-z]{2,8})?\."),
    "lark": Grammar(kind="lark", text='start: "And God " verb (" and " verb)*\nverb: "said" | "saw" | "made"'),
    "free": None,
}


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    folder = preset_folders()["demo"]
    return TextTokenizer.of(folder, DeepseekV41Config.from_json(folder))


@pytest.fixture(scope="module")
def requests(tokenizer) -> list[Request]:
    made = []
    for place, grammar in enumerate(GRAMMARS.values()):
        for temperature in (0.0, 1.0):
            made.append(
                Request(
                    prompt=tuple(tokenizer.encode("And God said, Let there be")),
                    max_tokens=48,
                    temperature=temperature,
                    seed=10 * place + int(temperature),
                    stop_ids=frozenset({tokenizer.eos}),
                    min_tokens=3,
                    grammar=grammar,
                    min_p=0.01,
                    repetition_penalty=1.1,
                    frequency_penalty=0.2,
                    logit_bias={tokenizer.encode(" light")[-1]: 1.5},
                    logprobs=1,
                )
            )
    return made


def run(model, tokenizer: TextTokenizer, requests: list[Request], width: int, **options) -> list[Completion]:
    engine = Engine(model, tokenizer=tokenizer, **options)
    ids = [engine.submit(replace(r, draft_tokens=width)) for r in requests]
    done = {e.request_id: e.completion for e in engine.run() if isinstance(e, FinishedEvent)}
    return [done[i] for i in ids]


@pytest.fixture(scope="module")
def plain(demo, tokenizer, requests) -> list[Completion]:
    return run(demo, tokenizer, requests, 0, max_batch=1)


@pytest.mark.parametrize(("width", "max_batch"), [(1, 8), (2, 3), (3, 8), (4, 1), (5, 8)])
def test_speculative_equals_plain(demo, tokenizer, requests, plain, width, max_batch):
    for one, other in zip(run(demo, tokenizer, requests, width, max_batch=max_batch), plain, strict=True):
        assert (one.tokens, one.text, one.reason, one.logprobs) == (
            other.tokens,
            other.text,
            other.reason,
            other.logprobs,
        )
    assert any(r.accepted for c in run(demo, tokenizer, requests, width) for r in c.rounds)


def test_what_has_ended_fits_its_grammar(requests, plain):
    ended = [(r.grammar, c.text) for r, c in zip(requests, plain, strict=True) if c.reason is FinishReason.STOP]
    assert sum(grammar is not None for grammar, _ in ended) >= 3
    for grammar, text in ended:
        if grammar is GRAMMARS["schema"]:
            content = json.loads(text)
            assert content["said"] in SCHEMA["properties"]["said"]["enum"]
            assert content["verse"] <= 99
        elif grammar is GRAMMARS["regex"]:
            assert re.fullmatch(grammar.text, text)
        elif grammar is GRAMMARS["lark"]:
            assert re.fullmatch(r"And God (said|saw|made)( and (said|saw|made))*", text)


@pytest.mark.parametrize("width", [0, 3, 5])
@pytest.mark.parametrize("budget", [0, 1, 4, 7])
def test_reasoning_ends_with_its_budget(demo, tokenizer, width, budget):
    end = tokenizer.backend.token_to_id("</think>")
    request = Request(
        prompt=tuple(tokenizer.encode("How old was Noah?")),
        max_tokens=40,
        temperature=1.0,
        seed=3,
        thinking_budget=budget,
        starts_thinking=True,
        grammar=Grammar(kind="regex", text="[0-9]{1,3} years"),
    )
    (done,) = run(demo, tokenizer, [request], width)
    assert done.tokens == run(demo, tokenizer, [request], 0)[0].tokens
    assert end in done.tokens[: budget + 1]
    behind = tokenizer.decode(done.tokens[done.tokens.index(end) + 1 :])
    assert re.fullmatch("[0-9]{1,3} years", behind)


def test_a_tight_grammar_costs_acceptance_and_nothing_else(demo, tokenizer, requests):
    """Drafts know nothing of the grammar; those that it forbids are not verified."""
    constrained = [r for r in requests if r.grammar is not None]
    rounds = [r for c in run(demo, tokenizer, constrained, 5) for r in c.rounds]
    assert all(0 <= r.accepted <= r.proposed <= 5 for r in rounds)
    assert any(r.proposed < 5 for r in rounds)
