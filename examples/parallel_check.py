"""Check a checkpoint on logical shards against the same on one device, bit for bit.

    python examples/parallel_check.py demo cpux2 cpux4 cpux8 cpux2:dp cpux4:dp

Random steps of eight requests, prompt chunks and verify rounds in any company, run on one device and on every layout
that is named (`:dp`: data parallel): logits, tokens, drafts and confidences must agree in every bit on the CPU. On a
GPU (`--on gpu:0`, layouts like gpu:0x2) the order of a sum depends on the size of a matrix, so logits must
agree within a bound there, and so must each layout's own plain and speculative tokens. Compiles one graph per layout,
for minutes, unless it is in the cache. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from specdecode.core.checkpoint.locate import locate_model
from specdecode.core.device_names import DeviceNames
from specdecode.core.engine.engine import Engine
from specdecode.core.engine.request import FinishedEvent, Request
from specdecode.core.models.deepseek_v41.load import load_step_model
from specdecode.core.models.deepseek_v41.unified.model import UnifiedDSparkDeepseekV41Model
from specdecode.core.progress import Lines
from tests.support.random_steps import REQUESTS, Steps, answers, forget

LENGTH, PAGES = 80, 6
BOUND = 2e-2
"""Of the largest difference of a logit over the largest logit, where sums may differ."""


def load(model: str, devices: str) -> UnifiedDSparkDeepseekV41Model:
    names, data_parallel = devices.removesuffix(":dp"), devices.endswith(":dp")
    degree = DeviceNames.parse(names).count if data_parallel else 1
    return load_step_model(
        locate_model(model),
        devices=names,
        data_parallel_degree=degree,
        max_length=LENGTH,
        num_pages=REQUESTS * PAGES // degree,
        progress=Lines(),
    )


def texts(model: UnifiedDSparkDeepseekV41Model, *, drafts: int | None) -> list[tuple[int, ...]]:
    """Completions of eleven requests, greedy and sampled, through the engine."""
    engine, rng = Engine(model, max_batch=6, token_budget=24), np.random.default_rng(1)
    for place in range(11):
        prompt = rng.integers(3, model.vocab_size - 8, int(rng.integers(1, 40))).tolist()
        engine.submit(
            Request(
                prompt=tuple(prompt), max_tokens=24, temperature=(0.0, 0.8)[place % 2], seed=place, draft_tokens=drafts
            )
        )
    ended = [event for event in engine.run() if isinstance(event, FinishedEvent)]
    return [event.completion.tokens for event in sorted(ended, key=lambda event: event.request_id)]


def compare(one: UnifiedDSparkDeepseekV41Model, other: UnifiedDSparkDeepseekV41Model, steps: int) -> tuple[int, float]:
    """Steps in which a bit differs, and the largest difference of logits over the largest logit."""
    different, worst = 0, 0.0
    forget(one, other)
    for rows, width, draft in Steps(one, count=steps, seed=2):
        a, b = answers(one, rows, width, draft), answers(other, rows, width, draft)
        different += a != b
        x, y = (np.frombuffer(found["logits"], np.float32) for found in (a, b))
        worst = max(worst, float(np.abs(x - y).max() / np.abs(x).max()))
    return different, worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a checkpoint folder or a preset")
    parser.add_argument("layouts", nargs="+", metavar="LAYOUT")
    parser.add_argument("--on", default="cpu", metavar="DEVICE", help="the one device")
    parser.add_argument("--steps", type=int, default=60)
    asked = parser.parse_args()
    one, failed = load(asked.model, asked.on), False
    plain = texts(one, drafts=0)
    for layout in asked.layouts:
        start = time.perf_counter()
        other = load(asked.model, layout)
        different, worst = compare(one, other, asked.steps)
        own = texts(other, drafts=0)
        promise, same = texts(other, drafts=None) == own, own == plain
        exact = asked.on == "cpu"
        good = promise and (same and not different if exact else worst < BOUND)
        failed |= not good
        print(
            f"{'ok' if good else 'FAILED'}: {layout}: {asked.steps - different} of {asked.steps} steps bit for bit, "
            f"logits within {worst:.1e}; speculative {'=' if promise else '!='} plain, "
            f"texts {'=' if same else '!='} one device's; {time.perf_counter() - start:.0f} s",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
