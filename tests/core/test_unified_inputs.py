"""The step's inputs: order and types as the graph declares them, padding, and what is refused. Nothing compiles."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace

import numpy as np
import pytest
from max.driver import Buffer
from max.dtype import DType
from max.graph import DeviceRef

from specdecode.core.cache.leaves import KVCacheInputs, allocate_leaves
from specdecode.core.device_layout import DeviceLayout
from specdecode.core.engine.edits import EditState, Penalties
from specdecode.core.engine.step import StepRow
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.unified import arrays
from specdecode.core.models.deepseek_v41.unified.inputs import UnifiedDSparkDeepseekV41Inputs, no_images
from specdecode.core.models.deepseek_v41.unified.processor import (
    BatchRuntime,
    UnifiedDSparkDeepseekV41BatchProcessor,
)
from tests.support.promise import promise_config

CONFIG = DeepseekV41Config.from_json(promise_config())
TEXT = CONFIG.text_config
PAGES = PageLayout.of(TEXT, 16)
BLOCK = TEXT.dspark_block_size
DEPTH = TEXT.engram_max_ngram_size - 1
SIGNATURE = re.findall(
    r"\w+",
    """
    tokens input_row_offsets return_n_logits signal_buffers host_input_row_offsets data_parallel_splits
    batch_context_lengths ep_buffers engram_lookback_ids engram_lookback_source engram_lookback_history
    engram_host_buffers kv_cache_inputs lora_buffers vision_embeddings vision_scatter_indices hidden_states
    draft_tokens draft_probs_full seed temperature top_k max_k top_p min_top_p in_thinking_phase
    draft_slot_ids draft_block_offsets pinned_bitmask wait_payload device_bitmask_scratch structured_output
    """,
)


def buffer(*shape: int, dtype=np.int64) -> Buffer:
    return Buffer.from_numpy(np.zeros(shape, dtype))


@pytest.fixture
def processor() -> UnifiedDSparkDeepseekV41BatchProcessor:
    tables = []
    for rows in TEXT.engram_num_embeddings:
        tables += [buffer(rows, width, dtype=np.uint8) for width in (TEXT.engram_head_dim, TEXT.engram_head_dim // 32)]
    runtime = BatchRuntime(
        leaves=allocate_leaves(TEXT, PAGES, 8),
        page_size=16,
        engram_host_buffers=tables,
        num_draft_tokens=BLOCK,
    )
    return UnifiedDSparkDeepseekV41BatchProcessor(CONFIG, runtime)


def row(**changes) -> StepRow:
    values = {
        "tokens": [7],
        "cache_length": 20,
        "pages": (1, 2),
        "draft_tokens": (5, 6),
        "lookback": (3, 4),
        "seed": 9,
        "temperature": 0.5,
    }
    return StepRow(**{**values, **changes})


def numpy(value: Buffer) -> np.ndarray:
    return value.to_numpy()


def test_the_signature_is_the_reference_one():
    parameters = inspect.signature(UnifiedDSparkDeepseekV41Inputs).parameters
    assert list(parameters) == SIGNATURE
    keyword = [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
    assert keyword == SIGNATURE[SIGNATURE.index("kv_cache_inputs") :]
    required = [name for name, p in parameters.items() if p.default is p.empty]
    assert required == SIGNATURE[:4]


def layout_of(count: int, degree: int, device: DeviceRef | None = None) -> DeviceLayout:
    devices = (device or DeviceRef.CPU(),) * count
    return DeviceLayout(devices=devices, data_parallel_degree=degree)


def processor_of(layout: DeviceLayout, tables) -> UnifiedDSparkDeepseekV41BatchProcessor:
    leaves, *peers = (allocate_leaves(TEXT, PAGES, 8) for _ in layout.devices)
    runtime = BatchRuntime(
        leaves=leaves,
        peers=peers,
        layout=layout,
        page_size=16,
        engram_host_buffers=list(tables) * layout.count,
        num_draft_tokens=BLOCK,
    )
    made = UnifiedDSparkDeepseekV41BatchProcessor(CONFIG, runtime)
    if layout.data_parallel:
        made.bind_ep_buffers([buffer(64, TEXT.hidden_size, dtype=np.float32)] * layout.count)
    return made


def named_inputs(layout: DeviceLayout):
    from specdecode.core.drivers.input_types import SpeculativeConfig
    from specdecode.core.models.deepseek_v41.unified import driver

    return driver.UnifiedDSparkDeepseekV41(
        CONFIG,
        SpeculativeConfig(num_speculative_tokens=BLOCK),
        driver.input_spec(CONFIG, PAGES, layout),
        model=None,
        trailing_input_types=driver.engram_inputs(TEXT, layout),
    ).named_inputs()


def fitting(named, buffers) -> dict[str, int]:
    """The sizes that the names of dimensions turn out to have; every buffer fits its input."""
    assert len(buffers) == len(named)
    sizes: dict[str, int] = {}
    for known, given in zip(named, buffers, strict=True):
        assert given.dtype == known.type.dtype, known.name
        assert len(given.shape) == len(known.type.shape), known.name
        for dim, size in zip(known.type.shape, given.shape, strict=True):
            expected = int(dim) if str(dim).isdigit() else sizes.setdefault(str(dim), size)
            assert size == expected, (known.name, dim)
    return sizes


@pytest.mark.parametrize(("width", "draft"), [(0, False), (2, True), (BLOCK, True)])
@pytest.mark.parametrize(("count", "degree"), [(1, 1), (2, 1), (4, 4)])
def test_buffers_follow_the_graph_input_by_input(processor, count, degree, width, draft):
    layout = layout_of(count, degree)
    made = processor_of(layout, processor.runtime.engram_host_buffers)
    rows = [row(draft_tokens=(5,) * width), row(tokens=[1, 2, 3], draft_tokens=(), pages=(3, 4))]
    sizes = fitting(named_inputs(layout), made.prepare(rows, width=width, draft=draft).buffers)
    assert sizes["merged_rows"] == sizes["total_tokens"] + sizes["batch"] * sizes["num_draft_tokens"]


def test_the_inputs_of_several_devices_are_in_the_reference_s_order():
    names = [known.name.partition(".")[0] for known in named_inputs(layout_of(2, 2))]
    assert list(dict.fromkeys(names))[:16] == [
        "tokens", "vision_embeddings", "vision_scatter_indices", "input_row_offsets", "host_input_row_offsets",
        "return_n_logits", "data_parallel_splits", "kv_window", "kv_compressed", "kv_keys", "kv_open_groups",
        "cache_lengths", "lookup_table", "batch_context_length", "ep_buffer", "draft_tokens",
    ]  # fmt: skip
    gpus = DeviceLayout(devices=(DeviceRef.GPU(0), DeviceRef.GPU(1)))
    named = named_inputs(gpus)
    names = [known.name for known in named]
    at = names.index("signal_buffer.0")
    assert names[at - 1 : at + 3] == ["return_n_logits", "signal_buffer.0", "signal_buffer.1", "kv_window.0"]
    assert names[-5:] == [
        *(f"engram.1.{part}.{rank}" for rank in (0, 1) for part in ("weight", "scale")),
        "merged_rows",
    ]
    places = {known.name: str(known.type.device) for known in named}
    assert (places["kv_window.1"], places["lookup_table.1"], places["draft_tokens"]) == ("gpu:1", "gpu:1", "gpu:0")
    assert places["engram.1.weight.1"] == "cpu:0"


def test_replicas_get_their_own_requests(processor):
    """Eight pages each: rows of replicas 0, 2 and 2, none of 1 and 3; page numbers count from a replica's first."""
    made = processor_of(layout_of(4, 4), processor.runtime.engram_host_buffers)
    rows = [row(), row(pages=(17, 18), tokens=[1, 2]), row(pages=(20, 21), cache_length=2, lookback=(3, 4))]
    inputs = made.prepare(rows, width=2, draft=True)
    assert numpy(inputs.data_parallel_splits).tolist() == [0, 1, 1, 3, 3]
    assert numpy(inputs.host_input_row_offsets).tolist() == numpy(inputs.input_row_offsets).tolist() == [0, 1, 3, 4]
    assert [numpy(length).tolist() for length in inputs.batch_context_lengths] == [[21], [0], [22 + 3], [0]]
    caches = inputs.kv_cache_inputs.devices
    assert [numpy(own.cache_lengths).tolist() for own in caches] == [[20], [], [20, 2], []]
    assert [numpy(own.lookup_table).tolist() for own in caches] == [[[1, 2]], [], [[1, 2], [4, 5]], []]
    again = made.prepare_initial_token_inputs([rows[:1], [], rows[1:], []])
    assert numpy(again.data_parallel_splits).tolist() == [0, 1, 1, 3, 3]
    with pytest.raises(ValueError, match="a row of replica 1 has pages of another one"):
        made.prepare_initial_token_inputs([rows[:1], rows[1:], [], []])
    with pytest.raises(ValueError, match=r"2 replica batches, but this model has 4 replica\(s\)"):
        made.prepare_initial_token_inputs([rows[:1], rows[1:]])


