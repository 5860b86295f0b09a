"""`generate --output`: what is in the file, when it is there, and how a run goes on."""

from __future__ import annotations

import json

import pytest

from specdecode.core.errors import SpecdecodeError
from tests.cli.test_generate import Breaks, Interrupts, script_from


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\nthree33\n")
    return file


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.jsonl"


def lines(path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_results_go_to_the_file_and_nowhere_else(specdecode, prompts, out):
    result = specdecode("generate", str(prompts), "--max-tokens", "12", "--output", str(out))
    assert (result.exit_code, result.stdout) == (0, "")
    assert "2 prompts, 24 tokens" in result.stderr
    assert [line["text"] for line in lines(out)] == [script_from(4, 12), script_from(7, 12)]
    assert [line["origin"] for line in lines(out)] == [f"{prompts}:1", f"{prompts}:3"]
    assert all(line["id"].startswith("req_") for line in lines(out))


def test_json_beside_the_file_holds_the_statistics(specdecode, prompts, out):
    content = json.loads(specdecode("generate", str(prompts), "--output", str(out), "--json").stdout)
    assert content.keys() == {"output", "interrupted", "statistics"}


def test_an_existing_file_is_refused_before_the_model_is_loaded(specdecode, prompts, out):
    out.write_text("mine\n")
    result = specdecode("generate", str(prompts), "--output", str(out))
    assert (result.exit_code, out.read_text(), specdecode.loads) == (2, "mine\n", [])
    assert f"{out} has results already. Continue it with --resume" in result.stderr


def test_ctrl_c_keeps_finished_results_and_the_run_goes_on(specdecode, prompts, out):
    usual, specdecode.model_type = specdecode.model_type, Interrupts
    arguments = ["generate", str(prompts), "--max-tokens", "12", "--batch-size", "1", "--output", str(out)]
    result = specdecode(*arguments)
    assert (result.exit_code, len(lines(out))) == (130, 1)
    before = lines(out)
    specdecode.model_type = usual
    result = specdecode(*arguments, "--resume", "--draft-tokens", "1")  # the width changes no answer
    assert result.exit_code == 0
    assert f"{out} has 1 of 2 results already" in result.stderr
    assert "1 prompt, 12 tokens" in result.stderr
    assert lines(out)[0] == before[0]
    assert [line["text"] for line in lines(out)] == [script_from(4, 12), script_from(7, 12)]
    # A third time there is nothing to do, and no model is loaded for it.
    specdecode.loads.clear()
    assert specdecode(*arguments, "--resume").exit_code == 0
    assert specdecode.loads == []


def test_a_failing_row_does_not_take_the_others_with_it(specdecode, prompts, out):
    specdecode.model_type = Breaks
    result = specdecode("generate", str(prompts), "--max-tokens", "12", "--output", str(out), "-q")
    assert result.exit_code == 1
    good, bad = lines(out)
    assert good["text"] == script_from(4, 12)
    assert bad["error"].startswith("The model's logits")


@pytest.mark.parametrize("change", ["prompt", "option", "less"])
def test_what_has_changed_is_no_answer(specdecode, prompts, out, change):
    specdecode("generate", str(prompts), "--output", str(out), "-q")
    before = out.read_bytes()
    if change == "prompt":
        prompts.write_text("one\nthree34\n")
    if change == "less":
        prompts.write_text("one\n")
    seed = ["--seed", "1"] if change == "option" else []
    result = specdecode("generate", str(prompts), "--output", str(out), "--resume", *seed)
    assert (result.exit_code, out.read_bytes()) == (2, before)
    assert f"out.jsonl:{1 if seed else 2} answers no prompt of this run" in result.stderr


def test_prompts_may_be_added_and_moved(specdecode, prompts, out):
    specdecode("generate", str(prompts), "--output", str(out), "-q")
    prompts.write_text("new\nthree33\none\none\n")
    assert specdecode("generate", str(prompts), "--output", str(out), "--resume", "-q").exit_code == 0
    assert [line["prompt"] for line in lines(out)] == ["new", "three33", "one", "one"]


def test_results_as_they_are_completed(specdecode, prompts, out, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "max_tokens": 30}\n{"prompt": "b", "max_tokens": 3}\n')
    specdecode("generate", str(rows), "--output", str(out), "--as-completed", "-q")
    assert [line["prompt"] for line in lines(out)] == ["b", "a"]
    result = specdecode("generate", str(rows), "--as-completed")
    assert result.stdout == script_from(2, 3) + "\n\n" + script_from(2, 30) + "\n"
    assert [line for line in result.stderr.splitlines() if line.startswith("[")] == ["[2/2] b", "[1/2] a"]


def test_rows_set_options_for_themselves(specdecode, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "max_tokens": 5}\n{"prompt": "b", "stop": "k"}\n{"prompt": "c"}\n')
    result = specdecode("generate", str(rows), "--max-tokens", "7", "--json")
    reasons = [(r["finish_reason"], len(r["tokens"])) for r in json.loads(result.stdout)["results"]]
    assert reasons == [("length", 5), ("length", 7), ("length", 7)]
    result = specdecode("generate", str(rows), "--max-tokens", "12", "--json")
    assert json.loads(result.stdout)["results"][1]["stopped_by"] == "k"


def test_a_value_of_a_row_that_is_not_possible_names_the_row(specdecode, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a"}\n{"prompt": "b", "temperature": -1}\n')
    result = specdecode("generate", str(rows))
    message = f"error: {rows}:2: temperature is -1; it must be a number from 0 to 1e+06.\n"
    assert (result.exit_code, result.stderr) == (2, message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--resume"], "--resume needs the results of an earlier run: name them with --output FILE."),
        (["--output-format", "csv"], "--output-format csv is not possible. Use auto, results, openai-batch."),
        (
            ["--output-format", "openai-batch"],
            "--output-format openai-batch needs a custom_id for every prompt, and -p has none.",
        ),
        (["--compare", "--output", "x"], "--compare and --output contradict each other: a comparison has two results"),
        (["--stop", ""], "A stop string is empty, and that is everywhere. Leave it out."),
        (["--stop-token-id", "266"], "The stop token 266 is not possible: ids run from 0 to 265 (vocab_size)."),
        (["--min-tokens", "65"], "min_tokens is 65; it must be a whole number from 0 to max_tokens, 64."),
    ],
)
def test_contradictions(specdecode, options, message):
    result = specdecode("generate", "-p", "x", *options)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message}")


