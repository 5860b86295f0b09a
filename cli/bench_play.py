"""How prompts of a benchmark run on a model: turn after turn, as `generate` runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specdecode.cli.jobs import Job
from specdecode.cli.passes import Outcome, Pass, Silent
from specdecode.core.bench.measure import Played, Reply
from specdecode.core.engine.engine import Engine


def play(engine: Engine, jobs: Sequence[Job], width: int | None) -> list[Played]:
    """Run prompts turn after turn.

    Raises:
        KeyboardInterrupt: Ctrl-C came meanwhile.
    """
    asked = [replace(job, first=replace(job.first, draft_tokens=width)) for job in jobs]
    done = Pass(asked, engine, Silent())
    done.run()
    if done.interrupted:
        raise KeyboardInterrupt
    return [Played(replies=_replies(outcome), error=outcome.error) for outcome in done.outcomes]


def _replies(outcome: Outcome) -> tuple[Reply, ...]:
    return tuple(
        Reply(
            output=(*turn.completion.tokens, turn.completion.reason.value),
            tokens=len(turn.completion.tokens),
            first_token=turn.completion.timing.first_token,
            per_token=turn.completion.timing.per_token,
            rounds=turn.completion.rounds,
        )
        for turn in outcome.turns
    )
