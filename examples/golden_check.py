"""Check the model against a golden folder: a checkpoint in the released format with a reference's outputs.

python examples/golden_check.py DIR [--mode fp32|exact] [--devices cpu|gpu:0]
python examples/golden_check.py DIR --compile-only --gpu sm_90a --into FOLDER

Prints every compared item with its largest error and bound; exit code 1 if any is out. What a folder lacks is skipped
and named. In exact mode, unit vectors `quant.safetensors` are read from DIR or from a folder `quant` beside it.

With --compile-only nothing is compared: the graph is compiled for a GPU that need not be here. Where it is,
SPECDECODE_CACHE_DIR=FOLDER finds it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from golden.exact import ExactCheck
from golden.folder import GoldenFolder
from golden.fp32 import Fp32Check
from golden.quant import check_formats
from golden.report import Report
from golden.runner import ProbeGraph, Runner
from max.driver import set_virtual_cpu_target

from specdecode.core.checkpoint.reader import Checkpoint
from specdecode.core.engine.device import absent_gpu
from specdecode.core.engine.graph_store import PORTABLE_CPU, GraphStore
from specdecode.core.errors import SpecdecodeError


def check(path: Path, mode: str, devices: str) -> bool:
    """Run one mode; whether everything is within bounds."""
    folder, report = GoldenFolder(path, mode), Report()
    longest = (
        max(len(p.ids) + p.n_decode for p in folder.prompts)
        + 2 * folder.checkpoint.config.text_config.dspark_block_size
    )
    print(f"{path} ({mode}): {len(folder.prompts)} prompts, {len(folder.tensors)} tensors", flush=True)
    if mode == "exact":
        units = next(
            (p for p in (path / "quant.safetensors", path.parent / "quant" / "quant.safetensors") if p.exists()),
            None,
        )
        if units is None:
            print("no quant.safetensors in the folder or beside it: unit vectors skipped")
        else:
            check_formats(units, report)
    runner = Runner(folder.checkpoint, exact=mode == "exact", slots=4, max_length=longest, devices=devices)
    print(runner.info, flush=True)
    (Fp32Check if mode == "fp32" else ExactCheck)(folder, runner, report).run()
    print("\n".join(report.lines()))
    print("\n".join(folder.skipped()))
    print("all within bounds" if report.ok else "OUT OF BOUNDS")
    return report.ok


def compile_for(path: Path, architecture: str, folder: Path) -> None:
    """Compile a folder's graph for a GPU; there, SPECDECODE_CACHE_DIR names the folder that it was put into."""
    set_virtual_cpu_target(PORTABLE_CPU)
    place = absent_gpu(architecture)
    graph = ProbeGraph(Checkpoint.open(path).config, place)
    print(f"{graph.make(GraphStore(cache=folder))}; into {folder}, for {graph.key.target}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="checkpoint folder with golden.safetensors and golden.json")
    parser.add_argument("--mode", choices=("fp32", "exact"), help="default: both")
    parser.add_argument("--devices", default="cpu", metavar="cpu|gpu:N", help="where to run (default: cpu)")
    parser.add_argument("--compile-only", action="store_true", help="compile the graph for an absent GPU")
    parser.add_argument("--gpu", metavar="ARCH", help="with --compile-only: its architecture, sm_90a for an H200")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="with --compile-only: where the graph goes")
    args = parser.parse_args()
    if len({args.compile_only, args.gpu is not None, args.into is not None}) != 1:
        parser.error("--compile-only, --gpu and --into belong together")
    if not args.folder.is_dir():
        parser.error(f"{args.folder} is not a folder")
    try:
        if args.compile_only:
            compile_for(args.folder, args.gpu, args.into)
            return 0
        results = [check(args.folder, mode, args.devices) for mode in ([args.mode] if args.mode else ["fp32", "exact"])]
    except SpecdecodeError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