def test_what_data_parallelism_needs_is_given_whole_or_not_at_all(processor):
    made = processor_of(layout_of(2, 2), processor.runtime.engram_host_buffers)
    inputs = made.prepare([row()], width=2, draft=True)
    with pytest.raises(ValueError, match="ep_buffers has 1 buffers, but this graph has 2 devices"):
        _ = replace(inputs, ep_buffers=inputs.ep_buffers[:1]).buffers
    with pytest.raises(ValueError, match="host_input_row_offsets is not set, but the graph takes it"):
        _ = replace(inputs, host_input_row_offsets=None).buffers
    with pytest.raises(ValueError, match=r"signal_buffers is set to 1 buffers, but this graph has 2 device\(s\)"):
        _ = replace(inputs, signal_buffers=[buffer(1)]).buffers
    with pytest.raises(ValueError, match="1 expert-parallel buffers, but 2 logical, data parallel 2 needs 2"):
        made.bind_ep_buffers([buffer(1)])


def test_rows_become_ragged_and_padded_inputs(processor):
    rows = [row(), row(tokens=[1, 2, 3], cache_length=1, draft_tokens=(), lookback=(8,), pages=(3,), seed=-1)]
    inputs = processor.prepare(rows, width=3, draft=True)
    assert numpy(inputs.tokens).tolist() == [7, 1, 2, 3]
    assert numpy(inputs.input_row_offsets).tolist() == [0, 1, 4]
    assert numpy(inputs.draft_tokens).tolist() == [[5, 6, -1], [-1, -1, -1]]
    assert numpy(inputs.seed).tolist() == [9, 2**64 - 1]
    assert numpy(inputs.temperature).tolist() == [0.5, 0.5]
    assert numpy(inputs.kv_cache_inputs.cache_lengths).tolist() == [20, 1]
    assert numpy(inputs.kv_cache_inputs.lookup_table).tolist() == [[1, 2], [3, 0]]
    assert numpy(inputs.draft_slot_ids).tolist() == list(range(2 * BLOCK))
    assert numpy(inputs.draft_block_offsets).tolist() == [0, BLOCK, 2 * BLOCK]
    assert numpy(inputs.engram_lookback_ids).tolist() == [[3, 4], [-1, 8]]
    assert numpy(inputs.engram_lookback_source).tolist() == [-1, -1]
    assert [numpy(v).tolist() for v in (inputs.top_k, inputs.max_k)] == [[-1, -1], -1]
    assert [numpy(v).tolist() for v in (inputs.top_p, inputs.min_top_p)] == [[1, 1], 1]
    assert numpy(inputs.return_n_logits).tolist() == [1]


