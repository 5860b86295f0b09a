"""From a checkpoint's tensors to the graph's weights.

Names stay those of the checkpoint; three things differ. The routed experts of a layer are stacked into one tensor,
small bfloat16 vectors (norms, Engram's gate weights) become float32 (exact), and some constants are derived from the
configuration and the tokenizer. FP8, FP4 and UE8M0 travel as bytes. Engram tables are graph inputs, not weights.
"""

from __future__ import annotations

import re
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
class GraphWeight:
    """Type and shape of one graph weight, and the checkpoint tensors that it is made of (none: derived)."""

    dtype: DType
    shape: tuple[int, ...]
    sources: tuple[str, ...]


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
    """The graph's weights by name, added to the current graph at first use."""

    def __init__(self, config: DeepseekV41Config, device: DeviceRef, drafter: EagleConfig | None = None) -> None:
        self._known, self._device = graph_weights(config, drafter), device
        self._values: dict[str, TensorValue] = {}

    def __call__(self, name: str) -> TensorValue:
        if name not in self._values:
            known = self._known[name]
            weight = Weight(name, known.dtype, list(known.shape), self._device)
            # Else MAX expects every weight on the host first, a second copy of the model.
            self._values[name] = Graph.current.add_weight(weight, force_initial_weight_on_host=False)
        return self._values[name]

    def pair(self, name: str) -> tuple[TensorValue, TensorValue]:
        """A quantised matrix and its scales."""
        return self(f"{name}.weight"), self(f"{name}.scale")


def to_buffer(array: NDArray[np.generic], dtype: DType) -> Buffer:
    """A contiguous array as a MAX buffer on the CPU, not copied; bfloat16 arrives as uint16 bit patterns."""
    if dtype != DType.bfloat16:
        return Buffer.from_numpy(array)
    return Buffer.from_numpy(array.view(np.uint8)).view(DType.bfloat16, list(array.shape))
