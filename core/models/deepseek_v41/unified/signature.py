"""The named inputs of a unified step graph: its signature before there is a model, and its values decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from max.dtype import DType
from max.graph import DeviceRef, TensorType, Value

from specdecode.core.batch import BlockBatch, StepOutputs
from specdecode.core.cache.leaves import leaf_shapes
from specdecode.core.device_layout import DeviceLayout
from specdecode.core.drivers.decode import decode
from specdecode.core.drivers.input_types import (
    CPU,
    FOLLOWING,
    SHIFTED_ROWS,
    GraphInput,
    NamedInput,
    SpecDecodeInputTypeSpec,
)
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config, TextConfig
from specdecode.core.models.deepseek_v41.target import LOOKBACK

OUTPUTS = ("num_accepted", "next_tokens", "next_draft_tokens", "confidence", "finite", "logits", "draft_logits")


def output_names(outputs: StepOutputs) -> list[str]:
    """What a step's outputs are called, in order."""
    return [*OUTPUTS, *(["engram_lookback_history"] if outputs.extra else [])]


class StepSignature:
    """Answers for a step graph's inputs.

    Args:
        specs: the canonical inputs.
        trailing: the model's own, after them.
        structured_output: whether the graph takes grammar masks.
    """

    def __init__(
        self, specs: SpecDecodeInputTypeSpec, trailing: Sequence[NamedInput], *, structured_output: bool
    ) -> None:
        self.specs = specs
        self._inputs = specs.inputs(structured_output=structured_output, trailing=trailing)

    def named_inputs(self) -> list[NamedInput]:
        """Every graph input with its name and meaning, in order."""
        return list(self._inputs)

    def input_types(self) -> list[GraphInput]:
        """The graph's signature."""
        return [known.type for known in self._inputs]

    def decode_inputs(self, values: Sequence[Value[Any]]) -> BlockBatch:
        """The graph's input values as a batch."""
        return decode(self._inputs, values, self.specs.layout)


def engram_inputs(text: TextConfig, layout: DeviceLayout) -> list[NamedInput]:
    """The model's own inputs: the lookback window, then each device's host table and scales of each Engram layer."""
    if not text.engram_layer_ids:
        return []
    depth = text.engram_max_ngram_size - 1
    meanings = (
        "raw ids before each chunk",
        "row of the history to read; -1: read the ids",
        "windows of the last step",
    )
    shapes = (["batch", depth], ["batch"], ["history_rows", depth])
    inputs = [
        NamedInput(name=name, type=TensorType(DType.int64, shape, layout.first), meaning=meaning)
        for name, shape, meaning in zip(LOOKBACK, shapes, meanings, strict=True)
    ]
    width = text.engram_head_dim
    for rank in range(layout.count):
        for layer, rows in zip(text.engram_layer_ids, text.engram_num_embeddings, strict=True):
            for part, columns in (("weight", width), ("scale", width // 32)):
                inputs.append(
                    NamedInput(
                        name=layout.named(f"engram.{layer}.{part}", rank),
                        type=TensorType(DType.uint8, [rows, columns], DeviceRef.CPU()),
                        meaning=f"host table of layer {layer}",
                    )
                )
    return inputs


def input_spec(config: DeepseekV41Config, pages: PageLayout, layout: DeviceLayout) -> SpecDecodeInputTypeSpec:
    """The canonical inputs of this model."""
    text = config.text_config
    return SpecDecodeInputTypeSpec(
        layout=layout,
        hidden_size=text.hidden_size,
        vocab_size=text.vocab_size,
        leaves=leaf_shapes(text, pages),
    )


def drafter_inputs(device: DeviceRef) -> list[NamedInput]:
    """An autoregressive drafter's own inputs."""
    return [
        NamedInput(
            name=FOLLOWING,
            type=TensorType(DType.int64, ["batch"], device),
            meaning="token behind a prompt chunk that is not the last; -1: none",
        ),
        NamedInput(
            name=SHIFTED_ROWS,
            type=TensorType(DType.int8, [SHIFTED_ROWS], CPU),
            meaning="its length is the merged rows, 0 if nobody drafts",
        ),
    ]
