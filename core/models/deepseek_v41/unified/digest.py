"""What a step graph is made from, as one digest.

Tracing the graph takes seconds, so a compiled one is recognised by its ingredients instead: the
configuration, the page layout and the text of every source that takes part. A wrong guess can only be "it
changed".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from specdecode.core.kernels.settings import PageLayout
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig

FORMAT = 1
"""Raised when stored graphs are to be dropped for a reason that no source shows."""

CORE = Path(__file__).parents[3]
_SOURCES = (
    "batch.py",
    "cache/leaves.py",
    "checkpoint/inventory.py",
    "device_layout.py",
    "drivers/decode.py",
    "drivers/input_types.py",
    "drivers/phases.py",
    "kernels/*.py",
    "kernels/mojo/*.mojo",
    "models/deepseek_v41/bodies.py",
    "models/deepseek_v41/config.py",
    "models/deepseek_v41/layers.py",
    "models/deepseek_v41/subgraphs.py",
    "models/deepseek_v41/target.py",
    "models/deepseek_v41/weights.py",
    "models/deepseek_v41/unified/driver.py",
    "models/deepseek_v41/unified/signature.py",
)
_BLOCK_SOURCES = ("drivers/block.py", "models/deepseek_v41/model.py")
_SEQUENTIAL_SOURCES = (
    "drivers/sequential.py",
    "models/deepseek_v41/eagle.py",
    "models/deepseek_v41/unified/eagle_driver.py",
)
_PARALLEL_SOURCES = (
    "checkpoint/sharding/splits.py",
    "drivers/spread.py",
    "models/deepseek_v41/parallel/*.py",
)
_GPU_SOURCES = ("kernels/mojo/gpu/*.mojo",)
# These reach the graph as values of its weights only.
VALUES = (
    "rms_norm_eps",
    "hc_eps",
    "swiglu_limit",
    "routed_scaling_factor",
    "rope_theta",
    "rope_scaling",
    "compress_rope_theta",
    "max_position_embeddings",
    "engram_pad_token_id",
    "dspark_noise_token_id",
)


def source_files(*, gpu: bool = False, sequential: bool = False, parallel: bool = False) -> Iterator[Path]:
    """The sources that a step graph is traced and compiled from, in a fixed order.

    `gpu`: those of a GPU's too; `sequential`: of the driver with an autoregressive drafter instead of the block one;
    `parallel`: of a model on several devices too.
    """
    drivers = _SEQUENTIAL_SOURCES if sequential else _BLOCK_SOURCES
    for pattern in (*_SOURCES, *drivers, *(_PARALLEL_SOURCES if parallel else ()), *(_GPU_SOURCES if gpu else ())):
        yield from sorted(CORE.glob(pattern))


def graph_digest(
    config: DeepseekV41Config,
    pages: PageLayout,
    *,
    structured_output: bool = False,
    gpu: bool = False,
    drafter: EagleConfig | None = None,
    layout: str | None = None,
) -> str:
    """A hex digest that is equal for equal step graphs; it needs neither MAX nor the weights.

    layout: of several devices; None for one.
    """
    text = {name: value for name, value in asdict(config.text_config).items() if name not in VALUES}
    shape = {
        "format": FORMAT,
        "text": text,
        "pages": asdict(pages),
        "structured_output": structured_output,
        "drafter": None if drafter is None else asdict(drafter),
        "layout": layout,
    }
    digest = hashlib.sha256(json.dumps(shape, sort_keys=True).encode())
    for path in source_files(gpu=gpu, sequential=drafter is not None, parallel=layout is not None):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(CORE).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()
