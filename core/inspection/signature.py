"""Inputs and outputs of the step graph as rows of a table, from the source that the graph itself is built from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from max.dtype import DType
from max.graph import BufferType, DeviceRef

from specdecode.core.device_layout import DeviceLayout
from specdecode.core.drivers.input_types import (
    FOLLOWING,
    MERGED_ROWS_DIM,
    SHIFTED_ROWS,
    NamedInput,
    SpeculativeConfig,
)
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig
from specdecode.core.models.deepseek_v41.load import PAGE_SIZE
from specdecode.core.models.deepseek_v41.target import LOOKBACK
from specdecode.core.models.deepseek_v41.unified.driver import UnifiedDSparkDeepseekV41
from specdecode.core.models.deepseek_v41.unified.eagle_driver import UnifiedEagleDeepseekV41, trailing_inputs
from specdecode.core.models.deepseek_v41.unified.signature import engram_inputs, input_spec

_KINDS = {
    "token": ("tokens",),
    "image": ("vision_embeddings", "vision_scatter_indices"),
    "control": (
        "input_row_offsets",
        "host_input_row_offsets",
        "data_parallel_splits",
        "batch_context_length",
        "return_n_logits",
        "cache_lengths",
        "draft_slot_ids",
        "draft_block_offsets",
        MERGED_ROWS_DIM,
        SHIFTED_ROWS,
    ),
    "KV": ("lookup_table",),
    "speculation": ("draft_tokens", "draft_probs_full", "acceptance", FOLLOWING),
    "sampling": ("seed", "temperature", "top_k", "max_k", "top_p", "min_top_p", "min_p", "penalties", "free_from"),
    "edits": ("edit_offsets", "edit_tokens", "edit_marks", "edit_bias"),
    "grammar": ("pinned_bitmask", "wait_payload", "device_bitmask_scratch"),
    "Engram": LOOKBACK,
    "exchange": ("signal_buffer", "ep_buffer"),
}
_KIND = {name: kind for kind, names in _KINDS.items() for name in names}
_PREFIXES = {"kv_": "KV cache", "engram.": "Engram table"}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One input or output.

    Attributes:
        index: its place in the graph.
        shape: sizes, and names of sizes that change from step to step.
        device: where it lies. changed: whether the graph writes to it.
        values: the first values of a real step, where one was asked for.
    """

    index: int
    name: str
    kind: str
    dtype: str
    shape: tuple[int | str, ...]
    device: str
    meaning: str
    changed: bool = False
    values: tuple[float, ...] = ()

    @property
    def bytes(self) -> int | str:
        """Its size; a product with names where they have no number yet."""
        size = _ITEM_SIZE[self.dtype]
        names = [dim for dim in self.shape if isinstance(dim, str)]
        for dim in self.shape:
            size *= dim if isinstance(dim, int) else 1
        return size if not names else " × ".join([str(size), *names])


_ITEM_SIZE = {
    "int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "float32": 4, "bfloat16": 2,
}  # fmt: skip


def inputs(
    config: DeepseekV41Config,
    layout: DeviceLayout,
    *,
    structured_output: bool = True,
    drafter: EagleConfig | None = None,
) -> list[Entry]:
    """The graph's inputs in order; `drafter`: of the graph with that drafter in place of the checkpoint's own."""
    named = named_inputs(config, layout, structured_output, drafter)
    return [_entry(index, known) for index, known in enumerate(named)]


def named_inputs(
    config: DeepseekV41Config, layout: DeviceLayout, structured_output: bool, drafter: EagleConfig | None = None
) -> list[NamedInput]:
    """What the driver declares; no graph is built."""
    text = config.text_config
    specs = input_spec(config, PageLayout.of(text, PAGE_SIZE), layout)
    if drafter is not None:
        return UnifiedEagleDeepseekV41(
            specs,
            target=None,
            drafter=None,
            trailing_input_types=trailing_inputs(config, layout),
            enable_structured_output=structured_output,
        ).named_inputs()
    return UnifiedDSparkDeepseekV41(
        config,
        SpeculativeConfig(num_speculative_tokens=text.dspark_block_size),
        specs,
        model=None,
        trailing_input_types=engram_inputs(text, layout),
        enable_structured_output=structured_output,
    ).named_inputs()


