"""Compile time and step time beside MAX's own DeepSeek-V4 with DSpark, at the same small sizes, on one GPU.

python tests/benchmarks/peer.py [--json FILE]                          # both, each in a process of its own
python tests/benchmarks/peer.py --part max --json FILE                 # one of them; FILE keeps the other's figures
python tests/benchmarks/peer.py --trace-only                           # builds both graphs, on any machine
python tests/benchmarks/peer.py --compile-only --keep FOLDER           # compiles for an absent GPU (sm_90a)
python tests/benchmarks/peer.py --keep FOLDER                          # there, runs what was compiled elsewhere

Three layers and one draft stage with random weights; a step verifies five drafts of each request and drafts the
next five. Every compilation starts with an empty cache. Times are medians over repeats and their median absolute
deviation; the saved file has every value. MAX's compilation takes seven minutes on 16 cores and much main memory,
so it can be done elsewhere, on a host of the same kind.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

PARTS = ("ours", "max")
CACHES = ("MODULAR_CACHE_DIR", "CUDA_CACHE_PATH")
"""Where MAX and the NVIDIA driver keep what they compiled; read when they are loaded."""


def main() -> int:
    options = arguments().parse_args()
    with tempfile.TemporaryDirectory(prefix="peer-") as folder:
        if options.json is None:
            options.json = Path(folder) / "figures.json"
        if options.part == "both":
            return both(options)
        for variable in CACHES:
            cache = Path(folder) / variable.lower()
            cache.mkdir()
            os.environ[variable] = str(cache)
        return one(options)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=[*PARTS, "both"], default="both", help="which model (both)")
    parser.add_argument("--devices", default="gpu:0", metavar="gpu:N", help="where to run (gpu:0)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], metavar="N", help="batch sizes (1 8)")
    parser.add_argument("--context", type=int, nargs="+", default=[1024], metavar="N", help="tokens a request (1024)")
    parser.add_argument("--repeats", type=int, default=50, metavar="N", help="runs behind each median (50)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save every value; adds to what FILE holds")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep compiled graphs there, and take them from it")
    until = parser.add_mutually_exclusive_group()
    until.add_argument("--trace-only", dest="until", action="store_const", const="trace", help="build the graphs only")
    until.add_argument("--compile-only", dest="until", action="store_const", const="compile", help="run nothing")
    parser.set_defaults(until="steps")
    return parser


def both(options: argparse.Namespace) -> int:
    """Each part in a new process, so that neither finds anything that the other one compiled."""
    given = ["--devices", options.devices, "--repeats", str(options.repeats), "--json", str(options.json)]
    given += ["--batch", *map(str, options.batch), "--context", *map(str, options.context)]
    if options.keep is not None:
        given += ["--keep", str(options.keep)]
    if options.until != "steps":
        given.append(f"--{options.until}-only")
    worst = 0
    for part in PARTS:
        code = subprocess.run([sys.executable, __file__, "--part", part, *given], check=False).returncode
        if code == 2:
            return code
        worst = worst or code
    return worst


def one(options: argparse.Namespace) -> int:
    """Measure one part here and report on what the file holds then."""
    from specdecode.core.errors import SpecdecodeError
    from tests.benchmarks.peers.part import Plan, measure, save
    from tests.benchmarks.peers.sizes import Sizes
    from tests.benchmarks.peers.table import lines

    sizes = Sizes()
    cases = tuple((batch, context) for context in options.context for batch in options.batch)
    plan = Plan(until=options.until, devices=options.devices, cases=cases, repeats=options.repeats, keep=options.keep)
    document = None
    try:
        for part in measure(options.part, sizes, plan):
            document = save(options.json, options.part, part, sizes)  # a step that fails leaves what came before it
    except SpecdecodeError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return int(error.exit_code)
    finally:
        if document is not None:
            print("\n" + "\n".join(lines(document)) + "\n", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
