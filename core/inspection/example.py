"""The inputs of a real step for one prompt: concrete shapes and first values, from the batch processor itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from max.driver import CPU, Buffer

from specdecode.core.cache.leaves import allocate_leaves
from specdecode.core.checkpoint.reader import Checkpoint
from specdecode.core.device_layout import DeviceLayout
from specdecode.core.engine.step import StepRow
from specdecode.core.errors import UsageError
from specdecode.core.inspection.signature import Entry
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig
from specdecode.core.models.deepseek_v41.load import PAGE_SIZE
from specdecode.core.models.deepseek_v41.registry import engram_host_buffers
from specdecode.core.models.deepseek_v41.unified.processor import (
    BatchRuntime,
    UnifiedDSparkDeepseekV41BatchProcessor,
)
from specdecode.core.models.deepseek_v41.unified.replicas import expert_rows

PHASES = ("prefill", "decode", "verify")
SHOWN = 8  # values of an input


def example_row(ids: Sequence[int], phase: str, block: int, lookback: int) -> StepRow:
    """The step that runs a prompt (`prefill`), its last token (`decode`), or verifies its last `block` tokens.

    Raises:
        UsageError: the prompt is too short for drafts, or there is no such phase.
    """
    if phase not in PHASES:
        raise UsageError(f"--phase {phase} is not possible. Use {', '.join(PHASES)}.")
    drafted = block if phase == "verify" else 0
    start = 0 if phase == "prefill" else len(ids) - 1 - drafted
    if start < 0:
        raise UsageError(
            f"The prompt has {len(ids)} tokens, and {phase} needs {drafted + 1}: its last {drafted} stand for drafts."
        )
    end = len(ids) - drafted
    positions = len(ids) + block
    return StepRow(
        tokens=ids[start:end],
        cache_length=start,
        pages=tuple(range(-(-positions // PAGE_SIZE))),
        draft_tokens=tuple(ids[end:]),
        lookback=ids[max(0, start - lookback) : start],
        seed=0,
        temperature=0.0,
    )


def filled(
    entries: Sequence[Entry],
    checkpoint: Checkpoint,
    row: StepRow,
    layout: DeviceLayout,
    *,
    structured_output: bool,
    drafter: EagleConfig | None = None,
) -> list[Entry]:
    """The entries with the shapes and first values of a step of one row, which is the first replica's."""
    config = checkpoint.config
    text = config.text_config
    pages = PageLayout.of(text, PAGE_SIZE)
    leaves, *peers = (allocate_leaves(text, pages, len(row.pages)) for _ in layout.devices)
    runtime = BatchRuntime(
        leaves=leaves,
        peers=peers,
        layout=layout,
        signal_buffers=[_room(entry) for entry in entries if entry.name.startswith("signal_buffer")],
        page_size=PAGE_SIZE,
        engram_host_buffers=engram_host_buffers(checkpoint, CPU()) * layout.count,
        structured_output=structured_output,
        drafter=drafter,
    )
    processor = UnifiedDSparkDeepseekV41BatchProcessor(config, runtime)
    if layout.data_parallel:
        rows = expert_rows(config, len(row.tokens) + text.dspark_block_size)
        room = Buffer.from_numpy(np.zeros((rows, text.hidden_size), np.float32))
        processor.bind_ep_buffers([room] * layout.count)
    inputs = processor.prepare([row], width=len(row.draft_tokens), draft=True)
    return [
        replace(entry, shape=tuple(buffer.shape), values=_first(entry, buffer))
        for entry, buffer in zip(entries, inputs.buffers, strict=True)
    ]


def _room(entry: Entry) -> Buffer:
    """Memory that stands for a buffer of the devices."""
    return Buffer.from_numpy(np.zeros([int(dim) for dim in entry.shape], np.uint8))


def _first(entry: Entry, buffer: Buffer) -> tuple[float, ...]:
    if entry.kind in ("KV cache", "Engram table", "exchange") or entry.dtype == "bfloat16":
        return ()
    return tuple(np.ravel(buffer.to_numpy())[:SHOWN].tolist())
