"""Make the graphs that ship with the project anew: `python examples/build_graphs.py [NAME]…`.

A shipped graph is native code for the generic x86-64-v3 CPU, so that a first run compiles nothing. Run this after
any change to the kernels or the code that builds the graph; a test fails until then. NAME is one of demo, eagle, tests
and parallel, alone or with devices: `demo@cpux2` is tensor parallel on two logical shards, `demo@cpux2:dp` data
parallel.

With `--gpu sm_90a --into FOLDER` it compiles for NVIDIA GPUs that need not be here: for the demo, the tests or any
checkpoint folder that is named, say `demo@gpu:0,1`. On a machine with such GPUs, SPECDECODE_CACHE_DIR=FOLDER finds the
graphs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdecode.core.engine.devices import Places
    from specdecode.core.models.deepseek_v41.load import StepGraph

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = (
    *("demo", "eagle", "tests", "parallel"),
    *("demo@cpux2", "demo@cpux2:dp", "parallel@cpux4", "parallel@cpux4:dp"),
)
"""The demo with its own drafter, with its EAGLE drafter, and two small models of the tests; and on several devices."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(SHIPPED)} (default: all; with --gpu: demo)"
    )
    parser.add_argument("--gpu", metavar="ARCH", help="compile for an absent GPU, sm_90a for an H100 or H200")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="where graphs for a GPU go")
    options = parser.parse_args()
    if (options.gpu is None) != (options.into is None):
        parser.error("--gpu and --into belong together")
    names = options.names or (["demo"] if options.gpu else list(SHIPPED))

    # The CPU to compile for is fixed by the first thing that MAX compiles, so it is named before anything else.
    from max.driver import set_virtual_cpu_target

    from specdecode.core.engine.mef import PORTABLE_CPU

    set_virtual_cpu_target(PORTABLE_CPU)
    if options.gpu is not None:
        return build_for_gpu(options.gpu, names, options.into)
    for name in names:
        if name not in SHIPPED:
            parser.error(f"there are no shipped graphs for {name}; name {', '.join(SHIPPED)}")
        build(name)
    return 0


def build(name: str) -> None:
    """Compile one configuration's step graph into the folder that it ships in."""
    from specdecode.core.engine.devices import open_places
    from specdecode.core.engine.graph_store import GraphStore
    from specdecode.core.progress import Lines

    stem, devices, degree = parsed(name, "cpu")
    places = open_places(devices, degree)
    graph, folder = recipe(stem, places)
    if not graph.key.portable:
        raise SystemExit(f"this CPU is {graph.key.target}; shipped graphs are made on an x86-64-v3 machine")
    print(f"{name}: into {folder.relative_to(ROOT)}", flush=True)
    GraphStore().compile_into(places.session(), graph.key, graph.build, folder, Lines())
    for path in sorted(folder.iterdir()):
        print(f"  {path.name}: {path.stat().st_size / 1e6:.1f} MB")


def build_for_gpu(architecture: str, names: list[str], folder: Path) -> int:
    """Compile step graphs for GPUs into a folder in the form of a cache."""
    from specdecode.core.device_names import DeviceNames
    from specdecode.core.engine.device import absent_gpus
    from specdecode.core.engine.devices import Places
    from specdecode.core.engine.graph_store import GraphStore
    from specdecode.core.errors import SpecdecodeError
    from specdecode.core.progress import Lines

    wanted = [parsed(name, "gpu:0") for name in names]
    known = {devices: DeviceNames.parse(devices, degree) for _, devices, degree in wanted}
    try:
        opened = absent_gpus(architecture, 1 + max(max(some.gpus, default=0) for some in known.values()))
        for stem, devices, degree in wanted:
            some = DeviceNames.parse(devices, degree)
            ranks = tuple(opened[number] for number in some.gpus) * some.shards
            graph, _ = recipe(stem, Places(names=some, ranks=ranks))
            print(f"{stem} on {some.label}: for {graph.key.target}, into {folder}", flush=True)
            GraphStore(cache=folder).make(graph.places.session(), graph.key, graph.build, Lines())
    except SpecdecodeError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    return 0


def parsed(name: str, default: str) -> tuple[str, str, int]:
    """What to build, its devices and its data-parallel degree."""
    from specdecode.core.device_names import DeviceNames

    stem, _, devices = name.partition("@")
    data_parallel = devices.endswith(":dp")
    devices = devices.removesuffix(":dp") or default
    return stem, devices, DeviceNames.parse(devices).count if data_parallel else 1


def recipe(name: str, places: Places) -> tuple[StepGraph, Path]:
    """A step graph by the name of a shipped one or a checkpoint folder, and the folder that a shipped one is in."""
    from specdecode.core.kernels.settings import PageLayout
    from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
    from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig
    from specdecode.core.models.deepseek_v41.load import PAGE_SIZE, StepGraph

    demo = ROOT / "presets" / "demo"
    content: dict[str, object] | Path
    content, folder = (demo, demo / "graphs") if name in ("demo", "eagle") else (Path(name), demo / "graphs")
    if name in ("tests", "parallel"):
        sys.path.insert(0, str(ROOT))
        from tests.support.promise import GRAPHS, PARALLEL_GRAPHS, parallel_config, promise_config

        content, folder = (promise_config(), GRAPHS) if name == "tests" else (parallel_config(), PARALLEL_GRAPHS)
    config = DeepseekV41Config.from_json(content)
    drafter = EagleConfig.from_folder(demo / "eagle", config.text_config) if name == "eagle" else None
    pages = PageLayout.of(config.text_config, PAGE_SIZE)
    return StepGraph(config=config, pages=pages, places=places, drafter=drafter), folder


if __name__ == "__main__":
    raise SystemExit(main())
