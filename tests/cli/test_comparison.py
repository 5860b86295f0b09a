"""`generate --compare`, `--trace-tokens` and `--show-config`."""

from __future__ import annotations

import inspect
import io
import json
import re
import sys

import pytest

from specdecode.cli import trace
from specdecode.cli.comparison import Difference, Verdict
from specdecode.cli.generate import generate
from specdecode.cli.output import Output
from specdecode.cli.settings import FALLBACKS
from specdecode.core.engine.request import TokensEvent
from tests.cli.test_generate import Interrupts, script_from
from tests.support.byte_tokenizer import byte_id
from tests.support.toy import ToyModel


def verdict(result) -> list[str]:
    return [line for line in result.stderr.splitlines() if re.match("identical|first difference|speed-up", line)]


def test_the_same_tokens(specdecode):
    result = specdecode("generate", "-p", "one", "-p", "two", "--max-tokens", "12", "--compare", "-q")
    assert result.exit_code == 0
    assert result.stdout == script_from(4, 12) + "\n\n" + script_from(4, 12) + "\n"
    same, speed = verdict(result)
    assert same == "identical: 2/2 prompts"
    number = r"\d+\.\d+"
    assert re.fullmatch(rf"speed-up: {number} \(plain {number} tokens/s, speculative {number} tokens/s\)", speed)
    # Warm-up, then everything without drafts, then everything with them.
    widths = [width for _, width, _ in specdecode.models[0].steps]
    assert widths.count(3) > 1
    assert len(specdecode.models) == 1


class Wrong(ToyModel):
    """The mistake to catch: late rounds end with a letter that the target did not draw."""

    def _corrected(self, row, token, position, *, rejected):
        return byte_id(ord("X")) if row.draft_tokens and position > 8 else token


def test_a_difference_is_said_and_has_its_exit_code(specdecode):
    specdecode.model_type = Wrong
    result = specdecode("generate", "-p", "one", "--max-tokens", "12", "--compare", "--draft-tokens", "2", "-q")
    assert result.exit_code == 5
    lines = verdict(result)
    assert lines[0] == "identical: 0/1 prompts"
    # The first round that ends behind position 8 ends with position 11, which is output token 7.
    letter = script_from(11, 1)
    assert lines[1] == f"first difference: -p, output token 7: plain {byte_id(ord(letter))} {letter!r}, " + (
        f"speculative {byte_id(ord('X'))} 'X'"
    )


def test_the_margin_of_a_difference_is_that_of_plain_decoding(specdecode):
    """The toy's logits are a hundredth apart."""
    specdecode.model_type = Wrong
    arguments = ["generate", "-p", "one", "--max-tokens", "12", "--compare", "--draft-tokens", "2", "-q"]
    (said,) = [line for line in specdecode(*arguments).stderr.splitlines() if line.startswith("margin")]
    assert said == "margin: plain decoding's two likeliest tokens differ there by 0.01 in log p"
    verdict = Verdict(
        what="prompts",
        compared=1,
        identical=0,
        difference=Difference(origin="-p", sample=0, turn=0, position=3, plain=4, speculative=5, margin=2e-4),
        tokens=0,
        seconds=(0.0, 0.0),
    )
    assert verdict.lines(str)[-1].endswith("differ there by 0.0002 in log p, as good as a tie")


def test_a_difference_in_json(specdecode):
    specdecode.model_type = Wrong
    arguments = ["-p", "one", "--max-tokens", "12", "--compare", "--draft-tokens", "2", "--json", "-q"]
    result = specdecode("generate", *arguments)
    content = json.loads(result.stdout)["comparison"]
    assert result.exit_code == 5
    assert (content["compared"], content["identical"], content["tokens"]) == (1, 0, 12)
    assert content["first_difference"]["position"] == 7
    assert content["speed_up"] == pytest.approx(content["seconds"]["plain"] / content["seconds"]["speculative"])