def outputs(config: DeepseekV41Config, layout: DeviceLayout, *, drafter: EagleConfig | None = None) -> list[Entry]:
    """The graph's outputs in order."""
    text = config.text_config
    block, vocab = text.dspark_block_size if drafter is None else drafter.num_draft_tokens, text.vocab_size
    found: list[tuple[str, str, str, tuple[int | str, ...], str]] = [
        ("num_accepted", "verdict", "int64", ("batch",), "drafts accepted"),
        ("next_tokens", "verdict", "int64", ("batch",), "the corrected token, or the bonus after a full match"),
        ("next_draft_tokens", "draft", "int64", ("batch", block), "the next block; -1: this request did not draft"),
        ("confidence", "draft", "float32", ("batch", block), "logits of: accepted, if those before it are"),
        ("finite", "verdict", "int32", ("batch",), "0: a row that was read held NaN or inf, or no token is left"),
        ("logits", "logits", "float32", ("batch * (num_draft_tokens + 1)", vocab), "the target's, of verified rows"),
        ("draft_logits", "logits", "float32", ("draft_rows", vocab), "what the next block was drawn from"),
    ]
    if text.engram_layer_ids:
        depth = text.engram_max_ngram_size - 1
        found.append(("engram_lookback_history", "Engram", "int64", ("batch", depth), "windows for the next step"))
    return [
        Entry(index=n, name=name, kind=kind, dtype=dtype, shape=shape, device=_place(layout.first), meaning=meaning)
        for n, (name, kind, dtype, shape, meaning) in enumerate(found)
    ]


def _entry(index: int, known: NamedInput) -> Entry:
    return Entry(
        index=index,
        name=known.name,
        kind=kind_of(known.name),
        dtype=_dtype(known.type.dtype),
        shape=tuple(_dim(dim) for dim in known.type.shape),
        device=_place(known.type.device),
        meaning=known.meaning,
        changed=isinstance(known.type, BufferType) and known.name.startswith(("kv_", "ep_", "signal_")),
    )


def kind_of(name: str) -> str:
    """What an input is for.

    Raises:
        KeyError: the graph has an input that this table does not know.
    """
    for prefix, kind in _PREFIXES.items():
        if name.startswith(prefix):
            return kind
    return _KIND[name.partition(".")[0]]  # what every device has is followed by its rank


def _dim(dim: Any) -> int | str:
    text = str(dim)
    return int(text) if text.isdigit() else text


def _dtype(dtype: DType) -> str:
    return str(dtype).rpartition(".")[2]


def _place(device: DeviceRef) -> str:
    return "cpu" if device.is_cpu() else f"gpu:{device.id}"


def table(entries: Sequence[Entry], *, markdown: bool) -> list[str]:
    """Lines for people: aligned columns, or a Markdown table."""
    head = ["#", "name", "kind", "dtype", "shape", "device", "bytes", "meaning"]
    if any(entry.values for entry in entries):
        head.append("first values")
    rows = [_cells(entry, len(head) > 8) for entry in entries]
    if markdown:
        rule = "|" + "---|" * len(head)
        return [_marked(head), rule, *map(_marked, rows)]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    ]


def _cells(entry: Entry, values: bool) -> list[str]:
    name = entry.name + (" (in and out)" if entry.changed else "")
    shape = "[" + ", ".join(map(str, entry.shape)) + "]"
    cells = [str(entry.index), name, entry.kind, entry.dtype, shape, entry.device, str(entry.bytes), entry.meaning]
    return [*cells, " ".join(f"{value:g}" for value in entry.values)] if values else cells


def _marked(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
