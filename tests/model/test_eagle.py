"""The EAGLE drafter against another implementation, and its cache under prompt chunks and any acceptance."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from specdecode.core.engine.step import StepRow
from specdecode.core.kernels.settings import EXACT

DATA = Path(__file__).parents[1] / "data"
EXPECTED = json.loads((DATA / "eagle.json").read_text())
PAGES = tuple(range(8))


def row(model, ids, *, start=0, count=None, drafts=(), seed=0, temperature=0.0) -> StepRow:
    """Run `count` ids from `start` on; what stands behind them is known."""
    end = len(ids) if count is None else start + count
    return StepRow(
        tokens=ids[start:end],
        cache_length=start,
        pages=PAGES,
        draft_tokens=drafts,
        lookback=ids[max(0, start - model.lookback_length) : start],
        seed=seed,
        temperature=temperature,
        following=ids[end] if end < len(ids) else -1,
    )


def drafted(model, ids, cuts=(), **options):
    """The step behind a prompt that is run in chunks ending at `cuts`."""
    ends = [0, *cuts, len(ids)]
    result = None
    for start, end in pairwise(ends):
        result = model.step([row(model, ids, start=start, count=end - start, **options)], width=0, draft=True)
    return result


@pytest.fixture
def rounding(eagle, cpu_only, request):
    """Switches the model's own rounding on or off."""
    eagle._mode[EXACT] = int(request.param)
    yield request.param
    eagle._mode[EXACT] = 1


@pytest.mark.parametrize("name", ["short", "long"])
@pytest.mark.parametrize("rounding", [False, True], ids=["fp32", "exact"], indirect=True)
def test_drafts_are_those_of_the_trainer(eagle, rounding, name):
    """Without rounding logits agree to 5e-3 of a range of some 30; with it, as far as bfloat16's does. Tokens do."""
    kind = "exact" if rounding else "fp32"
    values = load_file(DATA / "eagle.safetensors")
    result = drafted(eagle, EXPECTED["prompts"][name])
    assert result.next_tokens.tolist() == [EXPECTED["next"][f"{kind}.{name}"]]
    assert result.next_draft_tokens[0].tolist() == values[f"{kind}.{name}.drafted"].tolist()
    error = np.abs(result.draft_logits() - values[f"{kind}.{name}.logits"])
    sure = np.abs(result.confidence[0] - values[f"{kind}.{name}.confidence"])
    assert error.max() < (1.5 if rounding else 5e-3)
    assert np.median(error) < (0.25 if rounding else 1e-3)
    assert sure.max() < (0.3 if rounding else 1e-3)


@pytest.mark.parametrize("cuts", [(1,), (19,), (64,), (89,), (7, 8, 40), tuple(range(1, 90))])
def test_drafts_do_not_depend_on_how_the_prompt_was_cut(eagle, cuts):
    ids = EXPECTED["prompts"]["long"]
    whole, cut = drafted(eagle, ids), drafted(eagle, ids, cuts)
    assert whole.draft_logits().tobytes() == cut.draft_logits().tobytes()
    assert whole.confidence.tobytes() == cut.confidence.tobytes()


def test_a_chunk_whose_next_token_is_unknown_is_noticed(eagle):
    """The wrong twin of the test above: the target's guess in place of the prompt's own token."""
    ids = EXPECTED["prompts"]["long"]
    whole = drafted(eagle, ids)
    eagle.step([StepRow(**{**vars(row(eagle, ids, count=88)), "following": -1})], width=0, draft=True)
    cut = eagle.step([row(eagle, ids, start=88)], width=0, draft=True)
    assert whole.draft_logits().tobytes() != cut.draft_logits().tobytes()


def test_the_cache_is_right_after_any_acceptance(eagle):
    """Rounds with 0 to 3 right drafts in turn: drafts are those of a fresh run over the text so far, bit for bit."""
    text = list(EXPECTED["prompts"]["short"])
    result = drafted(eagle, text)
    for turn in range(20):
        known = [int(result.next_tokens[0])]
        # What the target would say next, to make as many right drafts as this turn wants.
        wanted = turn % 4
        probe = text + known
        for _ in range(wanted):
            probe.append(int(drafted(eagle, probe).next_tokens[0]))
        drafted(eagle, text)
        right = probe[len(text) + 1 :]
        drafts = [*right, *[(2 + turn) % eagle.vocab_size] * (3 - wanted)]
        whole = text + known
        step = row(eagle, whole, start=len(text), drafts=drafts)
        result = eagle.step([step], width=3, draft=True)
        accepted = int(result.num_accepted[0])
        assert accepted >= wanted
        text = whole + drafts[:accepted]
        logits, confidence = result.draft_logits().copy(), result.confidence.copy()
        fresh = drafted(eagle, text)
        assert fresh.next_tokens.tolist() == result.next_tokens.tolist()
        assert fresh.draft_logits().tobytes() == logits.tobytes()
        assert fresh.confidence.tobytes() == confidence.tobytes()
