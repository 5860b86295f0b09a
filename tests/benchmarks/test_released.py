"""What the benchmark of released layers counts and builds, without running it at its sizes."""

from __future__ import annotations

import numpy as np
import pytest
from max.driver import CPU
from max.dtype import DType

from specdecode.core.bench import bandwidth, traffic
from specdecode.core.bench.traffic import Step
from specdecode.core.models.deepseek_v41.config import LayerKind
from specdecode.core.models.deepseek_v41.weights import graph_weights
from specdecode.core.progress import Silent
from tests.benchmarks.released import clocks, weights
from tests.benchmarks.released.bench import Bench
from tests.benchmarks.released.config import layer_names, layers_config
from tests.support.released import released_config

SMALL = layers_config(tiny=True)
STEP = Step(batch=2, width=1, context=20, draft=False)


def test_cache_bytes_by_hand():
    """Rows and keys of 32 float32; a window of 8, 4 chosen rows, 2 candidate blocks of 2, 20 cached tokens."""
    window = (8 + 2) * 128
    by_hand = [
        window,
        window + 4 * 128 + 10 * 128 + 1 * 256,  # scores 10 keys; two rows complete one group
        window + 4 * 128,
        window + 4 * 128 + 20 * 128 + 2 * 256,
        window + 4 * 128 + 4 * 128,
    ]
    found = [traffic.layer_cache(SMALL.text_config, layer, STEP) for layer in range(5)]
    assert found == [2 * each for each in by_hand]
    assert traffic.traffic(SMALL, STEP).caches == 27136
    drafting = Step(batch=2, width=1, context=20, draft=True)
    assert traffic.traffic(SMALL, drafting).caches == 27136 + 2 * 2 * window


def test_a_short_context_has_less_to_read():
    short = Step(batch=1, width=0, context=3, draft=False)
    found = [traffic.layer_cache(SMALL.text_config, layer, short) for layer in range(5)]
    window = (3 + 1) * 128
    assert found == [
        window,
        window + 1 * 128 + 1 * 128 + 256,
        window + 1 * 128,
        window + 3 * 128 + 3 * 128 + 256,
        window + 3 * 128 + 3 * 128,
    ]


def test_engram_rows_come_over_the_bus():
    assert traffic.traffic(SMALL, STEP).bus == 4 * 4 * (32 + 1)  # 4 rows, 4 hashes each


def test_experts_are_counted_as_rows_choose_them():
    assert traffic.distinct_experts(2, 1, 1) == 1
    assert traffic.distinct_experts(2, 1, 4) == 1.875
    assert traffic.distinct_experts(384, 6, 1) == pytest.approx(6)
    assert 260 < traffic.distinct_experts(384, 6, 72) < 270


def test_weight_bytes_are_the_step_s_own():
    sizes = {n: int(np.prod(w.shape)) * w.dtype.size_in_bytes for n, w in graph_weights(SMALL).items()}
    target = {n: s for n, s in sizes.items() if not n.startswith(("mtp.", "derived.", "embed."))}
    experts = sum(s for n, s in target.items() if ".ffn.experts." in n)
    row = 32 * 2
    assert traffic.weight_traffic(SMALL, STEP) == sum(target.values()) - experts + experts * 1.875 / 2 + 4 * row
    stages = {n: s for n, s in sizes.items() if n.startswith("mtp.") and "markov_head.embed" not in n}
    more = traffic.weight_traffic(SMALL, Step(batch=2, width=1, context=20, draft=True)) - traffic.weight_traffic(
        SMALL, STEP
    )
    chosen = sum(s for n, s in stages.items() if ".ffn.experts." in n)
    by_hand = sum(stages.values()) - chosen * 0.5**10 + sizes["head.weight"] + 10 * row + 10 * row
    assert more == pytest.approx(by_hand, abs=2)


def test_the_layers_are_one_of_each_kind_at_released_sizes():
    config = layers_config(tiny=False)
    text, released = config.text_config, released_config()["text_config"]
    for name in ("hidden_size", "moe_intermediate_size", "n_routed_experts", "index_topk", "vocab_size", "head_dim"):
        assert getattr(text, name) == released[name]
    assert text.num_stages == 3
    assert {text.layer_kind(layer) for layer in range(text.num_hidden_layers)} == set(LayerKind)
    assert "full, ratio 2" in layer_names(text)
    assert "full, ratio 1, candidate source" in layer_names(text)
    assert text.uses_candidates(4)


def test_random_bytes_are_numbers():
    found = weights.blocks(np.random.default_rng(0), 4096)
    assert ((found["fp8"] & 0x7F) < 0x40).all()
    assert len(np.unique(found["fp8"])) == 128
    assert (np.abs(found["scale"].astype(int) - 120) <= 1).all()
    bf16 = (found["bf16"].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    assert np.isfinite(bf16).all()
    assert 0.01 < bf16.std() < 0.03


def test_every_weight_is_made_of_its_kind():
    known = graph_weights(SMALL)
    kinds = {name: weights.kind(name, weight) for name, weight in known.items() if weight.sources}
    assert kinds["layers.0.ffn.experts.w1.weight"] == "fp4"
    assert kinds["layers.0.ffn.experts.w1.scale"] == "scale"
    assert kinds["layers.0.ffn.shared_experts.w1.weight"] == "fp8"
    assert kinds["embed.weight"] == "bf16"
    assert kinds["layers.0.attn_norm.weight"] == "one"
    assert kinds["layers.0.hc_attn_fn"] == "small"


def test_memory_is_filled_to_its_end():
    memory = weights.RandomMemory(CPU(), size=4096)
    buffer = memory.filled("one", DType.float32, (3, 700))
    assert buffer.to_numpy().sum() == 2100
    assert memory.filled("bf16", DType.bfloat16, (5, 7)).shape == (5, 7)


def test_times_are_taken_as_often_as_asked():
    runs = []
    spread = clocks.device_ms(lambda: runs.append(1), CPU(), repeats=4, warm_up=2)
    assert (len(runs), len(spread.values)) == (6, 4)
    assert bandwidth.copy_bandwidth(CPU(), size=1 << 16, repeats=2) > 0


def test_a_case_is_measured_on_the_cpu():
    from specdecode.core.engine.device import open_place

    bench = Bench(open_place("cpu"), tiny=True, cases=[(2, 32), (2, 1 << 40)], progress=Silent())
    assert bench.cases == [(2, 32)]
    assert bench.left_out == [(2, 1 << 40)]
    case = bench.run((2, 32), repeats=2)
    assert set(case.steps) == set(case.wall) == {"plain", "verify", "verify + draft"}
    assert all(case.finite.values())
