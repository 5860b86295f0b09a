"""`UnifiedDSparkDeepseekV41`: the step's graph, and its signature before there is a model."""

from __future__ import annotations

from collections.abc import Sequence

from max.graph import DeviceRef, Graph

from specdecode.core.batch import BlockBatch
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
from specdecode.core.models.deepseek_v41.target import EngramTable, TargetHidden
from specdecode.core.models.deepseek_v41.unified.signature import OUTPUTS, StepSignature, engram_inputs, input_spec


class UnifiedDSparkDeepseekV41(BlockDriver[TargetHidden], StepSignature):
    """Verifies drafts with the target model and drafts blocks with DSpark.

    Args:
        config: the checkpoint's configuration.
        speculative_config: draft tokens per step.
        specs: the canonical inputs.
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
        StepSignature.__init__(self, specs, trailing_input_types, structured_output=enable_structured_output)
        if model is not None:
            BlockDriver.__init__(self, target=model, draft=model)

    def shard(
        self, devices: Sequence[DeviceRef], engram_host_tables: Sequence[EngramTable]
    ) -> list[DeepseekV41WithDSpark]:
        """The per-device copies that both roles run on; on one device, the target itself.

        Raises:
            ValueError: without a model, or with several devices (not supported yet).
        """
        if self._model is None:
            raise ValueError("this driver was built with model=None: it only answers for the graph's signature")
        if len(devices) != 1 or list(engram_host_tables) != list(self._model.tables):
            raise ValueError(f"sharding over {len(devices)} devices is not supported: the model runs on one")
        return [self._model]


def engram_tables(text: TextConfig, batch: BlockBatch) -> list[EngramTable]:
    """The Engram tables among a graph's inputs, in order."""
    return [
        EngramTable(weight=batch.extra[f"engram.{layer}.weight"], scale=batch.extra[f"engram.{layer}.scale"])
        for layer in text.engram_layer_ids
    ]


def build_graph(
    config: DeepseekV41Config,
    pages: PageLayout,
    device: DeviceRef,
    *,
    probe: bool = False,
    structured_output: bool = False,
) -> tuple[Graph, list[str]]:
    """The step's graph, and the names of its outputs.

    With `probe`, four more inputs follow (see `probe.py`), and every inner value is an output.
    """
    text = config.text_config
    specs = input_spec(config, pages, device)
    speculation = SpeculativeConfig(num_speculative_tokens=text.dspark_block_size)
    trailing = engram_inputs(text, device)
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
        tables = engram_tables(text, batch)
        taken = probing.Probe(text, [v.tensor for v in graph.inputs[count:]], device) if probe else None
        model = DeepseekV41WithDSpark(config, pages, tables, device, probe=taken)
        step = UnifiedDSparkDeepseekV41(
            config,
            speculation,
            specs,
            model=model,
            trailing_input_types=trailing,
            enable_structured_output=structured_output,
        )
        outputs = step(batch)
        names = [*OUTPUTS, *(["engram_lookback_history"] if outputs.extra else [])]
        inner = taken.outputs if taken is not None else {}
        graph.output(*outputs.values(), *inner.values())
    return graph, [*names, *(f"probe.{name}" for name in inner)]