def test_without_drafting_the_block_is_empty(processor):
    inputs = processor.prepare([row(), row(pages=(3, 4))], width=2, draft=False)
    assert inputs.draft_slot_ids.shape[0] == 0
    assert numpy(inputs.draft_block_offsets).tolist() == [0, 0, 0]


def test_buffers_are_reused_and_filled_anew(processor):
    first = processor.prepare([row()], width=2, draft=True)
    second = processor.prepare([row(tokens=[8], draft_tokens=(1,), cache_length=0, lookback=())], width=2, draft=True)
    for one, other in zip(first.buffers, second.buffers, strict=True):
        assert one is other
    assert numpy(second.tokens).tolist() == [8]
    assert numpy(second.draft_tokens).tolist() == [[1, -1]]
    assert numpy(second.engram_lookback_ids).tolist() == [[-1, -1]]


def test_the_lookback_may_come_from_the_last_step(processor):
    history = buffer(3, DEPTH)
    rows = [row(lookback=()), row(pages=(3, 4))]
    inputs = processor.prepare(rows, width=2, draft=True, history=history, sources=[2, -1])
    assert inputs.engram_lookback_history is history
    assert numpy(inputs.engram_lookback_source).tolist() == [2, -1]
    assert numpy(inputs.engram_lookback_ids)[1].tolist() == [3, 4]
    with pytest.raises(ValueError, match="row 0 reads its lookback from row 3 of 3"):
        processor.prepare(rows, width=2, draft=True, history=history, sources=[3, -1])


