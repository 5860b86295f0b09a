"""`UnifiedEagleDeepseekV41`: the same target with an autoregressive drafter beside it, in one graph per step."""

from __future__ import annotations

from collections.abc import Sequence

from max.graph import DeviceRef, Graph

from specdecode.core.device_layout import DeviceLayout
from specdecode.core.drivers.input_types import NamedInput, SpecDecodeInputTypeSpec
from specdecode.core.drivers.sequential import SequentialDriver
from specdecode.core.kernels import kernel_package
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.eagle import EagleDrafter, EagleState
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig
from specdecode.core.models.deepseek_v41.target import DeepseekV41Target, TargetHidden
from specdecode.core.models.deepseek_v41.unified.driver import engram_tables
from specdecode.core.models.deepseek_v41.unified.signature import (
    StepSignature,
    drafter_inputs,
    engram_inputs,
    input_spec,
    output_names,
)
from specdecode.core.models.deepseek_v41.weights import WeightTable, graph_weights


class UnifiedEagleDeepseekV41(SequentialDriver[TargetHidden, EagleState], StepSignature):
    """Verifies drafts with the target model and drafts token after token with an EAGLE layer.

    Args:
        specs: the canonical inputs.
        target, drafter: both in the current graph; None for a driver that only answers for its signature.
        trailing_input_types: the model's own inputs, after the canonical ones.
        enable_structured_output: whether the graph takes grammar masks.
    """

    def __init__(
        self,
        specs: SpecDecodeInputTypeSpec,
        *,
        target: DeepseekV41Target | None,
        drafter: EagleDrafter | None,
        trailing_input_types: Sequence[NamedInput] = (),
        enable_structured_output: bool = False,
    ) -> None:
        StepSignature.__init__(self, specs, trailing_input_types, structured_output=enable_structured_output)
        if target is not None and drafter is not None:
            SequentialDriver.__init__(self, target=target, draft=drafter)


def trailing_inputs(config: DeepseekV41Config, layout: DeviceLayout) -> list[NamedInput]:
    """The drafter's own inputs, then the target's."""
    return [*drafter_inputs(layout.first), *engram_inputs(config.text_config, layout)]


def build_eagle_graph(
    config: DeepseekV41Config,
    drafter: EagleConfig,
    pages: PageLayout,
    device: DeviceRef,
    *,
    structured_output: bool = False,
) -> tuple[Graph, list[str]]:
    """The step's graph, and the names of its outputs."""
    layout = DeviceLayout.single(device)
    specs, trailing = input_spec(config, pages, layout), trailing_inputs(config, layout)
    signature = UnifiedEagleDeepseekV41(
        specs, target=None, drafter=None, trailing_input_types=trailing, enable_structured_output=structured_output
    )
    name = "specdecode_eagle_step"
    with Graph(name, input_types=signature.input_types(), custom_extensions=[kernel_package()]) as graph:
        batch = signature.decode_inputs(graph.inputs)
        weights = WeightTable(graph_weights(config, drafter), device)
        target = DeepseekV41Target(config, pages, engram_tables(config.text_config, batch, layout)[0], device, weights)
        step = UnifiedEagleDeepseekV41(
            specs,
            target=target,
            drafter=EagleDrafter(target, drafter),
            trailing_input_types=trailing,
            enable_structured_output=structured_output,
        )
        outputs = step(batch)
        graph.output(*outputs.values())
    return graph, output_names(outputs)
