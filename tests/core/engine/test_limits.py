"""top_k and top_p on toy models: speculation changes no token, and the law is the limited one, counted out exactly."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode.core.engine.engine import Engine
from specdecode.core.engine.request import FinishedEvent, Request, sample_seed
from tests.support import wrong
from tests.support.toy import Tables, ToyModel, limited

VOCAB = 7


def finish(model: ToyModel, requests: list[Request], **options) -> list[tuple[int, ...]]:
    engine = Engine(model, **options)
    ids = [engine.submit(r) for r in requests]
    done = {e.request_id: e.completion.tokens for e in engine.run() if isinstance(e, FinishedEvent)}
    return [done[i] for i in ids]


def plain(tables: Tables, r: Request) -> tuple[int, ...]:
    sampling = {"temperature": r.temperature, "top_k": r.top_k, "top_p": r.top_p}
    return tuple(tables.plain(r.prompt, r.max_tokens, seed=r.seed, **sampling))


def samples(n: int, seed: int, **options) -> list[Request]:
    return [Request(seed=sample_seed(seed, sample), **options) for sample in range(n)]


requests_strategy = st.lists(
    st.builds(
        samples,
        n=st.integers(1, 3),
        seed=st.integers(0, 5),
        prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6).map(tuple),
        max_tokens=st.integers(1, 14),
        temperature=st.sampled_from([0.0, 1e-6, 0.3, 1.0]),
        top_k=st.sampled_from([0, 1, 2, 3, VOCAB, 1000]),
        top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]),
        draft_tokens=st.integers(0, 5),
    ),
    min_size=1,
    max_size=3,
).map(lambda groups: [r for group in groups for r in group])


@settings(max_examples=250, deadline=None)
@given(requests=requests_strategy, agreement=st.sampled_from([0.0, 0.5, 1.0]), max_batch=st.integers(1, 4))
def test_speculative_equals_plain(requests, agreement, max_batch):
    tables = Tables.random(VOCAB, seed=3, agreement=agreement)
    assert finish(ToyModel(tables), requests, max_batch=max_batch) == [plain(tables, r) for r in requests]


def caught(model_type: type[ToyModel]) -> bool:
    """Whether a fixed set of combinations tells a model from its definition."""
    tables = Tables.random(VOCAB, seed=3, agreement=0.5)
    combinations = itertools.product([0.3, 1.0], [0, 2], [0.5, 1.0], range(4))
    requests = [
        Request(prompt=(1, 2), max_tokens=14, temperature=heat, top_k=k, top_p=p, seed=seed)
        for heat, k, p, seed in combinations
    ]
    return finish(model_type(tables), requests) != [plain(tables, r) for r in requests]


def test_wrong_limits_are_caught():
    assert not caught(ToyModel)
    assert caught(wrong.LimitsFirstRowOnly)
    assert caught(wrong.LimitsAtUnitTemperature)


def test_what_limits_nothing_changes_nothing_and_one_token_is_argmax():
    tables = Tables.random(VOCAB, seed=3)

    def tokens(**options):
        return finish(ToyModel(tables), [Request(**{"prompt": (1,), "max_tokens": 40, "temperature": 1.0, **options})])

    assert tokens() == tokens(top_k=VOCAB) == tokens(top_k=10**30, top_p=1.0) != tokens(top_k=2)
    assert tokens(top_k=1) == tokens(top_p=0.0) == tokens(temperature=0.0) != tokens()


def test_limits_keep_the_lower_id_of_equals_and_the_token_that_completes_the_mass():
    logits = np.log([0.1, 0.3, 0.3, 0.2, 0.1])

    def kept(temperature=1.0, top_k=0, top_p=1.0) -> list[int]:
        return np.flatnonzero(np.isfinite(limited(logits, temperature, top_k, top_p))).tolist()

    assert kept() == [0, 1, 2, 3, 4]
    assert (kept(top_k=1), kept(top_k=2), kept(top_k=4)) == ([1], [1, 2], [0, 1, 2, 3])
    assert (kept(top_p=0.0), kept(top_p=0.29), kept(top_p=0.31), kept(top_p=0.7)) == ([1], [1], [1, 2], [1, 2, 3])
    assert kept(top_k=2, top_p=0.45) == [1]  # of what top_k leaves, 1 has half
    assert kept(temperature=0.1, top_p=0.9) == [1, 2]


LAW_VOCAB, LENGTH, DRAWS = 4, 3, 2000
LIMITS = ({"top_k": 2}, {"top_p": 0.6}, {"top_k": 3, "top_p": 0.8})


def law(tables: Tables, temperature: float, **limits) -> dict[tuple[int, ...], float]:
    """The probability of every output, counted out."""
    paths = {(): 1.0}
    for _ in range(LENGTH):
        longer = {}
        for path, weight in paths.items():
            before, last = (0, 1, *path)[-2:]
            logits = limited(tables.target[before, last], temperature, limits.get("top_k", 0), limits.get("top_p", 1.0))
            chances = np.exp((logits - logits.max()) / temperature)
            for token in np.flatnonzero(chances):
                longer[(*path, int(token))] = weight * chances[token] / chances.sum()
        paths = longer
    return paths


def follows(model_type: type[ToyModel], **limits) -> bool:
    """A chi-square test of the outputs of many seeds at six standard deviations: 1e-8 that a right model fails."""
    tables = Tables.random(LAW_VOCAB, seed=5, agreement=0.5)
    model = model_type(tables, num_pages=256)
    requests = [Request(prompt=(1,), max_tokens=LENGTH, temperature=0.6, seed=seed, **limits) for seed in range(DRAWS)]
    seen = Counter(finish(model, requests, max_batch=16))
    expected = {path: DRAWS * chance for path, chance in law(tables, 0.6, **limits).items()}
    if not seen.keys() <= expected.keys():
        return False
    # Outputs that hardly ever come are counted together.
    rare = {path for path, count in expected.items() if count < 5}
    cells = [(seen[path], count) for path, count in expected.items() if path not in rare]
    cells.append((sum(seen[path] for path in rare), sum(expected[path] for path in rare)))
    statistic = sum((found - count) ** 2 / count for found, count in cells if count)
    freedom = len(cells) - 1
    return statistic < freedom + 6 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("limits", LIMITS)
def test_outputs_follow_the_limited_law(limits):
    assert follows(ToyModel, **limits)


@pytest.mark.parametrize(
    ("model_type", "limits"),
    [
        (wrong.LimitsFirstRowOnly, {"top_k": 2}),
        (wrong.LimitsFirstRowOnly, {"top_p": 0.6}),
        (wrong.LimitsAtUnitTemperature, {"top_p": 0.6}),
        (wrong.HotterThanAsked, {"top_k": 2}),
    ],
)
def test_a_wrong_law_is_caught(model_type, limits):
    assert not follows(model_type, **limits)


def test_samples_have_seeds_of_their_own():
    seeds = [sample_seed(seed, sample) for seed in range(50) for sample in range(20)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**48 for seed in seeds)
    assert [sample_seed(7, 0), sample_seed(0, 1)] == [7, 0xA93875FE509A]
