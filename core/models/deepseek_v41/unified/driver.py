"""`UnifiedDSparkDeepseekV41`: the step's graph, and its signature before there is a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from max.graph import DeviceRef, Graph, TensorValue

from specdecode.core.batch import BlockBatch
from specdecode.core.device_layout import DeviceLayout
from specdecode.core.drivers.block import BlockDriver
from specdecode.core.drivers.input_types import (
    MERGED_ROWS_DIM,
    NamedInput,
    SpecDecodeInputTypeSpec,
    SpeculativeConfig,
)
from specdecode.core.errors import UsageError
from specdecode.core.kernels import kernel_package
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.models.deepseek_v41 import probe as probing
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config, TextConfig
from specdecode.core.models.deepseek_v41.model import DeepseekV41WithDSpark
from specdecode.core.models.deepseek_v41.parallel.model import ParallelDeepseekV41
from specdecode.core.models.deepseek_v41.parallel.shares import rank_weights
from specdecode.core.models.deepseek_v41.target import EngramTable
from specdecode.core.models.deepseek_v41.unified.signature import StepSignature, engram_inputs, input_spec, output_names
from specdecode.core.models.deepseek_v41.weights import WeightTable


class UnifiedDSparkDeepseekV41(BlockDriver[Any, Any], StepSignature):
    """Verifies drafts with the target model and drafts blocks with DSpark.

    Args:
        config: the checkpoint's configuration.
        speculative_config: draft tokens per step.
        specs: the canonical inputs, and the devices.
        model: target and drafter in the current graph; None for a driver that only answers `input_types()` and
            `decode_inputs()`.
        trailing_input_types: the model's own inputs, after the canonical ones.
        enable_structured_output: whether the graph takes grammar masks.
    """

    def __init__(
        self,
        config: DeepseekV41Config,
        speculative_config: SpeculativeConfig,
        specs: SpecDecodeInputTypeSpec,
        *,
        model: DeepseekV41WithDSpark | None,
        trailing_input_types: Sequence[NamedInput] = (),
        enable_structured_output: bool = False,
    ) -> None:
        block = config.text_config.dspark_block_size
        if not 0 <= speculative_config.num_speculative_tokens <= block:
            raise UsageError(
                f"{speculative_config.num_speculative_tokens} draft tokens: the drafter was trained for blocks of "
                f"{block} (dspark_block_size), so 0 to {block} work"
            )
        self.config, self.speculative_config, self._model = config, speculative_config, model
        self._copies: list[DeepseekV41WithDSpark] | None = None
        StepSignature.__init__(self, specs, trailing_input_types, structured_output=enable_structured_output)
        if model is not None:
            BlockDriver.__init__(self, target=model, draft=model)

    def shard(
        self, devices: Sequence[DeviceRef], engram_host_tables: Sequence[EngramTable]
    ) -> list[DeepseekV41WithDSpark]:
        """Run both roles on per-device copies of the model; once.

        Args:
            devices: those of the signature.
            engram_host_tables: for each device, one per Engram layer, in order.

        Returns:
            The copies, one per device; on one device the model itself.

        Raises:
            ValueError: without a model, a second time, or with other devices or numbers of tables.
        """
        layout, model = self.specs.layout, self._model
        if model is None:
            raise ValueError("this driver was built with model=None: it only answers for the graph's signature")
        if self._copies is not None:
            raise ValueError("the model is sharded already: shard() is called once, after the weights are loaded")
        if tuple(devices) != layout.devices:
            raise ValueError(f"sharding over {list(devices)}, but the graph's signature has {list(layout.devices)}")
        layers = len(model.tables)
        if len(engram_host_tables) != layers * layout.count:
            raise ValueError(
                f"{len(engram_host_tables)} Engram tables for {layers} Engram layers on {layout.count} devices"
            )
        self._copies = [model]
        if layout.count > 1:
            shared: dict[str, TensorValue] = {}
            self._copies = [
                model.on_device(
                    device,
                    WeightTable(rank_weights(self.config, layout, rank), device, shared if layout.logical else None),
                    engram_host_tables[rank * layers : (rank + 1) * layers],
                )
                for rank, device in enumerate(layout.devices)
            ]
            both = ParallelDeepseekV41(self._copies, layout)
            BlockDriver.__init__(self, target=both, draft=both)
        return self._copies


def engram_tables(text: TextConfig, batch: BlockBatch, layout: DeviceLayout) -> list[list[EngramTable]]:
    """Each device's Engram tables among a graph's inputs, in order."""
    return [
        [
            EngramTable(
                weight=batch.extra[layout.named(f"engram.{layer}.weight", rank)],
                scale=batch.extra[layout.named(f"engram.{layer}.scale", rank)],
            )
            for layer in text.engram_layer_ids
        ]
        for rank in range(layout.count)
    ]


def build_graph(
    config: DeepseekV41Config,
    pages: PageLayout,
    layout: DeviceLayout,
    *,
    probe: bool = False,
    structured_output: bool = False,
) -> tuple[Graph, list[str]]:
    """The step's graph, and the names of its outputs.

    With `probe`, on one device, four more inputs follow (see `probe.py`), and every inner value is an output.
    """
    text, device = config.text_config, layout.first
    specs = input_spec(config, pages, layout)
    speculation = SpeculativeConfig(num_speculative_tokens=text.dspark_block_size)
    trailing = engram_inputs(text, layout)
    signature = UnifiedDSparkDeepseekV41(
        config,
        speculation,
        specs,
        model=None,
        trailing_input_types=trailing,
        enable_structured_output=structured_output,
    )
    types = signature.input_types()
    count = len(types)
    if probe:
        types += probing.probe_input_types(text, device, MERGED_ROWS_DIM)
    with Graph("specdecode_step", input_types=types, custom_extensions=[kernel_package()]) as graph:
        batch = signature.decode_inputs(graph.inputs[:count])
        tables = engram_tables(text, batch, layout)
        taken = probing.Probe(text, [v.tensor for v in graph.inputs[count:]], device) if probe else None
        model = DeepseekV41WithDSpark(config, pages, tables[0], device, probe=taken)
        step = UnifiedDSparkDeepseekV41(
            config,
            speculation,
            specs,
            model=model,
            trailing_input_types=trailing,
            enable_structured_output=structured_output,
        )
        step.shard(layout.devices, [table for own in tables for table in own])
        outputs = step(batch)
        names = output_names(outputs)
        inner = taken.outputs if taken is not None else {}
        graph.output(*outputs.values(), *inner.values())
    return graph, [*names, *(f"probe.{name}" for name in inner)]
