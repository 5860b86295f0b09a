"""The first figures in one run: `python tests/benchmarks/first.py [--quick] [--json FILE]`.

Plain and speculative decoding of held-out text by the demo checkpoint, at batch 1 and 8, greedy and at temperature 1:
tokens per second and their ratio, acceptance length, the time of a step by draft width, the host's part of it, and
what the graph costs to compile. Plain decoding runs no drafter at all. Both arms run the same requests in turn and
have to give the same tokens; a difference ends the run with exit code 5.

Every figure is a median over repeats ± the median absolute deviation. docs/performance.md says what is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from specdecode.core.bench.machine import Company, machine
from specdecode.core.checkpoint.locate import preset_folders
from specdecode.core.engine.graph_store import GraphInfo, GraphStore, count_ops
from specdecode.core.engine.request import Request
from specdecode.core.errors import MismatchError
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.load import PAGE_SIZE, StepGraph, load_step_model, shipped_graphs
from specdecode.core.models.deepseek_v41.unified.model import UnifiedDSparkDeepseekV41Model
from specdecode.core.text.tokenizer import TextTokenizer
from tests.benchmarks.arms import Comparison, compare, run
from tests.benchmarks.steps import StepTime, step_times

PROMPT_LENGTH = 48
BATCHES = (1, 8)
TEMPERATURES = (0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much to run; the requests make one batch of the largest size."""

    requests: int
    new_tokens: int
    repeats: int
    step_repeats: int
    step_calls: int
    trace: bool


FULL = Plan(requests=8, new_tokens=128, repeats=5, step_repeats=5, step_calls=8, trace=True)
QUICK = Plan(requests=8, new_tokens=32, repeats=2, step_repeats=2, step_calls=3, trace=False)


class Remembering(GraphStore):
    """A graph store that keeps what it told about the graph."""

    info: GraphInfo

    def load(self, *args: Any, **options: Any) -> Any:
        model, self.info = super().load(*args, **options)
        return model, self.info


def main() -> int:
    """Measure, print, and save where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer prompts and repeats, no tracing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save everything that was measured")
    parser.add_argument("--new-tokens", type=int, metavar="N", help="tokens per request (128, with --quick 32)")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    if options.new_tokens is not None:
        plan = replace(plan, new_tokens=options.new_tokens)
    try:
        document = measure(plan)
    except MismatchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(plan: Plan) -> dict[str, object]:
    """Run the plan and print as it goes."""
    start, where, company = time.perf_counter(), machine(), Company()
    print(f"machine: {where['cpu']}, {where['cores']} cores")
    print(f"MAX {where['max']}, Python {where['python']}")
    folder = preset_folders()["demo"]
    store = Remembering(shipped=shipped_graphs())
    length = PROMPT_LENGTH + plan.new_tokens
    model = load_step_model(folder, max_length=length, max_batch=max(BATCHES), store=store)
    load_seconds = time.perf_counter() - start
    print(f"{store.info}; loaded in {load_seconds:.1f} s")
    graph = {**asdict(store.info), "load_seconds": load_seconds, **(traced(model.config) if plan.trace else {})}
    if plan.trace:
        print(f"traced now: {graph['traced_ops']} ops in {graph['trace_cpu_seconds']:.1f} CPU-seconds")

    prompts = held_out(folder, model.config, plan.requests)
    print(
        f"\n{len(prompts)} held-out prompts of {PROMPT_LENGTH} tokens, {plan.new_tokens} new tokens each, "
        f"{plan.repeats} repeats, arms in turn; up to {model.block_size} drafts a round\n"
    )
    requests = {t: [ask(p, plan.new_tokens, t, seed) for seed, p in enumerate(prompts)] for t in TEMPERATURES}
    warm_up(model, requests[0.0])
    outputs = run(model, requests[0.0]).tokens
    texts = [[*request.prompt, *output] for request, output in zip(requests[0.0], outputs, strict=True)]
    print_heading()
    comparisons = []
    for asked in requests.values():
        for batch in BATCHES:
            comparisons.append(compare(model, asked, batch=batch, repeats=plan.repeats))
            print_comparison(comparisons[-1])
    print(f"every token the same in all arms and repeats: {sum(c.tokens for c in comparisons)} compared\n")
    print_arms(comparisons)
    steps: list[StepTime] = []
    for batch in BATCHES:
        steps += step_times(model, texts[:batch], PROMPT_LENGTH, repeats=plan.step_repeats, calls=plan.step_calls)
    print_steps(steps)
    seconds = time.perf_counter() - start
    others = company.cores()
    print(f"\n{seconds:.0f} s in all; other processes kept {others:.2f} cores busy (0.1 or less: figures to rely on)")
    return {
        "machine": where,
        "plan": asdict(plan),
        "graph": graph,
        "decoding": [asdict(comparison) for comparison in comparisons],
        "steps": [asdict(step) for step in steps],
        "seconds": seconds,
        "cores_busy_with_others": others,
    }


def warm_up(model: UnifiedDSparkDeepseekV41Model, requests: Sequence[Request]) -> None:
    """Run both arms at every batch size; the first steps of a kind try out thread counts."""
    for batch in BATCHES:
        for width in (0, model.block_size):
            run(model, [replace(request, draft_tokens=width) for request in requests[:batch]])


def traced(config: DeepseekV41Config) -> dict[str, float]:
    """Trace the step's graph afresh."""
    before = time.process_time()
    graph = StepGraph(config=config, pages=PageLayout.of(config.text_config, PAGE_SIZE)).build()
    return {"trace_cpu_seconds": time.process_time() - before, "traced_ops": count_ops(graph)}


