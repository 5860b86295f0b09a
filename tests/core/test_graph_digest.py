"""Shipped graphs belong to the sources they lie beside, and the digest that says so forgets nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from specdecode.core.cache.leaves import leaf_shapes
from specdecode.core.device_names import DeviceNames
from specdecode.core.engine.device import Place
from specdecode.core.engine.devices import Places, open_places
from specdecode.core.kernels.settings import PageLayout, layer_settings
from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig
from specdecode.core.models.deepseek_v41.load import PAGE_SIZE, StepGraph
from specdecode.core.models.deepseek_v41.unified import digest
from specdecode.core.models.deepseek_v41.unified.digest import CORE, VALUES, graph_digest, source_files
from specdecode.core.models.deepseek_v41.weights import graph_weights
from tests.support.promise import GRAPHS, PARALLEL_GRAPHS, parallel_config, promise_config

DEMO = CORE.parent / "presets" / "demo"
DRAFTER = EagleConfig(
    num_draft_tokens=3,
    markov_rank=8,
    target_layer_ids=(1,),
    n_routed_experts=4,
    num_experts_per_tok=2,
    sliding_window=8,
    hidden_size=64,
    vocab_size=64,
)
# Imported while a graph is traced without shaping it.
WITHOUT_A_SHARE = {
    "errors",
    "checkpoint.shard",
    "checkpoint.formats",
    "models.deepseek_v41.config_checks",
    "models.deepseek_v41.config_reader",
    "models.deepseek_v41.eagle_config",  # its values are in the digest
    "models.deepseek_v41.probe",
    "checkpoint.slices",
    "checkpoint.sharding.layout",  # names for what `splits` says
}


PARALLEL_BESIDE = {"drivers.spread", "checkpoint.sharding.splits"}


def config(**changes) -> DeepseekV41Config:
    whole = DeepseekV41Config.from_json(promise_config())
    return replace(whole, text_config=replace(whole.text_config, **changes))


def digest_of(whole: DeepseekV41Config, page_size: int = PAGE_SIZE, **options) -> str:
    return graph_digest(whole, PageLayout.of(whole.text_config, page_size), **options)


@pytest.mark.parametrize(
    ("name", "devices", "degree"),
    [
        ("demo", "cpu", 1), ("eagle", "cpu", 1), ("tests", "cpu", 1), ("demo", "cpux2", 1), ("demo", "cpux2", 2),
        ("parallel", "cpu", 1), ("parallel", "cpux4", 1), ("parallel", "cpux4", 4),
    ],
)  # fmt: skip
def test_the_shipped_graph_is_what_the_sources_make(name, devices, degree):
    contents = {"tests": promise_config, "parallel": parallel_config}
    folders = {"tests": GRAPHS, "parallel": PARALLEL_GRAPHS}
    whole = DeepseekV41Config.from_json(contents[name]() if name in contents else DEMO)
    drafter = EagleConfig.from_folder(DEMO / "eagle", whole.text_config) if name == "eagle" else None
    places, pages = open_places(devices, degree), PageLayout.of(whole.text_config, PAGE_SIZE)
    graph = StepGraph(config=whole, pages=pages, places=places, drafter=drafter)
    folder = folders.get(name, DEMO / "graphs")
    manifest = json.loads((folder / f"{graph.key.name}.x86-64-v3.mef.json").read_text())
    assert manifest["digest"] == graph.key.digest, "stale: run `python examples/build_graphs.py` and commit the files"
    assert manifest["max_version"] == graph.key.max_version
    assert manifest["compile_cpu_seconds"] <= 300
    assert manifest["ops"] <= (1000 if places.single else 3000), (
        "the graph has grown; MAX charges compile time by its ops"
    )


@pytest.mark.parametrize(("module", "sequential"), [("driver", False), ("eagle_driver", True)])
def test_every_source_of_the_graph_is_in_the_digest(module, sequential):
    code = (
        f"import sys, specdecode.core.models.deepseek_v41.unified.{module};"
        "print(*(getattr(m, '__file__', None) or '' for n, m in sys.modules.items() if n.startswith('specdecode')))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    names = {path.removeprefix(f"{CORE}/").removesuffix(".py").replace("/", ".") for path in loaded}
    names = {name for name in names if not name.endswith("__init__")} - WITHOUT_A_SHARE
    if sequential:  # the block driver's module is imported for a function
        names -= {"drivers.block", "models.deepseek_v41.model"}
    known = modules(sequential=sequential, parallel=True)
    assert names <= known
    assert any(path.suffix == ".mojo" for path in source_files(sequential=sequential))
    # What is for several devices only: imported by the driver, but never traced on one.
    only = known - modules(sequential=sequential)
    assert {name for name in only if not name.startswith("models.deepseek_v41.parallel.")} == PARALLEL_BESIDE


def modules(**options) -> set[str]:
    return {str(path.relative_to(CORE)).removesuffix(".py").replace("/", ".") for path in source_files(**options)}


@pytest.mark.parametrize(
    "changes", [{"hidden_size": 64}, {"sliding_window": 4}, {"index_topk": 5}, {"hc_sinkhorn_iters": 3}]
)
def test_what_shapes_the_graph_changes_the_digest(changes):
    assert digest_of(config(**changes)) != digest_of(config())


def test_pages_options_format_and_sources_change_the_digest(monkeypatch, tmp_path):
    same = digest_of(config())
    assert same == digest_of(config())
    assert digest_of(config(), page_size=32) != same
    assert digest_of(config(), structured_output=True) != same
    assert digest_of(config(), gpu=True) != same
    assert digest_of(config(), drafter=DRAFTER) != same
    assert len({digest_of(config(), layout=layout) for layout in (None, "2 logical", "4 logical")}) == 3
    assert digest_of(config(), drafter=replace(DRAFTER, num_draft_tokens=2)) != digest_of(config(), drafter=DRAFTER)
    gpu_only = set(source_files(gpu=True)) - set(source_files())
    assert {path.suffix for path in gpu_only} == {".mojo"}
    for path in source_files():
        copy = tmp_path / path.relative_to(CORE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(digest, "CORE", tmp_path)
    assert digest_of(config()) == same
    kernel = next(path for path in source_files() if path.suffix == ".mojo")
    kernel.write_text(kernel.read_text() + "\n")
    assert digest_of(config()) != same
    monkeypatch.undo()
    monkeypatch.setattr(digest, "FORMAT", digest.FORMAT + 1)
    assert digest_of(config()) != same


def test_a_graph_of_several_gpus_is_known_by_their_numbers():
    """A stored graph names its devices, so one of gpu:0,1 is none of gpu:0,2."""

    def key(devices: str, degree: int = 1) -> str:
        names = DeviceNames.parse(devices, degree)
        opened = [SimpleNamespace(is_host=False, id=number, api="cuda", label="gpu", architecture_name="sm_90a")
                  for number in names.gpus]  # fmt: skip
        ranks = tuple(Place(name=f"gpu:{device.id}", device=device) for device in opened) * names.shards
        whole = config()
        graph = StepGraph(
            config=whole, pages=PageLayout.of(whole.text_config, PAGE_SIZE), places=Places(names=names, ranks=ranks)
        )
        return f"{graph.key.name} {graph.key.digest} {graph.key.target}"

    keys = [key("gpu:0,1"), key("gpu:0,2"), key("gpu:1,0"), key("gpu:0,1", 2), key("gpu:0x2"), key("gpu:1x2")]
    assert len(set(keys)) == len(keys)


def test_what_is_only_a_value_changes_neither_the_digest_nor_the_graph():
    scaling = replace(config().text_config.rope_scaling, factor=8.0)
    numbers = {name: 5 for name in VALUES if name.endswith("_token_id")}
    floats = {name: 0.5 for name in VALUES if name not in numbers} | {"max_position_embeddings": 512}
    other, same = config(**{**floats, **numbers, "rope_scaling": scaling}), config()
    assert digest_of(other) == digest_of(same)
    assert shape_of(other) == shape_of(same)
    for path in source_files():
        # Kernels see no configuration, and `shape_of` covers the other three.
        if path.suffix == ".py" and path.name not in ("config.py", "settings.py", "weights.py"):
            named = {name for name in VALUES if re.search(rf"\.{name}\b", path.read_text())}
            assert not named, f"{path} reads {named}: no longer only a weight's value"


def shape_of(whole: DeepseekV41Config) -> tuple[object, ...]:
    """All that a configuration contributes to the graph through constants, weights and cache leaves."""
    text, pages = whole.text_config, PageLayout.of(whole.text_config, PAGE_SIZE)
    layers = range(text.num_hidden_layers + text.num_stages)
    return graph_weights(whole), leaf_shapes(text, pages), [layer_settings(text, pages, i) for i in layers]
