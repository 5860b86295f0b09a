"""A command runner over a tiny checkpoint whose model recites a script."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from specdecode.cli import bench_local, loading
from specdecode.cli.app import make_app
from specdecode.core.bench.document import Document
from tests.support.byte_tokenizer import EOS, byte_id
from tests.support.tiny import write_checkpoint
from tests.support.toy import ToyModel

SCRIPT = "né 👍 ok. "


class Ramp:
    """Logits that say nothing about the script: the higher the id, the likelier."""

    shape = (266,)

    def __getitem__(self, context: tuple[int, int]) -> NDArray[np.float64]:
        return np.arange(266) / 100


class Script:
    """In place of tables: position p holds byte p of a text, over and over; every fourth draft is wrong."""

    target = Ramp()
    drafter = None

    def __init__(self, text: str, stop_at: int | None = None) -> None:
        self._bytes = text.encode()
        self._stop_at = stop_at

    def sample(self, table, before, last, *, position: int, seed: int, temperature: float, **limits: float) -> int:
        if table is None and position % 4 == 0:
            return byte_id(ord("?"))
        if position == self._stop_at:
            return EOS
        return byte_id(self._bytes[position % len(self._bytes)])


@dataclass
class Command:
    """Runs the command line in this process and keeps what the model was asked for."""

    checkpoint: Path
    script: Script = field(default_factory=lambda: Script(SCRIPT))
    model_type: type[ToyModel] = ToyModel
    loads: list[dict[str, object]] = field(default_factory=list)
    models: list[ToyModel] = field(default_factory=list)

    def load(self, path, *, devices, max_length, max_batch, progress, data_parallel_degree=1, drafter=None) -> ToyModel:
        asked = {"devices": devices, "data_parallel_degree": data_parallel_degree}
        self.loads.append({"path": path, **asked, "max_length": max_length, "max_batch": max_batch})
        progress.note("graph step: 5 ops, shipped, not compiled (was 9 CPU-seconds)")
        self.models.append(self.model_type(self.script, block_size=3, max_length=max_length, num_pages=400))
        return self.models[-1]

    def __call__(self, *arguments: str, model: bool = True, stdin: str | None = None):
        options = ["--model", str(self.checkpoint)] if model else []
        result = CliRunner().invoke(make_app(panels=False), [*arguments, *options], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def specdecode(checkpoint, monkeypatch) -> Command:
    command = Command(checkpoint)
    monkeypatch.setattr(loading, "load_step_model", command.load)
    return command


def timeless(text: str) -> str:
    """A transcript with its times replaced."""
    text = re.sub(r"token \d+\.\d+ s", "token T s", text)
    return re.sub(r"token \d+\.\d+ ms", "token T ms", text)


@pytest.fixture
def categories(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "one", "category": "a"}\n{"prompt": "three33", "category": "a"}\n{"prompt": "b"}\n')
    return file


@pytest.fixture
def bench(specdecode, categories, monkeypatch):
    """Runs the command on these prompts, twice each; copying memory is not what is tested."""
    monkeypatch.setattr(bench_local, "copy_bandwidth", lambda device: 1e9)

    def run(*options: str):
        return specdecode("bench", str(categories), "--max-tokens", "12", "--repeats", "2", *options)

    run.command = specdecode
    return run


def document(result) -> Document:
    return Document.model_validate_json(result.stdout.splitlines()[-1])
