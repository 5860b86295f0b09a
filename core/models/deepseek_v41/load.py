"""From a checkpoint folder to a model that runs steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from max.driver import Buffer

from specdecode.core.cache.leaves import allocate_leaves, page_bytes
from specdecode.core.checkpoint.locate import preset_folders
from specdecode.core.checkpoint.reader import Checkpoint
from specdecode.core.engine.device import Place, open_place
from specdecode.core.engine.graph_store import GraphInfo, GraphStore
from specdecode.core.engine.mef import GraphKey
from specdecode.core.errors import DeviceError
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.eagle_checkpoint import EagleCheckpoint
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig
from specdecode.core.models.deepseek_v41.engram_tables import EngramTables
from specdecode.core.models.deepseek_v41.registry import engram_host_buffers, load_weights, weight_bytes
from specdecode.core.models.deepseek_v41.unified.digest import graph_digest
from specdecode.core.models.deepseek_v41.unified.gpu_model import UnifiedDSparkDeepseekV41GpuModel
from specdecode.core.models.deepseek_v41.unified.model import UnifiedDSparkDeepseekV41Model
from specdecode.core.models.deepseek_v41.weights import MODE, derived_arrays
from specdecode.core.progress import Progress, Silent
from specdecode.core.text.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from max.engine import Model
    from max.graph import Graph

PAGE_SIZE = 16
"""Tokens per cache page; compiled into the graph."""
GRAPH_NAME = "step"
EAGLE_GRAPH_NAME = "eagle-step"


def load_step_model(
    path: Path,
    *,
    devices: str = "cpu",
    max_length: int,
    num_pages: int | None = None,
    max_batch: int = 8,
    progress: Progress | None = None,
    store: GraphStore | None = None,
    capture: bool = True,
    drafter: Path | None = None,
) -> UnifiedDSparkDeepseekV41Model:
    """Load a checkpoint for running.

    Args:
        path: its folder.
        devices: `cpu`, or `gpu:N` for one GPU.
        max_length: the longest sequence, prompt and output together.
        num_pages: cache pages of `PAGE_SIZE` tokens; None = enough for `max_batch` sequences of `max_length`.
        max_batch: the most sequences at a time.
        progress: told what is left out of the checkpoint, where the graph came from, and how long it takes.
        store: where compiled graphs are; None = an embedded checkpoint's own, and the user's cache.
        capture: whether a GPU runs decode steps as device graphs; the CPU has none.
        drafter: folder of an autoregressive drafter to use; None for the checkpoint's own block drafter.

    Raises:
        ModelError: the checkpoint, the drafter, its configuration or its tokenizer cannot be used.
        DeviceError: the device is absent or not supported, or the model or its caches do not fit into its memory.
    """
    progress = progress or Silent()
    place = open_place(devices)
    checkpoint = Checkpoint.open(path)
    if checkpoint.note:
        progress.note(checkpoint.note)
    config = checkpoint.config
    pages = PageLayout.of(config.text_config, PAGE_SIZE)
    if num_pages is None:
        num_pages = max_batch * -(-(max_length + config.text_config.dspark_block_size) // PAGE_SIZE)
    eagle = None if drafter is None else EagleCheckpoint.open(drafter, config.text_config)
    other = None if eagle is None else eagle.config
    check_memory(place, config, num_pages, page_bytes(config.text_config, pages), other)
    weights = load_weights(checkpoint, derived_weights(checkpoint, exact=True), place.device, eagle)
    mode = np.array([1, 1], np.int32)
    if place.is_host:
        weights[MODE] = Buffer.from_numpy(mode)
    graph, _ = load_graph(config, pages, weights, store or GraphStore(shipped=shipped_graphs()), progress, place, other)
    leaves = allocate_leaves(config.text_config, pages, num_pages, place.device)
    tables = engram_host_buffers(checkpoint, place.device)
    if place.is_host:
        return UnifiedDSparkDeepseekV41Model(
            config,
            graph,
            pages=pages,
            leaves=leaves,
            engram_host_buffers=tables,
            max_length=max_length,
            mode=mode,
            drafter=other,
        )
    return UnifiedDSparkDeepseekV41GpuModel(
        config,
        graph,
        pages=pages,
        leaves=leaves,
        engram_host_buffers=tables,
        max_length=max_length,
        device=place.device,
        capture=capture,
        drafter=other,
    )


def load_graph(
    config: DeepseekV41Config,
    pages: PageLayout,
    weights: Mapping[str, Buffer],
    store: GraphStore,
    progress: Progress,
    place: Place | None = None,
    drafter: EagleConfig | None = None,
) -> tuple[Model, GraphInfo]:
    """The initialised step graph for a device, the CPU if none is given, and where it came from."""
    recipe = StepGraph(config=config, pages=pages, place=place or open_place("cpu"), drafter=drafter)
    return store.load(
        recipe.place.session(),
        recipe.key,
        recipe.build,
        weights_registry=weights,
        progress=progress,
    )


@dataclass(frozen=True, kw_only=True)
class StepGraph:
    """The step graph of a configuration on a device: how it is called and how it is traced.

    It takes grammar masks; a step without any passes none and pays nothing. With an autoregressive drafter it is built
    by the sequential driver, else by the block driver.
    """

    config: DeepseekV41Config
    pages: PageLayout
    place: Place = field(default_factory=lambda: open_place("cpu"))
    drafter: EagleConfig | None = None

    @property
    def key(self) -> GraphKey:
        """What it depends on, on this machine."""
        digest = graph_digest(
            self.config, self.pages, structured_output=True, gpu=not self.place.is_host, drafter=self.drafter
        )
        return GraphKey.here(GRAPH_NAME if self.drafter is None else EAGLE_GRAPH_NAME, digest, self.place.device)

    def build(self) -> Graph:
        """Trace it, which takes seconds; a stored graph makes this unnecessary."""
        if self.drafter is not None:
            from specdecode.core.models.deepseek_v41.unified.eagle_driver import build_eagle_graph

            return build_eagle_graph(self.config, self.drafter, self.pages, self.place.ref, structured_output=True)[0]
        from specdecode.core.models.deepseek_v41.unified.driver import build_graph

        return build_graph(self.config, self.pages, self.place.ref, structured_output=True)[0]


def derived_weights(checkpoint: Checkpoint, *, exact: bool) -> dict[str, np.ndarray]:
    """The weights that follow from configuration and tokenizer; `exact`: with the model's own rounding."""
    config, tables = checkpoint.config, None
    if config.text_config.engram_layer_ids:
        tables = EngramTables.build(config.text_config, TextTokenizer.of(checkpoint.path, config).backend)
    return derived_arrays(config, tables, exact=exact)


