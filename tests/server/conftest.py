"""The embedded checkpoint, served; and a model that recites, for what the demo never says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specdecode.core.checkpoint.locate import preset_folders
from specdecode.core.engine.costs import measure
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.load import load_step_model
from specdecode.core.text.tokenizer import TextTokenizer
from tests.support.live import Live

DEMO = preset_folders()["demo"]
LENGTH = 512


@pytest.fixture(scope="session")
def demo_model():
    return load_step_model(DEMO, max_length=LENGTH, max_batch=8)


@pytest.fixture(scope="session")
def demo_tokenizer() -> TextTokenizer:
    return TextTokenizer.of(DEMO, DeepseekV41Config.from_json(DEMO))


@pytest.fixture(scope="session")
def demo(demo_model, demo_tokenizer) -> Iterator[Live]:
    measured = {"measured": lambda model: measure(model, max_batch=8)}
    with Live(model=demo_model, tokenizer=demo_tokenizer, **measured) as live:
        yield live
