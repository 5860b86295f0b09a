"""`generate --compare`: the same prompts with and without speculation, one after the other on one model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specdecode.cli.jobs import Job, noun
from specdecode.cli.passes import Outcome, Pass, Silent
from specdecode.core.engine.engine import Engine

_WARM_TOKENS = 8
_TIE = 1e-3
"""A margin that another order of rounding may turn."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where the two first differ: tokens are counted from 0 within a turn, None where a text had ended.

    margin: the log-probability of the plain run's likeliest token there less that of its second, once it is known.
    """

    origin: str
    sample: int
    turn: int
    position: int
    plain: int | None
    speculative: int | None
    margin: float | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a comparison found.

    Attributes:
        what: what is counted, prompts or samples of prompts.
        compared: those that both runs completed. identical: those among them with the same tokens and reasons.
        complete: whether both runs went to their ends.
        tokens: output tokens of the plain run. seconds: of whole runs, prompts included, plain then speculative.
    """

    what: str
    compared: int
    identical: int
    difference: Difference | None
    tokens: int
    seconds: tuple[float, float]
    complete: bool = True

    @property
    def speed_up(self) -> float | None:
        """Plain time over speculative time; None where either run is not whole."""
        plain, speculative = self.seconds
        return plain / speculative if self.complete and self.tokens and speculative else None

    def lines(self, text: Callable[[int], str]) -> list[str]:
        """The verdict for people; `text` names a token."""
        lines = [f"identical: {self.identical}/{self.compared} {self.what}"]
        if self.difference is not None:
            d = self.difference
            sample = f", sample {d.sample}" if self.what == "samples" else ""
            turn = f", turn {d.turn + 1}" if d.turn else ""
            plain, speculative = (_named(token, text) for token in (d.plain, d.speculative))
            place = f"{d.origin}{sample}{turn}, output token {d.position}"
            lines.append(f"first difference: {place}: plain {plain}, speculative {speculative}")
            if d.margin is not None:
                tie = ", as good as a tie" if d.margin < _TIE else ""
                lines.append(
                    f"margin: plain decoding's two likeliest tokens differ there by {d.margin:.3g} in log p{tie}"
                )
        if self.speed_up is not None:
            rates = [f"{self.tokens / seconds:.1f} tokens/s" for seconds in self.seconds]
            lines.append(f"speed-up: {self.speed_up:.2f} (plain {rates[0]}, speculative {rates[1]})")
            if self.speed_up < 1:
                lines.append(
                    "speculation was slower here: large batches and high temperatures leave it less to gain. "
                    "--draft-tokens auto verifies as many drafts as pay"
                )
        return lines

    def document(self) -> dict[str, object]:
        """The verdict for programs."""
        return {
            "compared": self.compared,
            "identical": self.identical,
            "first_difference": None if self.difference is None else vars(self.difference),
            "tokens": self.tokens,
            "seconds": {"plain": self.seconds[0], "speculative": self.seconds[1]},
            "speed_up": self.speed_up,
        }


def plain_pass(
    jobs: Sequence[Job], engine: Callable[[], Engine], clock: Callable[[], float] = time.perf_counter
) -> tuple[Pass, float]:
    """The plain run and its seconds, after a few tokens that warm up whatever runs slowly at first."""
    first = jobs[0].first
    warm = replace(jobs[0], first=replace(first, max_tokens=min(first.max_tokens, _WARM_TOKENS), min_tokens=0))
    warming = Pass([warm], engine(), Silent())
    warming.run()
    plain = Pass([replace(job, first=replace(job.first, draft_tokens=0)) for job in jobs], engine(), Silent())
    if warming.interrupted:
        plain.interrupted = True
        return plain, 0.0
    start = clock()
    plain.run()
    return plain, clock() - start


def compare(jobs: Sequence[Job], plain: Pass, speculative: Pass, seconds: tuple[float, float]) -> Verdict:
    """Token by token."""
    pairs = [
        (job, one, other)
        for job, one, other in zip(jobs, plain.outcomes, speculative.outcomes, strict=True)
        if one.done and other.done
    ]
    differences = [_difference(job, one, other) for job, one, other in pairs]
    return Verdict(
        what=noun(jobs),
        compared=len(pairs),
        identical=differences.count(None),
        difference=next((d for d in differences if d is not None), None),
        tokens=sum(len(c.tokens) for c in plain.completions),
        seconds=seconds,
        complete=not (plain.interrupted or speculative.interrupted),
    )


def with_margin(verdict: Verdict, jobs: Sequence[Job], engine: Engine) -> Verdict:
    """The verdict with the margin at its difference: the prompt runs once more, plain, with its probabilities."""
    d = verdict.difference
    if d is None or d.plain is None:
        return verdict
    job = next(job for job in jobs if (job.prompt.origin, job.sample) == (d.origin, d.sample))
    again = Pass([replace(job, first=replace(job.first, draft_tokens=0, logprobs=2))], engine, Silent())
    again.run()
    turns = again.outcomes[0].turns
    said = turns[d.turn].completion.logprobs if d.turn < len(turns) else None
    if not said or d.position >= len(said) or said[d.position].token != d.plain:
        return verdict
    first, second = (value for _, value in said[d.position].top)
    return replace(verdict, difference=replace(d, margin=first - second))


def _difference(job: Job, plain: Outcome, speculative: Outcome) -> Difference | None:
    for turn, (one, other) in enumerate(zip(plain.turns, speculative.turns, strict=True)):
        a, b = one.completion, other.completion
        if (a.tokens, a.reason, a.text) == (b.tokens, b.reason, b.text):
            continue
        both = zip(a.tokens, b.tokens, strict=False)
        shorter = min(len(a.tokens), len(b.tokens))
        position = next((n for n, (x, y) in enumerate(both) if x != y), shorter)
        at = [tokens[position] if position < len(tokens) else None for tokens in (a.tokens, b.tokens)]
        return Difference(
            origin=job.prompt.origin,
            sample=job.sample,
            turn=turn,
            position=position,
            plain=at[0],
            speculative=at[1],
        )
    return None


def _named(token: int | None, text: Callable[[int], str]) -> str:
    return "ended" if token is None else f"{token} {text(token)!r}"
