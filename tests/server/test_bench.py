"""`specdecode bench --base-url` on this server: its plain mode drafts nothing, its acceptance is `generate`'s."""

from __future__ import annotations

from typer.testing import CliRunner

from specdecode.cli.app import make_app
from specdecode.core.bench.document import Document


def bench(*options: str) -> Document:
    arguments = ["--category", "code", "--per-category", "2", "--max-tokens", "16", "--repeats", "1", "--json", "-q"]
    result = CliRunner().invoke(make_app(panels=False), ["bench", *arguments, *options])
    assert result.exit_code == 0, result.stderr
    return Document.model_validate_json(result.stdout)


def test_the_server_and_this_process_agree(demo):
    there = bench("--base-url", demo.url, "--draft-tokens", "3,5").rows
    here = bench("--draft-tokens", "3,5").rows
    assert [row.mode for row in there] == ["plain", "server 3", "server 5"]
    for one, other in zip(there, here, strict=True):
        assert one.tokens == other.tokens
        assert one.identical is not None
        assert (one.identical.same, one.identical.compared) == (2, 2)
        if one.acceptance is not None and other.acceptance is not None:
            assert (one.acceptance.rounds, one.acceptance.accepted) == (
                other.acceptance.rounds,
                other.acceptance.accepted,
            )
    assert there[2].acceptance is not None
