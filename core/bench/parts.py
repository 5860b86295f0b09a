"""Where a run's seconds went: prompts, verification, drafting, the host; and what its steps had to read at least.

A step that drafts is one graph, so its own clock cannot tell drafting from verifying. Steps of the same sizes are timed
with and without it beforehand, and each step of the run is divided in that proportion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specdecode.core.bench.timed import Span
from specdecode.core.bench.traffic import Step, traffic
from specdecode.core.engine.costs import StepCosts, measure, step_seconds
from specdecode.core.engine.step import StepModel
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig

TRIES = 3
"""A share is a difference of two times, so each is the least of several series: others only ever add to it."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Seconds of a run; they add up to `wall`.

    Attributes:
        prompt: steps that ran prompts, drafting included.
        verify: decoding steps less what drafting took of them; all of a plain step.
        draft: the drafter in decoding steps, or a proposer of the host.
        host: everything outside of steps: scheduling, text, statistics.
        decode_steps: how many decoding steps there were. steps: all.
    """

    prompt: float
    verify: float
    draft: float
    host: float
    decode_steps: int
    steps: int

    @property
    def wall(self) -> float:
        return self.prompt + self.verify + self.draft + self.host


@dataclass(frozen=True)
class DraftShares:
    """The share of a step that drafts the next block which drafting takes.

    Attributes:
        measured: (requests, width) -> seconds of a step without and with drafting; each of one or two numbers of
            requests with each of two widths.
    """

    measured: dict[tuple[int, int], tuple[float, float]]

    @classmethod
    def measure(cls, model: StepModel, max_batch: int) -> DraftShares:
        """Time steps of one request and of `max_batch`, without drafts and with a whole block to verify.

        What the model's caches hold is lost. Empty where they have no room for a block.
        """
        kinds = [(width, draft) for width in (0, model.block_size) for draft in (False, True)]
        found: dict[tuple[int, int], tuple[float, float]] = {}
        for requests in sorted({1, max_batch}):
            tries = [seconds for _ in range(TRIES) if (seconds := step_seconds(model, requests, kinds)) is not None]
            if not tries:
                continue
            seconds = list(map(min, zip(*tries, strict=True)))
            for (width, _), without, whole in zip(kinds[::2], seconds[::2], seconds[1::2], strict=True):
                found[requests, width] = (without, whole)
        return cls(found)

    def of(self, requests: int, width: int) -> float:
        """The share at these sizes; between measured ones both times are linear."""
        if not self.measured:
            return 0.0
        sizes, widths = (sorted({key[place] for key in self.measured}) for place in (0, 1))
        without, whole = (
            _between(
                (sizes[0], sizes[-1]),
                requests,
                [
                    _between(
                        (widths[0], widths[-1]), width, [self.measured[n, w][which] for w in (widths[0], widths[-1])]
                    )
                    for n in (sizes[0], sizes[-1])
                ],
            )
            for which in (0, 1)
        )
        return max(0.0, 1 - without / whole)


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Step times of one model at one batch size, as far as its modes need them."""

    costs: StepCosts | None
    shares: DraftShares | None

    @classmethod
    def of(cls, model: StepModel, batch: int, *, auto: bool, drafts: bool) -> StepTimes:
        return cls(
            costs=measure(model, max_batch=batch) if auto else None,
            shares=DraftShares.measure(model, batch) if drafts else None,
        )


def _between(ends: tuple[int, int], place: int, values: Sequence[float]) -> float:
    """Linear from the first value to the second, and constant beyond the ends."""
    low, high = ends
    share = min(max((place - low) / (high - low), 0.0), 1.0) if high > low else 0.0
    return values[0] + (values[1] - values[0]) * share


def parts(spans: Sequence[Span], wall: float, proposing: float, shares: DraftShares | None) -> Parts:
    """Divide a run; `proposing`: seconds of proposers on the host; shares: None where no step drafts."""
    decoding = [span for span in spans if span.decode]
    in_steps = sum(span.seconds for span in spans)
    drafting = sum(
        span.seconds * shares.of(span.requests, span.width) for span in decoding if span.draft and shares is not None
    )
    return Parts(
        prompt=sum(span.seconds for span in spans if not span.decode),
        verify=sum(span.seconds for span in decoding) - drafting,
        draft=drafting + proposing,
        host=wall - in_steps - proposing,
        decode_steps=len(decoding),
        steps=len(spans),
    )


@dataclass(kw_only=True)
class Floor:
    """Bytes that decoding steps must read and write at least, and how near to the copy bandwidth they come.

    Attributes:
        config: the checkpoint's. drafter: an EAGLE drafter's, where it drafts.
        bandwidth: bytes a second of a copy, read and written.
    """

    config: DeepseekV41Config
    bandwidth: float
    drafter: EagleConfig | None = None
    _known: dict[tuple[int, int, bool, int], int] = field(default_factory=dict)

    def of(self, spans: Sequence[Span]) -> tuple[float, float] | None:
        """Bytes of a decoding step, the mean, and the share of the bandwidth; None without such a step."""
        decoding = [span for span in spans if span.decode]
        seconds = sum(span.seconds for span in decoding)
        if not decoding or not seconds:
            return None
        moved = sum(map(self._bytes, decoding))
        return moved / len(decoding), moved / seconds / self.bandwidth

    def _bytes(self, span: Span) -> int:
        context = span.context // 16 * 16  # one count for lengths that hardly differ
        key = (span.requests, span.width, span.draft, context)
        if key not in self._known:
            step = Step(batch=span.requests, width=span.width, context=context, draft=span.draft)
            self._known[key] = traffic(self.config, step, self.drafter).total
        return self._known[key]