def test_the_initial_inputs_are_those_of_one_replica(processor):
    inputs = processor.prepare_initial_token_inputs([[row()]])
    assert inputs.draft_tokens.shape[1] == BLOCK
    caches = KVCacheInputs(leaves={}, cache_lengths=buffer(1), lookup_table=buffer(1, 2))
    assert processor.prepare_initial_token_inputs([[row()]], caches).kv_cache_inputs is caches
    with pytest.raises(ValueError, match="2 replica batches"):
        processor.prepare_initial_token_inputs([[row()], [row()]])
    with pytest.raises(ValueError, match="return_n_logits is 2"):
        processor.prepare_initial_token_inputs([[row()]], return_n_logits=2)
    processor.bind_ep_buffers([])
    with pytest.raises(ValueError, match="1 expert-parallel buffers"):
        processor.bind_ep_buffers([buffer(1)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": []}, "0 tokens"),
        ({"draft_tokens": (1, 2, 3)}, "3 drafts"),
        ({"cache_length": 30}, "2 pages of 16 for 33 rows"),
        ({"pages": (1, 8)}, "outside the 8"),
        ({"pages": (-1, 2)}, "outside the 8"),
        ({"lookback": (3,)}, "1 ids before its tokens"),
        ({"cache_length": 1}, "needs 1"),
    ],
)
def test_a_row_that_would_leave_the_caches_is_refused(processor, changes, message):
    with pytest.raises(ValueError, match=message):
        processor.prepare([row(**changes)], width=2, draft=True)


@pytest.mark.parametrize("width", [-1, BLOCK + 1])
def test_a_width_beyond_the_block_is_refused(processor, width):
    with pytest.raises(ValueError, match=f"0 to {BLOCK}"):
        processor.prepare([row(draft_tokens=())], width=width, draft=True)


