"""Time of one step with layers of the released sizes and random weights, against the bytes that it must move.

python tests/benchmarks/released_layers.py --devices gpu:0 [--json FILE]
python tests/benchmarks/released_layers.py --compile-only sm_90a --into FOLDER    # for a GPU that is not here
python tests/benchmarks/released_layers.py --devices cpu --tiny                   # the logic, on any machine

On a GPU every time is the median over replays of a captured step, by the device's own events. Bytes are those of
`core/bench/traffic.py`; the share is theirs per second in the copy bandwidth measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from specdecode.core.bench.bandwidth import copy_bandwidth
from specdecode.core.bench.machine import machine
from specdecode.core.engine.device import absent_gpu, open_place
from specdecode.core.engine.devices import one_place
from specdecode.core.errors import SpecdecodeError
from specdecode.core.kernels.settings import PageLayout
from specdecode.core.models.deepseek_v41.load import PAGE_SIZE, StepGraph
from specdecode.core.progress import Lines
from tests.benchmarks.released.bench import Bench, Case, store
from tests.benchmarks.released.config import layer_names, layers_config

BATCHES, CONTEXTS = (1, 8, 32), (1 << 10, 1 << 14, 1 << 17)
TINY_BATCHES, TINY_CONTEXTS = (1, 3), (32, 96)


def main() -> int:
    options = arguments().parse_args()
    try:
        if options.compile_only is not None:
            return compile_for(options.compile_only, options.into, tiny=options.tiny)
        document = measure(options)
    except SpecdecodeError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="gpu:0", metavar="cpu|gpu:N", help="where to run (gpu:0)")
    parser.add_argument("--tiny", action="store_true", help="the tests' small model: figures mean nothing")
    parser.add_argument("--batch", type=int, nargs="+", metavar="N", help=f"batch sizes ({BATCHES})")
    parser.add_argument("--context", type=int, nargs="+", metavar="N", help=f"cached tokens a request ({CONTEXTS})")
    parser.add_argument("--repeats", type=int, default=50, metavar="N", help="replays behind each median (50)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save everything that was measured")
    parser.add_argument("--compile-only", metavar="ARCH", help="compile for an absent GPU, sm_90a for an H200")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="with --compile-only: where the graph goes")
    return parser


def compile_for(architecture: str, folder: Path | None, *, tiny: bool) -> int:
    """Compile the graph for a GPU; there, SPECDECODE_CACHE_DIR names the folder that it was put into."""
    from max.driver import set_virtual_cpu_target

    from specdecode.core.engine.mef import PORTABLE_CPU

    set_virtual_cpu_target(PORTABLE_CPU)
    place, config = absent_gpu(architecture), layers_config(tiny=tiny)
    graph = StepGraph(config=config, pages=PageLayout.of(config.text_config, PAGE_SIZE), places=one_place(place))
    store(tiny, folder).make(place.session(), graph.key, graph.build, Lines())
    return 0


def measure(options: argparse.Namespace) -> dict[str, object]:
    """Run every case and print as it goes."""
    start, place = time.perf_counter(), open_place(options.devices)
    batches = options.batch or (TINY_BATCHES if options.tiny else BATCHES)
    contexts = options.context or (TINY_CONTEXTS if options.tiny else CONTEXTS)
    where = machine() | {"device": options.devices if place.is_host else place.device.model_name}
    print(f"{where['device']}, MAX {where['max']}; host: {where['cpu']}, {where['cores']} cores")
    size = 1 << 24 if options.tiny else 1 << 30
    bandwidth = copy_bandwidth(place.device, size=size, repeats=20)
    print(f"copy bandwidth {bandwidth / 1e12:.3f} TB/s, read and written")
    cases = [(batch, context) for context in contexts for batch in batches]
    bench = Bench(place, tiny=options.tiny, cases=cases, progress=Lines())
    print(f"loaded in {bench.load_seconds:.1f} s; layers: {'; '.join(layer_names(bench.config.text_config))}")
    for case in bench.left_out:
        print(f"batch {case[0]}, context {case[1]}: left out, it needs {bench.needs(case) / 2**30:.0f} GiB")
    print_heading()
    found = []
    for case in bench.cases:
        found.append(bench.run(case, repeats=options.repeats))
        print_case(found[-1], bandwidth)
    return {
        "machine": where,
        "copy_bytes_per_second": bandwidth,
        "graph": asdict(bench.info) | {"load_seconds": bench.load_seconds},
        "layers": layer_names(bench.config.text_config),
        "cases": [asdict(case) | {"draft_ms": case.draft_ms} for case in found],
        "left_out": bench.left_out,
        "seconds": time.perf_counter() - start,
    }


def print_heading() -> None:
    print(
        "\nbatch  context  step               device ms     MB to move   of copy bw   whole step ms   host ms  kernels"
    )


def print_case(case: Case, bandwidth: float) -> None:
    for name, spent in case.steps.items():
        bytes_, wall = case.traffic[name].total, case.wall[name].median
        share = bytes_ / (1e-3 * spent.median) / bandwidth
        print(
            f"{case.batch:5d}  {case.context:7d}  {name:14}  {spent.text(3):>15}  {bytes_ / 1e6:11.1f}  {share:10.1%}  "
            f"{wall:14.3f}  {wall - spent.median:8.3f}  {case.launches[name]:7d}"
            + ("" if case.finite[name] else "  not finite")
        )
    print(f"{'':16}draft alone     {case.draft_ms:15.3f}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
