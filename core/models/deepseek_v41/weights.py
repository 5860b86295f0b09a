"""From a checkpoint's tensors to the graph's weights.

Names stay those of the checkpoint; three things differ. The routed experts of a layer are stacked into one tensor,
small bfloat16 vectors (norms, Engram's gate weights) become float32 (exact), and some constants are derived from the
configuration and the tokenizer. FP8, FP4 and UE8M0 travel as bytes. Engram tables are graph inputs, not weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from max.driver import Buffer
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorValue, Weight
from numpy.typing import NDArray

from specdecode.core.checkpoint.inventory import eagle_tensors, expected_tensors, is_vision
from specdecode.core.kernels.settings import inverse_frequencies, model_settings

if TYPE_CHECKING:
    from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
    from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig
    from specdecode.core.models.deepseek_v41.engram_tables import EngramTables

_EXPERT = re.compile(r"(.*\.ffn\.experts)\.(\d+)\.(w[123]\.(?:weight|scale))")
_DTYPES = {
    "F8_E4M3": DType.uint8,
    "F8_E8M0": DType.uint8,
    "I8": DType.uint8,
    "BF16": DType.bfloat16,
    "F32": DType.float32,
}

MODE = "derived.mode"
MODEL = "derived.model"


@dataclass(frozen=True, kw_only=True)
class Part:
    """Slice `index` of `count` equal ones along an axis of a weight."""

    axis: int = 0
    index: int = 0
    count: int = 1


WHOLE = Part()


@dataclass(frozen=True, kw_only=True)
class GraphWeight:
    """One graph weight.

    Attributes:
        dtype, shape: as the graph has it.
        sources: the checkpoint tensors that the whole weight is made of (none: derived).
        part: what of the whole weight it is.
        name: what the graph calls it; None: what the checkpoint does.
    """

    dtype: DType
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    part: Part = WHOLE
    name: str | None = None

    @property
    def stacked(self) -> bool:
        """Whether it is a stack of the experts' matrices [E, N, K], one source each."""
        return bool(self.sources) and len(self.shape) == 3


def is_engram_table(name: str) -> bool:
    """Whether a tensor is an Engram table or its scales: host memory, bound as a graph input."""
    return ".engram.embed." in name


def graph_weights(config: DeepseekV41Config, drafter: EagleConfig | None = None) -> dict[str, GraphWeight]:
    """Every weight of the graph by name; with an EAGLE drafter its own in place of the checkpoint's draft stages."""
    weights: dict[str, GraphWeight] = {}
    stacks: dict[str, list[str]] = {}
    specs = expected_tensors(config)
    if drafter is not None:
        specs = {name: spec for name, spec in specs.items() if not name.startswith("mtp.")}
        specs |= eagle_tensors(config.text_config, drafter)
    for name, spec in specs.items():
        if is_vision(name) or is_engram_table(name) or name.endswith(".bias_vl"):
            continue  # bias_vl routes image tokens, which are refused
        if match := _EXPERT.fullmatch(name):
            stack = f"{match[1]}.{match[3]}"
            stacks.setdefault(stack, []).append(name)
            shape = (len(stacks[stack]), *spec.shape)
            weights[stack] = GraphWeight(dtype=DType.uint8, shape=shape, sources=tuple(stacks[stack]))
            continue
        small = spec.dtype == "BF16" and (len(spec.shape) == 1 or name.endswith(("q_weight", "k_weight")))
        dtype = DType.float32 if small else _DTYPES[spec.dtype]
        weights[name] = GraphWeight(dtype=dtype, shape=spec.shape, sources=(name,))
    for name, (dtype, shape) in _derived_types(config).items():
        weights[name] = GraphWeight(dtype=dtype, shape=shape, sources=())
    return weights


def _derived_types(config: DeepseekV41Config) -> dict[str, tuple[DType, tuple[int, ...]]]:
    text = config.text_config
    half = text.qk_rope_head_dim // 2
    types: dict[str, tuple[DType, tuple[int, ...]]] = {
        MODE: (DType.int32, (2,)),
        MODEL: (DType.float32, (4,)),
        "derived.inv_freq": (DType.float32, (half,)),
        "derived.inv_freq_compressed": (DType.float32, (half,)),
        "derived.block": (DType.int64, (2,)),
    }
    layers, grams, heads = len(text.engram_layer_ids), len(text.engram_ngrams), text.engram_n_heads
    if layers:
        types |= {
            "derived.engram.token_map": (DType.int64, (text.vocab_size,)),
            "derived.engram.multipliers": (DType.int64, (layers, grams + 1)),
            "derived.engram.primes": (DType.int64, (layers, grams, heads)),
            "derived.engram.offsets": (DType.int64, (layers, grams, heads)),
            "derived.engram.ids": (DType.int64, (2,)),
        }
    return types


def derived_arrays(
    config: DeepseekV41Config, tables: EngramTables | None, *, exact: bool
) -> dict[str, NDArray[np.generic]]:
    """Values of the derived weights: `exact` switches the model's own rounding on; kernels get one thread."""
    text = config.text_config
    arrays: dict[str, NDArray[np.generic]] = {
        MODE: np.array([int(exact), 1], np.int32),
        MODEL: model_settings(text),
        "derived.inv_freq": inverse_frequencies(text, compressed=False),
        "derived.inv_freq_compressed": inverse_frequencies(text, compressed=True),
        "derived.block": np.array([text.dspark_block_size, text.dspark_noise_token_id], np.int64),
    }
    if tables is not None:
        shape = (len(text.engram_layer_ids), len(text.engram_ngrams), text.engram_n_heads)
        arrays |= {
            "derived.engram.token_map": tables.token_map,
            "derived.engram.multipliers": tables.multipliers,
            "derived.engram.primes": tables.primes.reshape(shape),
            "derived.engram.offsets": tables.offsets.reshape(shape),
            "derived.engram.ids": np.array([tables.pad, config.image_token_id], np.int64),
        }
    return arrays


class WeightTable:
    """The graph's weights by the checkpoint's names, added to the current graph at first use.

    Args:
        known: every weight that may be asked for.
        device: where they are.
        shared: the values by the graph's names, which logical shards of one device have in common.
    """

    def __init__(
        self,
        known: Mapping[str, GraphWeight],
        device: DeviceRef,
        shared: dict[str, TensorValue] | None = None,
    ) -> None:
        self._known, self._device = known, device
        self._values: dict[str, TensorValue] = {} if shared is None else shared

    def __call__(self, name: str) -> TensorValue:
        known = self._known[name]
        called = known.name or name
        if called not in self._values:
            weight = Weight(called, known.dtype, list(known.shape), self._device)
            # Else MAX expects every weight on the host first, a second copy of the model.
            self._values[called] = Graph.current.add_weight(weight, force_initial_weight_on_host=False)
        return self._values[called]

    def heads(self) -> int:
        """Query heads that this device has."""
        return self._known["layers.0.attn.attn_sink"].shape[0]

    def pair(self, name: str) -> tuple[TensorValue, TensorValue]:
        """A quantised matrix and its scales."""
        return self(f"{name}.weight"), self(f"{name}.scale")


def to_buffer(array: NDArray[np.generic], dtype: DType) -> Buffer:
    """A contiguous array as a MAX buffer on the CPU, not copied; bfloat16 arrives as uint16 bit patterns."""
    if dtype != DType.bfloat16:
        return Buffer.from_numpy(array)
    return Buffer.from_numpy(array.view(np.uint8)).view(DType.bfloat16, list(array.shape))
