"""Make the graphs that ship with the project anew: `python examples/build_graphs.py [demo] [eagle] [tests]`.

A shipped graph is native code for the generic x86-64-v3 CPU, so that a first run compiles nothing. Run this after
any change to the kernels or the code that builds the graph; a test fails until then.

With `--gpu sm_90a --into FOLDER` it compiles for an NVIDIA GPU that need not be here: for the demo, the tests or any
checkpoint folder that is named. On a machine with such a GPU, SPECDECODE_CACHE_DIR=FOLDER finds the graphs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdecode.core.engine.device import Place
    from specdecode.core.models.deepseek_v41.load import StepGraph

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ("demo", "eagle", "tests")
"""The demo with its own drafter, with its EAGLE drafter, and a small model of the tests."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="demo, eagle, tests (default: all; with --gpu: demo)")
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
    from max.driver import CPU
    from max.engine import InferenceSession

    from specdecode.core.engine.device import open_place
    from specdecode.core.engine.graph_store import GraphStore
    from specdecode.core.progress import Lines

    graph, folder = recipe(name, open_place("cpu"))
    if not graph.key.portable:
        raise SystemExit(f"this CPU is {graph.key.target}; shipped graphs are made on an x86-64-v3 machine")
    print(f"{name}: into {folder.relative_to(ROOT)}", flush=True)
    GraphStore().compile_into(InferenceSession(devices=[CPU()]), graph.key, graph.build, folder, Lines())
    for path in sorted(folder.iterdir()):
        print(f"  {path.name}: {path.stat().st_size / 1e6:.1f} MB")


def build_for_gpu(architecture: str, names: list[str], folder: Path) -> int:
    """Compile step graphs for a GPU into a folder in the form of a cache."""
    from specdecode.core.engine.device import absent_gpu
    from specdecode.core.engine.graph_store import GraphStore
    from specdecode.core.errors import SpecdecodeError
    from specdecode.core.progress import Lines

    try:
        place = absent_gpu(architecture)
        for name in names:
            graph, _ = recipe(name, place)
            print(f"{name}: for {graph.key.target}, into {folder}", flush=True)
            GraphStore(cache=folder).make(place.session(), graph.key, graph.build, Lines())
    except SpecdecodeError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    return 0


def recipe(name: str, place: Place) -> tuple[StepGraph, Path]:
    """A step graph by the name of a shipped one or a checkpoint folder, and the folder that a shipped one is in."""
    from specdecode.core.kernels.settings import PageLayout
    from specdecode.core.models.deepseek_v41.config import DeepseekV41Config
    from specdecode.core.models.deepseek_v41.eagle_config import EagleConfig
    from specdecode.core.models.deepseek_v41.load import PAGE_SIZE, StepGraph

    demo = ROOT / "presets" / "demo"
    content: dict[str, object] | Path
    content, folder = (demo, demo / "graphs") if name in ("demo", "eagle") else (Path(name), demo / "graphs")
    if name == "tests":
        sys.path.insert(0, str(ROOT))
        from tests.support.promise import GRAPHS, promise_config

        content, folder = promise_config(), GRAPHS
    config = DeepseekV41Config.from_json(content)
    drafter = EagleConfig.from_folder(demo / "eagle", config.text_config) if name == "eagle" else None
    pages = PageLayout.of(config.text_config, PAGE_SIZE)
    return StepGraph(config=config, pages=pages, place=place, drafter=drafter), folder


if __name__ == "__main__":
    raise SystemExit(main())
