"""What `generate` tells about a run: as lines for people, as a document for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from specdecode.core.engine.request import Completion
from specdecode.core.metrics import DEFINITIONS, Acceptance, median

_ENOUGH_ROUNDS = 50
"""Rounds from which on shares by position mean something."""


def statistics(completions: Sequence[Completion]) -> dict[str, object]:
    """Acceptance and times of all completions together, with their definitions."""
    acceptance = Acceptance.of(r for c in completions for r in c.rounds)
    return {
        "requests": len(completions),
        "tokens": sum(len(c.tokens) for c in completions),
        "acceptance": asdict(acceptance),
        "time_to_first_token": median(_some(c.timing.first_token for c in completions)),
        "time_per_output_token": median(_some(c.timing.per_token for c in completions)),
        "definitions": DEFINITIONS,
    }


def summary(completions: Sequence[Completion], *, prompts: int, width: int) -> list[str]:
    """The same in a few lines; `width` is how many drafts a round could have."""
    acceptance = Acceptance.of(r for c in completions for r in c.rounds)
    tokens = sum(len(c.tokens) for c in completions)
    answers = "" if len(completions) == prompts else f" with {_count(len(completions), 'answer')}"
    head = f"{_count(prompts, 'prompt')}{answers}"
    lines = [f"{head}, {_count(tokens, 'token')}, {_count(acceptance.rounds, 'round')}"]
    if acceptance.rounds:
        lines += _acceptance_lines(acceptance)
    elif width and tokens:
        lines.append("speculation was on, but no round had a draft to verify: too few tokens were generated")
    first = median(_some(c.timing.first_token for c in completions))
    each = median(_some(c.timing.per_token for c in completions))
    if first is not None:
        each_text = "" if each is None else f", time per output token {each * 1000:.2f} ms"
        lines.append(f"time to first token {first:.3f} s{each_text} (medians)")
    return lines


def definitions() -> list[str]:
    """One line for each term."""
    return [f"  {term} = {meaning}" for term, meaning in DEFINITIONS.items()]


def _acceptance_lines(a: Acceptance) -> Iterable[str]:
    if a.length is None or a.length_with_bonus is None or a.rate is None:
        return
    yield (
        f"acceptance length {a.length_with_bonus:.2f} with bonus, {a.length:.2f} without; "
        f"acceptance rate {a.rate:.0%} ({a.accepted} of {a.proposed} drafts)"
    )
    yield "accepted at position k: " + _positions(a.per_position)
    yield "  given those before:   " + _positions(a.per_position_conditional)
    given = a.per_position_conditional
    if a.rounds >= _ENOUGH_ROUNDS and len(given) > 1 and given[1] < given[0] / 2:
        yield (
            "  position 2 is far below position 1, as with a drafter that is fed the wrong row: check the checkpoint's "
            "drafter and its dspark settings"
        )


def _positions(shares: Sequence[float]) -> str:
    return "  ".join(f"{k}: {share:.0%}" for k, share in enumerate(shares, start=1))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _some(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
