"""The compiled step against the NumPy oracle: float32 value by value, the model's own arithmetic statistically."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from specdecode.core.checkpoint import formats
from specdecode.core.checkpoint.reader import Checkpoint
from specdecode.core.engine.step import StepRow
from specdecode.core.kernels.settings import EXACT
from specdecode.core.models.deepseek_v41.engram_tables import EngramTables
from tests.oracle.forward import Oracle
from tests.support.promise import write_promise_checkpoint

pytestmark = pytest.mark.usefixtures(
    "cpu_only"
)  # the arithmetic is switched in place; examples/golden_check.py has GPUs
PROMPTS = [(0,), (0, 7), (0, 9, 4, 30, 12), tuple((i * 37 + 5) % 200 for i in range(19)), tuple(range(3, 60))]


class Reference:
    """The oracle over the test checkpoint's files."""

    def __init__(self, folder: Path, *, exact: bool) -> None:
        self.checkpoint = Checkpoint.open(folder)
        self.text = self.checkpoint.config.text_config
        raw = json.loads((folder / "config.json").read_text())["text_config"]
        self.tables = EngramTables.build(self.text, Tokenizer.from_file(str(folder / "tokenizer.json")))
        self.oracle = Oracle(cache(self.weight), raw, exact=exact)

    def weight(self, name: str) -> np.ndarray:
        """A tensor of the checkpoint, dequantised."""
        array, dtype = self.checkpoint.array(name), self.checkpoint.info(name).dtype
        if dtype == "BF16":
            return formats.bf16_to_f32(array)
        if dtype == "F32":
            return array
        scale = self.checkpoint.array(name.removesuffix("weight") + "scale")
        if dtype == "I8":
            return formats.dequantize_mxfp4(array, scale)
        rows = scale.shape[0] == array.shape[0]
        return (formats.dequantize_fp8_rows if rows else formats.dequantize_fp8_blocks)(array, scale)

    def run(self, ids: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Logits [T, V] and drafter features of a prompt."""
        rows = self.tables.hash_rows(np.array(ids), np.array([], np.int64))
        by_layer = {layer: rows[:, i] for i, layer in enumerate(self.text.engram_layer_ids)}
        logits, features, _ = self.oracle.target(np.array(ids), by_layer)
        return logits, features


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_promise_checkpoint(tmp_path_factory.mktemp("oracle"))


def stepped(model, ids: tuple[int, ...], chunk: int, *, exact: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Last logits, drafts and confidences of a prompt run in chunks."""
    model._mode[EXACT] = int(exact)
    try:
        for first in range(0, len(ids), chunk):
            row = StepRow(
                tokens=ids[first : first + chunk],
                cache_length=first,
                pages=range(8),
                draft_tokens=(),
                lookback=ids[max(0, first - model.lookback_length) : first],
                seed=0,
                temperature=0.0,
            )
            outputs = model.execute(model.batch_processor.prepare([row], width=0, draft=True))
        return (
            outputs.logits.to_numpy()[0].copy(),
            outputs.next_draft_tokens.to_numpy()[0].copy(),
            outputs.confidence.to_numpy()[0].copy(),
        )
    finally:
        model._mode[EXACT] = 1


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_float32_equals_the_oracle(small, folder, chunk):
    reference = Reference(folder, exact=False)
    for ids in PROMPTS:
        logits, features = reference.run(ids)
        mine, drafts, confidence = stepped(small, ids, chunk, exact=False)
        scale = np.abs(logits[-1]).max()
        assert np.abs(mine - logits[-1]).max() < 2e-5 * max(scale, 1), ids
        anchor = int(np.argmax(logits[-1]))
        expected, _, expected_confidence = reference.oracle.draft(features, len(ids) - 1, anchor)
        assert drafts.tolist() == expected, ids
        assert np.abs(confidence - expected_confidence).max() < 1e-4 * max(1, np.abs(expected_confidence).max())


def test_exact_arithmetic_is_close_to_the_oracle(small, folder):
    reference = Reference(folder, exact=True)
    cosines = []
    for ids in PROMPTS:
        logits, mine = reference.run(ids)[0][-1], stepped(small, ids, 100, exact=True)[0]
        cosines.append(float(logits @ mine / np.linalg.norm(logits) / np.linalg.norm(mine)))
    # Order of sums flips single FP8 codes; a missing quantiser shows as 0.9 and less (see the twin below).
    assert np.median(cosines) > 0.98, cosines


def test_the_exact_comparison_notices_missing_quantisers(small, folder):
    reference = Reference(folder, exact=True)
    worst = max(np.abs(reference.run(ids)[0][-1] - stepped(small, ids, 100, exact=False)[0]).max() for ids in PROMPTS)
    closest = min(np.abs(reference.run(ids)[0][-1] - stepped(small, ids, 100, exact=True)[0]).max() for ids in PROMPTS)
    assert closest < 0.1 * worst