def held_out(folder: Path, config: DeepseekV41Config, count: int) -> list[tuple[int, ...]]:
    """The beginnings of held-out pieces, from each source in turn."""
    tokenizer = TextTokenizer.of(folder, config)
    by_source: dict[str, list[str]] = {}
    for piece in (folder / "heldout.txt").read_text(encoding="utf-8").split("%%% ")[1:]:
        name, _, text = piece.partition("\n")
        by_source.setdefault(name.partition("/")[0], []).append(text)
    pieces = [text for group in zip(*by_source.values(), strict=False) for text in group][:count]
    prompts = [tuple(tokenizer.encode(text)[:PROMPT_LENGTH]) for text in pieces]
    if len(prompts) < count or any(len(prompt) < PROMPT_LENGTH for prompt in prompts):
        raise SystemExit(f"{folder / 'heldout.txt'} has too few pieces of {PROMPT_LENGTH} tokens for {count} prompts")
    return prompts


def ask(prompt: tuple[int, ...], new_tokens: int, temperature: float, seed: int) -> Request:
    """A request without stop ids, so that the amount of work is fixed."""
    return Request(prompt=prompt, max_tokens=new_tokens, temperature=temperature, seed=seed)


def print_heading() -> None:
    print("decoding, tokens/s")
    print("   T  batch            plain      speculative           ratio  acceptance length", end="")
    print("             auto           ratio")


def print_comparison(c: Comparison) -> None:
    print(
        f"{c.temperature:4.1f}  {c.batch:5d}  {c.plain.tokens_per_second.text(1):>15}  "
        f"{c.speculative.tokens_per_second.text(1):>15}  {c.ratio.text(2):>14}  "
        f"{c.acceptance.length_with_bonus:6.2f} with bonus  {c.auto.tokens_per_second.text(1):>15}  "
        f"{c.auto_ratio.text(2):>14}",
        flush=True,
    )


def print_arms(comparisons: Sequence[Comparison]) -> None:
    print("one step of these runs, ms")
    print("   T  batch                       step       of it host    share   requests in a step")
    for c in comparisons:
        for name, arm in (("plain", c.plain), ("speculative", c.speculative), ("auto", c.auto)):
            print(
                f"{c.temperature:4.1f}  {c.batch:5d}  {name:11}  {arm.step_ms.text(2):>14}  {arm.host_ms.text(3):>15}  "
                f"{arm.host_ms.median / arm.step_ms.median:6.1%}  {arm.rows_per_step:10.1f}"
            )


def print_steps(steps: Sequence[StepTime]) -> None:
    """One line a batch size and kind, a column a width, with the plain step as the unit below."""
    widths = sorted({step.width for step in steps})
    print("\nstep time by draft width, ms (in plain steps)")
    print(" " * 23 + "".join(f"  {f'width {width}':>19}" for width in widths))
    for batch in sorted({step.batch for step in steps}):
        of_batch = {(step.width, step.draft): step.ms for step in steps if step.batch == batch}
        plain = of_batch[0, False].median
        for draft, name in ((False, "verify"), (True, "verify + draft")):
            cells = [of_batch[width, draft] for width in widths]
            texts = [f"{cell.text(2)} ({cell.median / plain:.2f})" for cell in cells]
            print(f"batch {batch}  {name:14}" + "".join(f"  {text:>19}" for text in texts))


if __name__ == "__main__":
    raise SystemExit(main())
