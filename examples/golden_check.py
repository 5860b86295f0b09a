"""Check the model against a golden folder: a checkpoint in the released format with a reference's outputs.

python examples/golden_check.py DIR [--mode fp32|exact]

Prints every compared item with its largest error and bound; exit code 1 if any is out. What a folder lacks is skipped
and named. In exact mode, unit vectors `quant.safetensors` are read from DIR or from a folder `quant` beside it.
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
from golden.runner import Runner

from specdecode.core.errors import SpecdecodeError


def check(path: Path, mode: str) -> bool:
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
    runner = Runner(folder.checkpoint, exact=mode == "exact", slots=4, max_length=longest)
    print(runner.info, flush=True)
    (Fp32Check if mode == "fp32" else ExactCheck)(folder, runner, report).run()
    print("\n".join(report.lines()))
    print("\n".join(folder.skipped()))
    print("all within bounds" if report.ok else "OUT OF BOUNDS")
    return report.ok


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="checkpoint folder with golden.safetensors and golden.json")
    parser.add_argument("--mode", choices=("fp32", "exact"), help="default: both")
    args = parser.parse_args()
    if not args.folder.is_dir():
        parser.error(f"{args.folder} is not a folder")
    try:
        results = [check(args.folder, mode) for mode in ([args.mode] if args.mode else ["fp32", "exact"])]
    except SpecdecodeError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
