"""From a checkpoint folder to a model that runs steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from max.driver import CPU, Buffer
from max.dtype import DType
from max.engine import InferenceSession

from specdecode.core.cache.leaves import allocate_leaves, page_bytes
from specdecode.core.checkpoint.locate import preset_folders
from specdecode.core.checkpoint.reader import Checkpoint
from specdecode.core.engine.graph_store import GraphInfo, GraphStore
from specdecode.core.engine.mef import GraphKey
from specdecode.core.errors import DeviceError
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.engram_tables import EngramTables
from specdecode.core.models.deepseek_v41.unified.digest import graph_digest
from specdecode.core.models.deepseek_v41.unified.model import UnifiedDSparkDeepseekV41Model
from specdecode.core.models.deepseek_v41.weights import MODE, derived_arrays, load_weights
from specdecode.core.progress import Progress, Silent
from specdecode.core.text.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from max.engine import Model
    from max.graph import Graph

PAGE_SIZE = 16
"""Tokens per cache page; compiled into the graph."""
GRAPH_NAME = "step"


def load_step_model(
    path: Path,
    *,
    devices: str = "cpu",
    max_length: int,
    num_pages: int | None = None,
    max_batch: int = 8,
    progress: Progress | None = None,
    store: GraphStore | None = None,
) -> UnifiedDSparkDeepseekV41Model:
    """Load a checkpoint for running.

    Args:
        path: its folder.
        devices: `cpu`.
        max_length: the longest sequence, prompt and output together.
        num_pages: cache pages of `PAGE_SIZE` tokens; None = enough for `max_batch` sequences of `max_length`.
        max_batch: the most sequences at a time.
        progress: told what is left out of the checkpoint, where the graph came from, and how long it takes.
        store: where compiled graphs are; None = an embedded checkpoint's own, and the user's cache.

    Raises:
        ModelError: the checkpoint, its configuration or its tokenizer cannot be used.
        DeviceError: the device is not supported, or the caches do not fit into memory.
    """
    progress = progress or Silent()
    if devices != "cpu":
        raise DeviceError(
            f"--devices {devices} is not supported: the step's kernels run on the CPU. Use --devices cpu."
        )
    checkpoint = Checkpoint.open(path)
    if checkpoint.note:
        progress.note(checkpoint.note)
    config = checkpoint.config
    pages = PageLayout.of(config.text_config, PAGE_SIZE)
    if num_pages is None:
        num_pages = max_batch * -(-(max_length + config.text_config.dspark_block_size) // PAGE_SIZE)
    _check_memory(num_pages, page_bytes(config.text_config, pages))
    weights = load_weights(checkpoint, derived_arrays(config, _hash_constants(checkpoint), exact=True))
    mode = np.array([1, 1], np.int32)
    weights[MODE] = Buffer.from_numpy(mode)
    graph, _ = load_graph(config, pages, weights, store or GraphStore(shipped=shipped_graphs()), progress)
    return UnifiedDSparkDeepseekV41Model(
        config,
        graph,
        pages=pages,
        leaves=allocate_leaves(config.text_config, pages, num_pages),
        engram_host_buffers=engram_host_buffers(checkpoint),
        max_length=max_length,
        mode=mode,
    )


def load_graph(
    config: DeepseekV41Config,
    pages: PageLayout,
    weights: Mapping[str, Buffer],
    store: GraphStore,
    progress: Progress,
) -> tuple[Model, GraphInfo]:
    """The initialised step graph for the CPU, and where it came from."""
    recipe = StepGraph(config=config, pages=pages)
    return store.load(
        InferenceSession(devices=[CPU()]),
        recipe.key,
        recipe.build,
        weights_registry=weights,
        progress=progress,
    )


@dataclass(frozen=True, kw_only=True)
class StepGraph:
    """The step graph of a configuration: how it is called and how it is traced."""

    config: DeepseekV41Config
    pages: PageLayout

    @property
    def key(self) -> GraphKey:
        """What it depends on, on this machine."""
        return GraphKey.here(GRAPH_NAME, graph_digest(self.config, self.pages))

    def build(self) -> Graph:
        """Trace it, which takes seconds; a stored graph makes this unnecessary."""
        from max.graph import DeviceRef

        from specdecode.core.models.deepseek_v41.unified.driver import build_graph

        return build_graph(self.config, self.pages, DeviceRef.CPU())[0]


def engram_host_buffers(checkpoint: Checkpoint) -> list[Buffer]:
    """Per Engram layer its table uint8 [R, E] and scales uint8 [R, E / 32]: views of the mapped files."""
    layers = checkpoint.config.text_config.engram_layer_ids
    names = [f"layers.{layer}.engram.embed.{part}" for layer in layers for part in ("weight", "scale")]
    # MAX copies an array that it may not write to, so the files are mapped again, copy-on-write.
    return [
        Buffer.mmap(info.file, DType.uint8, info.shape, "copyonwrite", info.offset)
        for info in map(checkpoint.info, names)
    ]


def _hash_constants(checkpoint: Checkpoint) -> EngramTables | None:
    config = checkpoint.config
    if not config.text_config.engram_layer_ids:
        return None
    return EngramTables.build(config.text_config, TextTokenizer.of(checkpoint.path, config).backend)


def shipped_graphs() -> Path:
    """The ready-made graphs of this installation, for any checkpoint whose graph is the same, a copy of the demo say.

    A graph is native code, so one that came with some other folder is not run.
    """
    return preset_folders()["demo"] / "graphs"


def _check_memory(num_pages: int, page: int) -> None:
    """Refuse caches that this machine has no memory for, where the system tells how much there is."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return
    if num_pages * page > free:
        raise DeviceError(
            f"The caches do not fit: {num_pages} pages of {page >> 10} KiB need "
            f"{num_pages * page >> 20} MiB, and {free >> 20} MiB are free. Lower --max-tokens or "
            "--batch-size, or shorten the prompts."
        )