def test_stops_on_the_command_line(specdecode):
    def text(*options: str) -> str:
        return specdecode("generate", "-p", "one", "--max-tokens", "12", "-q", *options).stdout

    assert text("--stop", "ok", "--stop", "?") == script_from(4, 5) + "\n"
    assert text("--stop", "ok", "--include-stop") == script_from(4, 7) + "\n"
    assert text("--stop-token-id", str(3 + ord("k"))) == script_from(4, 6) + "\n"


def test_end_of_sequence_can_be_ignored(specdecode):
    from tests.cli.conftest import SCRIPT, Script

    specdecode.script = Script(SCRIPT, stop_at=9)
    usual, ignoring = (
        json.loads(specdecode("generate", "-p", "one", "--max-tokens", "12", "--json", *more).stdout)["results"][0]
        for more in ([], ["--ignore-eos"])
    )
    assert (len(usual["tokens"]), usual["stopped_by"]) == (6, 1)
    assert (len(ignoring["tokens"]), ignoring["finish_reason"]) == (12, "length")


def test_a_stop_before_min_tokens_is_a_token_like_any_other(specdecode):
    from tests.cli.conftest import SCRIPT, Script

    specdecode.script = Script(SCRIPT, stop_at=9)
    [usual], [later] = (
        json.loads(specdecode("generate", "-p", "one", "--max-tokens", "12", "--json", *more).stdout)["results"]
        for more in (["--min-tokens", "5"], ["--min-tokens", "6"])
    )
    assert (len(usual["tokens"]), usual["finish_reason"]) == (6, "stop")
    assert (len(later["tokens"]), later["finish_reason"]) == (12, "length")
    assert (later["tokens"][:6], later["text"]) == (usual["tokens"], usual["text"] + script_from(10, 6))


def test_progress_is_said_while_a_file_is_written(specdecode, prompts, out, monkeypatch):
    from specdecode.cli.output import Output

    said = []
    monkeypatch.setattr(Output, "tick", lambda self, message, seconds: said.append(message))
    specdecode("generate", str(prompts), "--output", str(out), "--batch-size", "1")
    assert said == ["1 of 2 prompts", "2 of 2 prompts"]


def test_a_long_prompt_is_shown_in_one_line(specdecode, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "a\n b"}) + "\n" + json.dumps({"prompt": "x" * 101}) + "\n")
    result = specdecode("generate", str(rows), "--max-tokens", "1")
    shown = [line for line in result.stderr.splitlines() if line.startswith("[")]
    assert shown == ["[1/2] a b", "[2/2] " + "x" * 99 + "…"]


def test_a_file_that_can_no_longer_be_written(specdecode, prompts, out, monkeypatch):
    from specdecode.core import results_file

    def fail(*_):
        raise SpecdecodeError("The results file out cannot be written: No space left on device.")

    monkeypatch.setattr(results_file.ResultsFile, "add", fail)
    result = specdecode("generate", str(prompts), "--output", str(out))
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].endswith("cannot be written: No space left on device.")


def test_under_a_ratio_test_the_width_belongs_to_a_result(specdecode, prompts, out):
    """Its tokens depend on the drafts that it sees; sample-and-match and plain decoding depend on none."""

    def run(*more: str) -> int:
        arguments = ["generate", str(prompts), "--max-tokens", "4", "--output", str(out), "--resume", "-q"]
        specdecode.loads.clear()
        result = specdecode(*arguments, *more)
        return len(specdecode.loads) if result.exit_code == 0 else -1

    rejection = ("--acceptance", "rejection")
    assert run("--draft-tokens", "0") == 1
    assert run(*rejection, "--draft-tokens", "0") == 0
    assert run("--draft-tokens", "2") == 0
    out.unlink()
    assert run(*rejection, "--draft-tokens", "0") == 1
    assert run() == 0
