"""From a checkpoint folder to a model that runs steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from max.driver import Buffer
from max.dtype import DType
from numpy.typing import NDArray

from specdecode.core.cache.leaves import allocate_leaves, page_bytes
from specdecode.core.cache.resident import make_resident
from specdecode.core.checkpoint.locate import preset_folders
from specdecode.core.checkpoint.reader import Checkpoint
from specdecode.core.engine.devices import Places, open_places
from specdecode.core.engine.graph_store import GraphInfo, GraphStore
from specdecode.core.engine.mef import GraphKey
from specdecode.core.engine.scheduler import TOKEN_BUDGET
from specdecode.core.errors import UsageError
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.eagle_checkpoint import EagleCheckpoint
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig
from specdecode.core.models.deepseek_v41.engram_tables import EngramTables
from specdecode.core.models.deepseek_v41.memory import check_memory, exchange_bytes
from specdecode.core.models.deepseek_v41.registry import engram_host_buffers, load_rank_weights, load_weights
from specdecode.core.models.deepseek_v41.unified.devices_model import (
    UnifiedDSparkDeepseekV41DevicesModel,
    signal_buffers,
)
from specdecode.core.models.deepseek_v41.unified.digest import graph_digest
from specdecode.core.models.deepseek_v41.unified.gpu_model import UnifiedDSparkDeepseekV41GpuModel
from specdecode.core.models.deepseek_v41.unified.model import UnifiedDSparkDeepseekV41Model
from specdecode.core.models.deepseek_v41.unified.replicas import expert_rows
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
    data_parallel_degree: int = 1,
    max_length: int,
    num_pages: int | None = None,
    max_batch: int = 8,
    token_budget: int = TOKEN_BUDGET,
    progress: Progress | None = None,
    store: GraphStore | None = None,
    capture: bool = True,
    drafter: Path | None = None,
    resident: bool = False,
) -> UnifiedDSparkDeepseekV41Model:
    """Load a checkpoint for running.

    Args:
        path: its folder.
        devices: `cpu`, `gpu:N`, or several as in `DeviceNames`.
        data_parallel_degree: 1, all devices work on every token; or their number, each has its own requests.
        max_length: the longest sequence, prompt and output together.
        num_pages: cache pages of `PAGE_SIZE` tokens on each device; None = enough for `max_batch` sequences of
            `max_length`, or under data parallelism each device's share of them.
        max_batch: the most sequences at a time.
        token_budget: the most tokens of a step, as the engine's. Under data parallelism the buffers of experts' results
            are made for it and for max_batch, and a larger step is refused.
        progress: told what is left out of the checkpoint, where the graph came from, and how long it takes.
        store: where compiled graphs are; None = an embedded checkpoint's own, and the user's cache.
        capture: whether one GPU runs decode steps as device graphs; the CPU and several devices have none.
        drafter: folder of an autoregressive drafter to use; None for the checkpoint's own block drafter.
        resident: whether the caches' memory is taken now, or page by page as they are used; a GPU's always is.

    Raises:
        UsageError: the devices are no devices, or an autoregressive drafter is to run on several.
        ModelError: the checkpoint, the drafter, its configuration or its tokenizer cannot be used.
        DeviceError: a device is absent or not supported, or the model or its caches do not fit into its memory.
    """
    progress = progress or Silent()
    places = open_places(devices, data_parallel_degree)
    if drafter is not None and not places.single:
        raise UsageError(
            f"--devices {places.names.text}: an EAGLE drafter runs on one device. Use --method dspark, or one device."
        )
    checkpoint = Checkpoint.open(path)
    if checkpoint.note:
        progress.note(checkpoint.note)
    config = checkpoint.config
    pages = PageLayout.of(config.text_config, PAGE_SIZE)
    if num_pages is None:
        here = -(-max_batch // places.layout.replicas)
        num_pages = here * -(-(max_length + config.text_config.dspark_block_size) // PAGE_SIZE)
    eagle = None if drafter is None else EagleCheckpoint.open(drafter, config.text_config)
    other = None if eagle is None else eagle.config
    most_rows = token_budget + max_batch * (1 + config.text_config.dspark_block_size)
    exchange = exchange_bytes(config, places.layout, most_rows)
    check_memory(places, config, num_pages, page_bytes(config.text_config, pages), other, exchange=exchange)
    store = store or GraphStore(shipped=shipped_graphs())
    derived = derived_weights(checkpoint, exact=True)
    if places.single:
        weights = load_weights(checkpoint, derived, places.first.device, eagle)
    else:
        weights = load_rank_weights(checkpoint, derived, places.layout, places.devices)
    mode = np.array([1, 1], np.int32)
    if places.first.is_host:
        weights[MODE] = Buffer.from_numpy(mode)
    graph, _ = load_graph(config, pages, weights, store, progress, places, other)
    leaves = [allocate_leaves(config.text_config, pages, num_pages, device) for device in places.devices]
    if resident and places.first.is_host:
        make_resident(leaf for own in leaves for leaf in own.values())
    loaded = Loaded(
        config=config,
        graph=graph,
        pages=pages,
        leaves=leaves,
        tables=engram_host_buffers(checkpoint, places.first.device),
        places=places,
        max_length=max_length,
        most_rows=most_rows,
        drafter=other,
    )
    if not places.first.is_host and places.single:
        return loaded.on_gpu(capture=capture)
    return loaded.model(mode if places.first.is_host else None)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What a model is made of.

    Attributes:
        leaves: the cache leaves of each rank.
        tables: the Engram tables, which all devices of a host share.
        most_rows: the most rows of a step, for the buffers of experts' results.
    """

    config: DeepseekV41Config
    graph: Model
    pages: PageLayout
    leaves: list[dict[str, Buffer]]
    tables: list[Buffer]
    places: Places
    max_length: int
    most_rows: int
    drafter: EagleConfig | None

    def on_gpu(self, *, capture: bool) -> UnifiedDSparkDeepseekV41GpuModel:
        """The model of one GPU."""
        return UnifiedDSparkDeepseekV41GpuModel(
            self.config,
            self.graph,
            pages=self.pages,
            leaves=self.leaves[0],
            engram_host_buffers=self.tables,
            max_length=self.max_length,
            device=self.places.first.device,
            capture=capture,
            drafter=self.drafter,
        )

    def model(self, mode: NDArray[np.int32] | None) -> UnifiedDSparkDeepseekV41Model:
        """The model of the CPU, or of several devices."""
        made: type[UnifiedDSparkDeepseekV41Model] = UnifiedDSparkDeepseekV41Model
        if not self.places.first.is_host:
            made = UnifiedDSparkDeepseekV41DevicesModel
        layout = self.places.layout
        return made(
            self.config,
            self.graph,
            pages=self.pages,
            leaves=self.leaves[0],
            peers=self.leaves[1:],
            layout=layout,
            signal_buffers=signal_buffers(layout),
            ep_buffers=self._expert_buffers(),
            engram_host_buffers=self.tables * layout.count,
            max_length=self.max_length,
            mode=mode,
            device=None if self.places.first.is_host else self.places.first.device,
            drafter=self.drafter,
        )

    def _expert_buffers(self) -> list[Buffer]:
        if not self.places.layout.data_parallel:
            return []
        shape = (expert_rows(self.config, self.most_rows), self.config.text_config.hidden_size)
        return [Buffer.zeros(shape, DType.float32, device) for device in self.places.devices]


