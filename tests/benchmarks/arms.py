"""Plain, speculative and self-adjusting decoding of the same requests, in turn, checked against each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from unittest import mock

from specdecode.core.bench.spread import Spread
from specdecode.core.engine.costs import measure
from specdecode.core.engine.engine import Engine
from specdecode.core.engine.request import FinishedEvent, Request
from specdecode.core.engine.widths import AutoWidth, WidthPolicy
from specdecode.core.errors import MismatchError
from specdecode.core.metrics import Acceptance, Round
from specdecode.core.models.deepseek_v41.unified.inputs import UnifiedDSparkDeepseekV41Inputs
from specdecode.core.models.deepseek_v41.unified.model import UnifiedDSparkDeepseekV41Model, UnifiedEagleOutputs


class GraphClock:
    """Stands in for a model's `execute` and notes how long the graph takes; the rest of a step is the host's."""

    def __init__(self, execute: Callable[[UnifiedDSparkDeepseekV41Inputs], UnifiedEagleOutputs]) -> None:
        self._execute = execute
        self.seconds = 0.0

    def __call__(self, inputs: UnifiedDSparkDeepseekV41Inputs) -> UnifiedEagleOutputs:
        before = time.perf_counter()
        outputs = self._execute(inputs)
        self.seconds += time.perf_counter() - before
        return outputs


@dataclass(kw_only=True)
class Pass:
    """Requests that were run once.

    Attributes:
        prompt_seconds: the first step, which runs whole prompts and gives the first tokens.
        decode_seconds, host_seconds: all later steps, and what of them was spent outside the graph.
        steps, rows: later steps, and requests in them.
        tokens: output tokens of each request.
        rounds: of all requests.
    """

    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0
    host_seconds: float = 0.0
    steps: int = 0
    rows: int = 0
    tokens: list[tuple[int, ...]] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)

    @property
    def decoded(self) -> int:
        """Tokens that the later steps gave."""
        return sum(len(tokens) - 1 for tokens in self.tokens)

    def __add__(self, other: Pass) -> Pass:
        mine, others = vars(self), vars(other)
        return Pass(**{name: value + others[name] for name, value in mine.items()})


def run(model: UnifiedDSparkDeepseekV41Model, requests: Sequence[Request], widths: WidthPolicy | None = None) -> Pass:
    """Run requests that start together to their ends; the batch shrinks as they end."""
    budget = sum(len(request.prompt) for request in requests)
    engine = Engine(model, max_batch=len(requests), token_budget=budget, widths=widths)
    for request in requests:
        engine.submit(request)
    clock = GraphClock(model.execute)
    with mock.patch.object(model, "execute", clock):
        return _steps(engine, clock, len(requests))


def _steps(engine: Engine, clock: GraphClock, requests: int) -> Pass:
    new, done = Pass(), dict[int, tuple[int, ...]]()
    first = True
    while engine.busy:
        in_graph, rows, before = clock.seconds, requests - len(done), time.perf_counter()
        events = engine.step()
        took = time.perf_counter() - before
        if first:
            new.prompt_seconds += took
        else:
            new.decode_seconds += took
            new.host_seconds += took - (clock.seconds - in_graph)
            new.steps += 1
            new.rows += rows
        first = False
        for event in events:
            if isinstance(event, FinishedEvent):
                done[event.request_id] = event.completion.tokens
                new.rounds += event.completion.rounds
    new.tokens = [done[place] for place in range(requests)]
    return new


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way of decoding, over all repeats; seconds and ratios as spreads."""

    tokens_per_second: Spread
    with_prompts: Spread
    step_ms: Spread
    host_ms: Spread
    rows_per_step: float

    @classmethod
    def of(cls, passes: Sequence[Pass]) -> Arm:
        return cls(
            tokens_per_second=Spread.of([p.decoded / p.decode_seconds for p in passes]),
            with_prompts=Spread.of([sum(map(len, p.tokens)) / (p.prompt_seconds + p.decode_seconds) for p in passes]),
            step_ms=Spread.of([1e3 * p.decode_seconds / p.steps for p in passes]),
            host_ms=Spread.of([1e3 * p.host_seconds / p.steps for p in passes]),
            rows_per_step=passes[0].rows / passes[0].steps,
        )


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Plain against speculative decoding of the same requests; a ratio is of the two rates within each repeat.

    `speculative` verifies every draft; `auto` as many as pay by measured costs, and its policy keeps what it learned
    from repeat to repeat, as a server's would.
    """

    temperature: float
    batch: int
    tokens: int
    plain: Arm
    speculative: Arm
    ratio: Spread
    ratio_with_prompts: Spread
    acceptance: Acceptance
    auto: Arm
    auto_ratio: Spread
    auto_acceptance: Acceptance


ARMS = ("plain", "speculative", "auto")


def compare(
    model: UnifiedDSparkDeepseekV41Model, requests: Sequence[Request], *, batch: int, repeats: int
) -> Comparison:
    """Run the arms in turn on each batch of requests, the one that begins changing from batch to batch.

    Raises:
        MismatchError: a token differs between the arms or between repeats.
    """
    costs = measure(model, max_batch=batch)
    assert costs is not None  # the prompts alone are longer than a block
    policy = AutoWidth(costs=costs, block=model.block_size)
    passes: dict[str, list[Pass]] = {arm: [] for arm in ARMS}
    turn = 0
    for _ in range(repeats):
        now = {arm: Pass() for arm in ARMS}
        for start in range(0, len(requests), batch):
            for arm in (*ARMS[turn % 3 :], *ARMS[: turn % 3]):
                asked = requests[start : start + batch]
                if arm == "plain":
                    asked = [replace(request, draft_tokens=0) for request in asked]
                now[arm] += run(model, asked, policy if arm == "auto" else None)
            turn += 1
        for arm in ARMS:
            passes[arm].append(now[arm])
            _check(now[arm].tokens, passes["plain"][0].tokens, arm)
    plain, speculative, auto = (Arm.of(passes[arm]) for arm in ARMS)
    return Comparison(
        temperature=requests[0].temperature,
        batch=batch,
        tokens=sum(map(len, passes["plain"][0].tokens)),
        plain=plain,
        speculative=speculative,
        ratio=_ratio(speculative.tokens_per_second, plain.tokens_per_second),
        ratio_with_prompts=_ratio(speculative.with_prompts, plain.with_prompts),
        acceptance=Acceptance.of(passes["speculative"][0].rounds),
        auto=auto,
        auto_ratio=_ratio(auto.tokens_per_second, plain.tokens_per_second),
        auto_acceptance=Acceptance.of(passes["auto"][-1].rounds),
    )


def _ratio(a: Spread, b: Spread) -> Spread:
    return Spread.of([x / y for x, y in zip(a.values, b.values, strict=True)])


def _check(tokens: Sequence[tuple[int, ...]], known: Sequence[tuple[int, ...]], arm: str) -> None:
    for place, (a, b) in enumerate(zip(tokens, known, strict=True)):
        if a != b:
            at = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
            raise MismatchError(
                f"Request {place} in the {arm} arm differs from the first plain run at output token {at}: the "
                "promise is broken. Run the tests in tests/model."
            )