class InterruptsAtOnce(ToyModel):
    """Ctrl-C while it warms up; later steps would run."""

    def step(self, rows, *, width, draft):
        if len(self.steps) == 1:
            self.steps.append((0, 0, False))
            raise KeyboardInterrupt
        return super().step(rows, width=width, draft=draft)


@pytest.mark.parametrize("model_type", [Interrupts, InterruptsAtOnce])
def test_a_comparison_that_is_interrupted(specdecode, model_type):
    specdecode.model_type = model_type
    result = specdecode("generate", "-p", "one", "--max-tokens", "12", "--compare")
    assert result.exit_code == 130
    assert "identical: 0/0 prompts" in result.stderr
    assert "speed-up" not in result.stderr


@pytest.mark.parametrize("option", [["--no-speculation"], ["--draft-tokens", "0"]])
def test_plain_decoding_has_nothing_to_compare(specdecode, option):
    result = specdecode("generate", "-p", "x", "--compare", *option)
    assert (result.exit_code, "--compare runs with and without speculation" in result.stderr) == (2, True)


def event(pieces: list[str], drafted: int, proposed: int) -> TokensEvent:
    return TokensEvent(
        request_id=0, tokens=(7,) * len(pieces), drafted=drafted, proposed=proposed, pieces=tuple(pieces)
    )


@pytest.mark.parametrize(
    ("pieces", "drafted", "proposed", "marked"),
    [
        (["a", "b", "c"], 2, 3, "[a][b][!c]"),
        (["a", "b", "c"], 2, 2, "[a][b][+c]"),
        (["a"], 0, 3, "[!a]"),
        (["a"], 0, 0, "a"),
        (["", "é", ""], 2, 3, "[é]"),
        (["a", "b"], 2, 3, "[a][b]"),  # the second draft ended the text
    ],
)
def test_marks(pieces, drafted, proposed, marked):
    assert trace.traced(event(pieces, drafted, proposed), colour=False) == marked
    coloured = trace.traced(event(pieces, drafted, proposed), colour=True)
    assert re.sub("\x1b\\[[0-9]*m", "", coloured) == "".join(pieces)


def test_traced_text_is_the_text(specdecode):
    arguments = ["generate", "-p", "one", "--max-tokens", "12", "--draft-tokens", "2"]
    traced = specdecode(*arguments, "--trace-tokens")
    assert re.sub(r"\[[!+]?|\]", "", traced.stdout) == specdecode(*arguments).stdout
    assert "[!" in traced.stdout
    assert "[+bonus] = the target's own token after a block that was accepted whole" in traced.stderr


