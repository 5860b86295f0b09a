"""`specdecode generate`, as transcripts."""

from __future__ import annotations

import io
import json
import sys

import numpy as np
import pytest

from specdecode.cli.generation import run
from specdecode.cli.settings import Settings
from specdecode.core.engine.step import StepResult
from specdecode.core.metrics import DEFINITIONS
from tests.cli.conftest import SCRIPT, Script, timeless
from tests.support.toy import ToyModel

SHIPPED = "graph step: 5 ops, shipped, not compiled (was 9 CPU-seconds)"


def transcript(*lines: str) -> str:
    """What standard error holds: these lines, then every definition."""
    defined = (f"  {term} = {meaning}" for term, meaning in DEFINITIONS.items())
    return "".join(f"{line}\n" for line in (*lines, *defined))


def script_from(position: int, count: int, text: str = SCRIPT) -> str:
    """What the scripted model writes on these positions, an unfinished character replaced."""
    whole = text.encode() * (1 + (position + count) // len(text.encode()))
    return whole[position : position + count].decode(errors="replace")


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\nthree33\n")
    return file


def test_a_file_of_prompts(specdecode, prompts):
    result = specdecode("generate", str(prompts), "--max-tokens", "12")
    assert result.exit_code == 0
    # BOS and three bytes are positions 0 to 3; the second prompt has BOS, "th" as one token and six bytes.
    assert result.stdout == script_from(4, 12) + "\n\n" + script_from(7, 12) + "\n"
    assert timeless(result.stderr) == transcript(
        SHIPPED,
        "DSpark speculation, up to 3 drafts per round (dspark_block_size 3); a draft is accepted if it "
        "is the "
        "token that the target draws itself, keyed by seed and position",
        "[1/2] one",
        "[2/2] three33",
        "2 prompts, 24 tokens, 7 rounds",
        "acceptance length 3.14 with bonus, 2.14 without; acceptance rate 83% (15 of 18 drafts)",
        "accepted at position k: 1: 86%  2: 83%  3: 80%",
        "  given those before:   1: 86%  2: 100%  3: 100%",
        "time to first token T s, time per output token T ms (medians)",
    )


def test_the_text_does_not_depend_on_how_it_is_made(specdecode, prompts):
    plain = specdecode("generate", str(prompts), "--no-speculation").stdout
    for options in (
        ["--draft-tokens", "1"],
        ["--draft-tokens", "3"],
        ["--batch-size", "1"],
        ["--draft-tokens", "0"],
    ):
        assert specdecode("generate", str(prompts), *options).stdout == plain
    assert len(plain) > 80


def test_plain_decoding_runs_no_drafter(specdecode):
    result = specdecode("generate", "-p", "x", "--max-tokens", "5", "--no-speculation")
    assert {(width, draft) for _, width, draft in specdecode.models[0].steps} == {(0, False)}
    assert timeless(result.stderr) == transcript(
        SHIPPED,
        "plain decoding, one token per step; draws are keyed by seed and position",
        "1 prompt, 5 tokens, 0 rounds",
        "time to first token T s, time per output token T ms (medians)",
    )


def test_standard_input(specdecode):
    result = specdecode("generate", "-", "--max-tokens", "3", "--quiet", stdin="ab\n")
    assert (result.stdout, result.stderr) == (script_from(3, 3) + "\n", "")


def test_quiet_says_nothing_on_standard_error(specdecode, prompts):
    assert specdecode("generate", str(prompts), "-q").stderr == ""


def test_no_tokens_wanted(specdecode):
    result = specdecode("generate", "-p", "x", "--max-tokens", "0")
    assert (result.exit_code, result.stdout) == (0, "\n")
    assert "speculation was on" not in result.stderr
    assert specdecode.models[0].steps == []


def test_speculation_without_a_round_is_said(specdecode):
    result = specdecode("generate", "-p", "x", "--max-tokens", "1")
    assert "speculation was on, but no round had a draft to verify: too few tokens were generated" in result.stderr
    assert "nan" not in result.stderr


def test_a_stop_token_ends_the_text(specdecode):
    specdecode.script = Script(SCRIPT, stop_at=9)
    result = specdecode("generate", "-p", "one", "--json")
    [answer] = json.loads(result.stdout)["results"]
    assert (answer["text"], answer["finish_reason"], len(answer["tokens"])) == (script_from(4, 5), "stop", 6)


def test_json(specdecode, prompts):
    result = specdecode("generate", str(prompts), "--max-tokens", "12", "--json", "-q")
    [line] = result.stdout.splitlines()
    content = json.loads(line)
    assert content.keys() == {"results", "interrupted", "statistics"}
    first = content["results"][0]
    assert first["time_to_first_token"] > 0
    assert first["time_per_output_token"] > 0
    timing = {"time_to_first_token", "time_per_output_token"}
    assert {k: v for k, v in first.items() if k not in timing} == {
        "prompt": "one",
        "origin": f"{prompts}:1",
        "sample": 0,
        "seed": 0,
        "text": script_from(4, 12),
        "tokens": [3 + b for b in (SCRIPT.encode() * 3)[4:16]],
        "finish_reason": "length",
        "stopped_by": None,
        "rounds": [[3, 3, 4], [3, 3, 4], [2, 2, 3]],
    }
    statistics = content["statistics"]
    assert statistics["tokens"] == 24
    assert statistics["acceptance"]["rounds"] == 7
    assert (
        statistics["acceptance"]["histogram"] == [1, 0, 1, 4, 0][:4] or sum(statistics["acceptance"]["histogram"]) == 7
    )
    assert statistics["definitions"] == DEFINITIONS


def test_json_without_a_round_has_no_nan(specdecode):
    content = json.loads(specdecode("generate", "-p", "x", "--max-tokens", "1", "--json").stdout)
    assert content["statistics"]["acceptance"]["length"] is None
    assert content["statistics"]["time_per_output_token"] is None


def test_what_is_asked_of_the_loader(specdecode, prompts):
    specdecode("generate", str(prompts), "--max-tokens", "20", "--devices", "gpu:0")
    specdecode("generate", str(prompts), "--max-tokens", "500", "--batch-size", "1")
    folder = specdecode.checkpoint
    assert specdecode.loads == [
        {"path": folder, "devices": "gpu:0", "data_parallel_degree": 1, "max_length": 27, "max_batch": 2},
        {"path": folder, "devices": "cpu", "data_parallel_degree": 1, "max_length": 128, "max_batch": 1},
    ]


def test_the_context_is_the_models(specdecode):
    [answer] = json.loads(specdecode("generate", "-p", "x", "--max-tokens", "500", "--json").stdout)["results"]
    assert (answer["finish_reason"], len(answer["tokens"])) == ("context", 126)


class Breaks(ToyModel):
    """The second request's logits are broken from its third step on."""

    def step(self, rows, *, width, draft) -> StepResult:
        result = super().step(rows, width=width, draft=draft)
        finite = [not (row.pages[0] > 0 and len(self.steps) > 2) for row in rows]
        return StepResult(**{**vars(result), "finite": np.array(finite)})


def test_a_broken_request_fails_alone(specdecode, prompts):
    specdecode.model_type = Breaks
    result = specdecode("generate", str(prompts), "--max-tokens", "12")
    assert result.exit_code == 1
    assert result.stdout == script_from(4, 12) + "\n"
    assert f"error: {prompts}:3: The model's logits after " in result.stderr
    assert "1 prompt, 12 tokens" in result.stderr


def test_a_broken_request_in_json(specdecode, prompts):
    specdecode.model_type = Breaks
    result = specdecode("generate", str(prompts), "--json", "-q")
    good, bad = json.loads(result.stdout)["results"]
    assert result.exit_code == 1
    assert "text" in good
    assert bad.keys() == {"prompt", "origin", "sample", "seed", "error"}


class Interrupts(ToyModel):
    """Ctrl-C after the seventh step."""

    def step(self, rows, *, width, draft) -> StepResult:
        if len(self.steps) == 7:
            raise KeyboardInterrupt
        return super().step(rows, width=width, draft=draft)


def test_ctrl_c_keeps_what_has_finished(specdecode, prompts):
    specdecode.model_type = Interrupts
    result = specdecode("generate", str(prompts), "--max-tokens", "12", "--batch-size", "1")
    assert result.exit_code == 130
    assert result.stdout == script_from(4, 12) + "\n"
    assert "interrupted: 1 of 2 prompts were finished\n1 prompt, 12 tokens" in result.stderr


def test_ctrl_c_in_json(specdecode, prompts):
    specdecode.model_type = Interrupts
    result = specdecode("generate", str(prompts), "--max-tokens", "12", "--batch-size", "1", "--json")
    content = json.loads(result.stdout)
    assert (result.exit_code, content["interrupted"]) == (130, True)
    assert content["results"][0]["text"] == script_from(4, 12)
    assert content["results"][1]["error"] == "interrupted"


class Screen(io.StringIO):
    """A terminal that notes what was written on it."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_text_as_it_comes(specdecode, monkeypatch):
    screen, seen = Screen(), []

    class Watches(ToyModel):
        def step(self, rows, *, width, draft) -> StepResult:
            seen.append(screen.getvalue())
            return super().step(rows, width=width, draft=draft)

    specdecode.model_type = Watches
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    given = {"max_tokens": 12, "temperature": 0.0}
    settings = Settings(texts=("one",), model=str(specdecode.checkpoint), draft_tokens=0, given=given)
    assert run(settings) == 0
    # The emoji takes four steps, of which the first three show nothing.
    assert seen[:6] == ["", "", "", "", "👍", "👍 "]
    assert screen.getvalue() == script_from(4, 12) + "\n"