def load_graph(
    config: DeepseekV41Config,
    pages: PageLayout,
    weights: Mapping[str, Buffer],
    store: GraphStore,
    progress: Progress,
    places: Places | None = None,
    drafter: EagleConfig | None = None,
) -> tuple[Model, GraphInfo]:
    """The initialised step graph for devices, the CPU if none are given, and where it came from."""
    recipe = StepGraph(config=config, pages=pages, places=places or open_places("cpu"), drafter=drafter)
    return store.load(
        recipe.places.session(),
        recipe.key,
        recipe.build,
        weights_registry=weights,
        progress=progress,
    )


@dataclass(frozen=True, kw_only=True)
class StepGraph:
    """The step graph of a configuration on devices: how it is called and how it is traced.

    It takes grammar masks; a step without any passes none and pays nothing. With an autoregressive drafter it is built
    by the sequential driver, else by the block driver.
    """

    config: DeepseekV41Config
    pages: PageLayout
    places: Places = field(default_factory=lambda: open_places("cpu"))
    drafter: EagleConfig | None = None

    @property
    def name(self) -> str:
        """Its role, for file names and messages."""
        if self.drafter is not None:
            return EAGLE_GRAPH_NAME
        if self.places.single:
            return GRAPH_NAME
        layout = self.places.layout
        return f"{GRAPH_NAME}-{'ep' if layout.data_parallel else 'tp'}{layout.count}"

    @property
    def key(self) -> GraphKey:
        """What it depends on, on this machine."""
        place = self.places.first
        digest = graph_digest(
            self.config,
            self.pages,
            structured_output=True,
            gpu=not place.is_host,
            drafter=self.drafter,
            layout=None if self.places.single else self._layout,
        )
        return GraphKey.here(self.name, digest, place.device)

    @property
    def _layout(self) -> str:
        """The layout, and by number the GPUs that the graph names."""
        numbers = [place.device.id for place in self.places.different if not place.is_host]
        return f"{self.places.layout}, gpus {numbers}" if numbers else str(self.places.layout)

    def build(self) -> Graph:
        """Trace it, which takes seconds; a stored graph makes this unnecessary."""
        if self.drafter is not None:
            from specdecode.core.models.deepseek_v41.unified.eagle_driver import build_eagle_graph

            place = self.places.first.ref
            return build_eagle_graph(self.config, self.drafter, self.pages, place, structured_output=True)[0]
        from specdecode.core.models.deepseek_v41.unified.driver import build_graph

        return build_graph(self.config, self.pages, self.places.layout, structured_output=True)[0]


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