def test_colours_are_for_terminals_and_for_those_who_want_them(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert Output(stdout=io.StringIO(), stderr=sys.stderr).colour
    monkeypatch.delenv("FORCE_COLOR")
    assert Output(stdout=Terminal(), stderr=sys.stderr).colour
    assert not Output(stdout=io.StringIO(), stderr=sys.stderr).colour
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Output(stdout=Terminal(), stderr=sys.stderr).colour


def test_where_options_come_from(specdecode, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "max_tokens": 5}\n{"prompt": "b"}\n')
    result = specdecode("generate", str(rows), "--seed", "3", "--stop", "x", "--show-config")
    assert (result.exit_code, specdecode.loads, result.stderr) == (0, [], "")
    shown = {re.split(r"  +", line)[0]: tuple(re.split(r"  +", line)[1:]) for line in result.stdout.splitlines()}
    assert shown["model"] == (str(specdecode.checkpoint), f"--model ({specdecode.checkpoint})")
    assert shown["batch_size"] == ("8", "default")
    assert shown["seed"] == ("3", "--seed")
    assert (shown["top_k"], shown["top_p"], shown["n"]) == (("0", "default"), ("1.0", "default"), ("1", "default"))
    assert shown["confidence_threshold"] == ("none", "default")
    assert shown["stop"] == ("'x'", "--stop")
    assert shown["draft_tokens"] == ("3", "checkpoint (dspark_block_size)")
    assert shown[f"{rows}:1: max_tokens"] == ("5", f"row {rows}:1")
    assert shown[f"{rows}:2: max_tokens"] == ("64", "default")


def test_where_options_come_from_in_json(specdecode):
    content = json.loads(specdecode("generate", "-p", "x", "--draft-tokens", "1", "--show-config", "--json").stdout)
    assert content["run"]["eos_token"] == {"value": 1, "source": "checkpoint (eos_token_id)"}
    assert content["prompts"][0]["draft_tokens"] == {"value": 1, "source": "--draft-tokens"}
    assert content["prompts"][0]["max_tokens"] == {"value": 64, "source": "default"}


def test_defaults_are_said_where_they_are_used():
    defaults = {name: parameter.default for name, parameter in inspect.signature(generate).parameters.items()}
    for name, value in FALLBACKS.items():
        assert defaults[name] in (value, None), name


class Keeps(ToyModel):
    """Keeps what it is asked for."""

    def step(self, rows, *, width, draft):
        self.asked = rows[0]
        return super().step(rows, width=width, draft=draft)


@pytest.mark.parametrize(
    ("option", "value"), [("seed", 9), ("temperature", 0.5), ("top_k", 5), ("top_p", 0.5), ("min_p", 0.5)]
)
def test_options_reach_the_model(specdecode, tmp_path, option, value):
    specdecode.model_type = Keeps
    specdecode("generate", "-p", "x", f"--{option.replace('_', '-')}", str(value), "--compare", "-q")
    assert getattr(specdecode.models[-1].asked, option) == value
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "x", option: value}))
    specdecode("generate", str(rows), "-q")
    assert getattr(specdecode.models[-1].asked, option) == value
    assert max(width for _, width, _ in specdecode.models[-1].steps) == 3  # and with speculation on, there are drafts


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--acceptance", "typical"], "--acceptance typical is not possible. Use match, rejection, block."),
        (["--acceptance", "block", "--compare"], "--compare and --acceptance block contradict each other"),
        (["--acceptance", "rejection", "--draft-tokens", "auto"], "--draft-tokens auto and --acceptance rejection"),
        (["--logit-bias", "5=1", "--logit-bias", "5=2"], "--logit-bias names the token 5 twice"),
        (["--temperature", "1e300"], "temperature is 1e+300; it must be a number from 0 to 1e+06"),
        (["--repetition-penalty", "1e300"], "it must be a number from 0.001 to 1000"),
        (["--logit-bias", "5=1e39"], "must be a token id and a number from -1e+06 to 1e+06"),
        (["--stop-token-id", "266"], "The stop token 266 is not possible"),
        (["--method", "medusa"], "--method medusa is not possible. Use dspark, eagle, ngram, none."),
        (["--method", "ngram", "--draft-tokens", "auto"], "--draft-tokens auto needs the drafter's confidence"),
        (["--method", "ngram", "--confidence-threshold", "0.5"], "--confidence-threshold needs the drafter's"),
        (["--method", "none", "--draft-tokens", "3"], "--method none and --draft-tokens 3 contradict each other"),
        (["--method", "none", "--compare"], "plain decoding alone contradicts it"),
    ],
)
def test_rules_that_are_not_possible(specdecode, arguments, message):
    result = specdecode("generate", "-p", "x", *arguments)
    assert (result.exit_code, specdecode.loads) == (2, [])
    assert message in result.stderr


@pytest.mark.parametrize("method", ["ngram", "none"])
def test_methods_change_no_token(specdecode, method):
    arguments = ["generate", "-p", "one two one two", "--max-tokens", "30"]
    plain = specdecode(*arguments, "--no-speculation")
    other = specdecode(*arguments, "--method", method)
    assert (other.exit_code, other.stdout) == (0, plain.stdout)
    assert not any(draft for _, _, draft in specdecode.models[-1].steps)
    assert ("prompt lookup" in other.stderr) is (method == "ngram")
    assert (" drafts)" in other.stderr) is (method == "ngram")