REFUSED = {
    "signal_buffers": [buffer(1)],
    "host_input_row_offsets": buffer(2),
    "data_parallel_splits": buffer(2),
    "batch_context_lengths": [buffer(1)],
    "ep_buffers": (buffer(1),),
    "lora_buffers": (buffer(1),),
    "hidden_states": buffer(1),
    "in_thinking_phase": buffer(1),
    "pinned_bitmask": buffer(1),
    "wait_payload": buffer(2),
    "device_bitmask_scratch": buffer(1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_graph_input_takes_is_refused(processor, name):
    inputs = processor.prepare([row()], width=2, draft=True)
    setattr(inputs, name, REFUSED[name])
    with pytest.raises(ValueError, match=f"{name} is set"):
        _ = inputs.buffers


@pytest.mark.parametrize("name", ["draft_tokens", "seed", "kv_cache_inputs", "engram_lookback_ids", "draft_slot_ids"])
def test_a_missing_input_is_named(processor, name):
    inputs = processor.prepare([row()], width=2, draft=True)
    setattr(inputs, name, None)
    with pytest.raises(ValueError, match=f"{name} is not set"):
        _ = inputs.buffers


def test_images_are_refused_and_no_image_rows_are_needed(processor):
    inputs = processor.prepare([row()], width=2, draft=True)
    inputs.vision_scatter_indices = [buffer(4, dtype=np.int32)]
    with pytest.raises(ValueError, match="4 image rows are set"):
        _ = inputs.buffers
    inputs.vision_embeddings, inputs.vision_scatter_indices = [], []
    with pytest.raises(ValueError, match="no_images"):
        _ = inputs.buffers
    inputs.vision_embeddings, inputs.vision_scatter_indices = no_images(TEXT.hidden_size)
    assert inputs.buffers


def test_masks_are_inputs_of_a_structured_step(processor):
    inputs = processor.prepare([row()], width=2, draft=True)
    plain = inputs.buffers
    inputs.structured_output = True
    with pytest.raises(ValueError, match="pinned_bitmask is not set"):
        _ = inputs.buffers
    masks = [buffer(1), buffer(2), buffer(3)]
    inputs.pinned_bitmask, inputs.wait_payload, inputs.device_bitmask_scratch = masks
    at = plain.index(inputs.draft_block_offsets) + 1
    assert inputs.buffers == (*plain[:at], *masks, *plain[at:])


def test_a_model_without_engram_takes_no_lookback():
    whole = replace(CONFIG, text_config=replace(TEXT, engram_layer_ids=(), engram_num_embeddings=()))
    runtime = BatchRuntime(leaves=allocate_leaves(TEXT, PAGES, 8), page_size=16)
    inputs = UnifiedDSparkDeepseekV41BatchProcessor(whole, runtime).prepare([row(lookback=())], width=2, draft=True)
    assert inputs.engram_lookback_ids is None
    assert len(inputs.buffers) == len(set(map(id, inputs.buffers))) == 30
    inputs.engram_lookback_ids = buffer(1, DEPTH)
    with pytest.raises(ValueError, match="engram_host_buffers is empty"):
        _ = inputs.buffers


def test_arrays_of_shapes_that_are_gone_are_dropped_and_nothing_else_changes(processor, monkeypatch):
    """Random shapes, with limits and edits now and then: inputs are those of a processor that keeps nothing."""
    rng = np.random.default_rng(5)
    monkeypatch.setattr(arrays, "MOST_ARRAYS", 60)
    most = 0
    for _ in range(200):
        edits = None
        if rng.random() < 0.3:
            state = EditState(
                bias={int(t): 1.0 for t in rng.integers(0, 60, 3)},
                banned=[3],
                free_from=40,
                penalties=Penalties(repetition=1.3, frequency=0.5, presence=0.1),
                prompt=[1, 2],
            )
            edits = state.edits([1, 2])
        limits = {"top_k": 5, "min_p": 0.1, "temperature": 1.0} if rng.random() < 0.3 else {}
        rows = [
            row(tokens=[7] * int(rng.integers(1, 7)), edits=edits, **limits) for _ in range(int(rng.integers(1, 4)))
        ]
        width, draft = int(rng.integers(2, BLOCK + 1)), bool(rng.integers(2))
        fresh = UnifiedDSparkDeepseekV41BatchProcessor(CONFIG, processor.runtime)
        expected = fresh.prepare(rows, width=width, draft=draft)
        found = processor.prepare(rows, width=width, draft=draft)
        end = int(numpy(found.law.edit_offsets)[-1])  # what is behind belongs to nobody
        for one, other in zip(found.buffers, expected.buffers, strict=True):
            edits_alone = any(one is getattr(found.law, f"edit_{part}") for part in ("tokens", "marks", "bias"))
            used = slice(end if edits_alone else None)
            if one.dtype != DType.bfloat16:
                assert (
                    (one.to_numpy()[used] == other.to_numpy()[used]).all() if one.shape else numpy(one) == numpy(other)
                )
        most = max(most, len(processor._kept))
    assert most < 120


def test_many_bytes_count_as_many_arrays_do(processor, monkeypatch):
    monkeypatch.setattr(arrays, "MOST_BYTES", 1)
    for count in range(1, 9):
        processor.prepare([row(tokens=[7] * count)], width=2, draft=True)
    assert processor._bytes < 4096