def shipped_graphs() -> Path:
    """The ready-made graphs of this installation, for any checkpoint whose graph is the same, a copy of the demo say.

    A graph is native code, so one that came with some other folder is not run.
    """
    return preset_folders()["demo"] / "graphs"


def check_memory(
    place: Place, config: DeepseekV41Config, num_pages: int, page: int, drafter: EagleConfig | None = None
) -> None:
    """Refuse what the device has no memory for, where anybody tells how much there is.

    On the CPU the caches alone count: the weights are files that the system may have in memory already.

    Raises:
        DeviceError: with the sizes.
    """
    free, caches = place.free_memory, num_pages * page
    weights = 0 if place.is_host else weight_bytes(config, drafter)
    if free is None or weights + caches <= free:
        return
    advice = "Lower --max-tokens or --batch-size, or shorten the prompts."
    if place.is_host:
        raise DeviceError(
            f"The caches do not fit: {num_pages} pages of {page >> 10} KiB need "
            f"{caches >> 20} MiB, and {free >> 20} MiB are free. {advice}"
        )
    raise DeviceError(
        f"The model does not fit on {place.name}: {weights >> 20} MiB of weights and {num_pages} cache pages of "
        f"{page >> 10} KiB need {weights + caches >> 20} MiB, and {free >> 20} MiB are free. "
        + (advice if weights < free else "Use --devices cpu or a smaller checkpoint.")
    )
