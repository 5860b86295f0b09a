"""`--draft-tokens auto` and `--confidence-threshold`: what they run and say; the text is always the same."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from specdecode.core.engine.costs import TRIALS
from specdecode.core.engine.step import StepResult
from tests.cli.conftest import timeless
from tests.cli.test_generate import SHIPPED, script_from, transcript
from tests.support.toy import ToyModel


class Doubtful(ToyModel):
    """Its drafter gives its drafts chances of 0.9, 0.6 and 0.2."""

    def step(self, rows, *, width, draft) -> StepResult:
        result = super().step(rows, width=width, draft=draft)
        chances = np.array([0.9, 0.6, 0.2], np.float32)[: result.confidence.shape[1]]
        return StepResult(**{**vars(result), "confidence": np.tile(np.log(chances / (1 - chances)), (len(rows), 1))})


@pytest.mark.parametrize(("threshold", "most"), [("0", 3), ("0.5", 2), ("0.7", 1), ("0.95", 0), ("1", 0)])
def test_drafts_from_the_first_doubtful_one_on_are_not_verified(specdecode, threshold, most):
    specdecode.model_type = Doubtful
    result = specdecode("generate", "-p", "one", "--max-tokens", "12", "--confidence-threshold", threshold, "--json")
    [answer] = json.loads(result.stdout)["results"]
    assert answer["text"] == script_from(4, 12)
    assert max(proposed for proposed, _, _ in answer["rounds"]) == most


def test_a_threshold_outside_0_to_1(specdecode):
    result = specdecode("generate", "-p", "x", "--confidence-threshold", "1.5")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: --confidence-threshold 1.5 is outside 0 to 1.\n"  # before anything is loaded


def test_a_transcript_with_a_threshold(specdecode):
    specdecode.model_type = Doubtful
    result = specdecode("generate", "-p", "one", "--max-tokens", "12", "--confidence-threshold", "0.7")
    assert (result.exit_code, result.stdout) == (0, script_from(4, 12) + "\n")
    assert timeless(result.stderr) == transcript(
        SHIPPED,
        "DSpark speculation, up to 3 drafts per round (dspark_block_size 3); a draft is accepted if it is the token "
        "that the target draws itself, keyed by seed and position",
        "1 prompt, 12 tokens, 5 rounds",
        "acceptance length 2.00 with bonus, 1.00 without; acceptance rate 100% (5 of 5 drafts)",
        "accepted at position k: 1: 100%",
        "  given those before:   1: 100%",
        "time to first token T s, time per output token T ms (medians)",
    )


def test_auto_measures_first_and_the_text_is_the_same(specdecode):
    arguments = ["generate", "-p", "one", "-p", "two", "--max-tokens", "40", "--batch-size", "2"]
    plain = specdecode(*arguments, "--no-speculation")
    auto = specdecode(*arguments, "--draft-tokens", "auto")
    assert (auto.exit_code, auto.stdout) == (0, plain.stdout)
    measured = [(rows, width) for rows, width, _ in specdecode.models[-1].steps[1 : 1 + 5 * (TRIALS + 1)]]
    assert measured == [(1, width) for _ in range(TRIALS + 1) for width in (0, 0, 1, 2, 3)]
    assert "2 prompts, 80 tokens" in auto.stderr
    shown = specdecode(*arguments, "--draft-tokens", "auto", "--show-config").stdout
    assert re.search(r"^draft_tokens +auto +--draft-tokens$", shown, flags=re.MULTILINE)


@pytest.mark.parametrize("length", ["1", "2", "3", "4", "8"])
def test_auto_where_the_caches_are_too_small_to_measure(specdecode, length):
    arguments = ["generate", "-p", "a", "--max-tokens", length]
    auto = specdecode(*arguments, "--draft-tokens", "auto")
    assert (auto.exit_code, auto.stdout) == (0, specdecode(*arguments, "--no-speculation").stdout)


@pytest.mark.parametrize("policy", [["--draft-tokens", "auto"], ["--confidence-threshold", "0.4"]])
def test_a_comparison_under_a_policy(specdecode, policy):
    specdecode.model_type = Doubtful
    result = specdecode("generate", "-p", "one", "-p", "two", "--max-tokens", "30", "--compare", "-q", *policy)
    assert (result.exit_code, "identical: 2/2 prompts" in result.stderr) == (0, True)


@pytest.mark.parametrize("policy", [["--draft-tokens", "auto"], ["--confidence-threshold", "0.5"]])
def test_the_embedded_checkpoint_under_a_policy(policy):
    from typer.testing import CliRunner

    from specdecode.cli.app import make_app

    arguments = ["generate", "-p", "And God said", "--max-tokens", "24", "--n", "2", "--top-p", "0.9", "--compare"]
    result = CliRunner().invoke(make_app(panels=False), [*arguments, *policy])
    assert result.exit_code == 0
    assert "DSpark speculation, up to 5 drafts per round" in result.stderr
    assert "1 prompt with 2 answers, " in result.stderr
    assert "identical: 2/2 samples" in result.stderr
