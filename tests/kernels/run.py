"""Build and run the GPU kernels' own tests: Mojo programs that call the kernels directly.

python tests/kernels/run.py                        # build for sm_90a into a temporary folder, then run
python tests/kernels/run.py --build DIR            # on any machine; nothing is run
python tests/kernels/run.py --run DIR              # on a machine with a GPU: one line a case, exit code 1 on a failure
python tests/kernels/run.py --run DIR --sanitizer memcheck    # small cases under compute-sanitizer
python tests/kernels/run.py --run DIR --bench      # timings, and what batch invariance costs

A program is a file check_*.mojo or bench_*.mojo; the other files of the folder are what they share. Programs import the
kernels as `kernels`. Only the standard library is needed to run what was built elsewhere.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
KERNELS = HERE.parents[1] / "core" / "kernels" / "mojo"
TARGET = ("--target-accelerator", "sm_90a", "--target-cpu", "x86-64-v3")
LIBRARIES = ("AsyncRTMojoBindings", "KGENCompilerRTShared", "AsyncRTRuntimeGlobals", "MSupportGlobals")
SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")
SANITIZER_FAILED = 9
LIMIT_SECONDS = 900  # a program that takes longer hangs

# `bench_experts` is also built with other column spans, from a copy of the kernels with this line changed.
SPANS_FILE, SPANS_LINE = Path("gpu") / "experts.mojo", re.compile(r"^comptime SECOND_SPLIT = (\d+)", re.MULTILINE)
SPANS = (1, 2, 4, 8)
EXPERTS_LINE = re.compile(r"experts T=(\d+) spans (\d+): ([\d.]+) us")

Say = Callable[[str], None]


class Failure(Exception):
    """A message for a person."""


def programs() -> list[str]:
    """Names of all programs, those that only differ in a constant included."""
    names = sorted(path.stem for kind in ("check", "bench") for path in HERE.glob(f"{kind}_*.mojo"))
    return names + [f"bench_experts_{spans}" for spans in SPANS if spans != own_spans()]


def own_spans() -> int:
    found = SPANS_LINE.search((KERNELS / SPANS_FILE).read_text(encoding="utf-8"))
    if found is None:
        raise Failure(f"{KERNELS / SPANS_FILE} has no line {SPANS_LINE.pattern!r}; what {__file__} changes has moved")
    return int(found.group(1))


def find_mojo() -> str | None:
    """The compiler of this Python's environment, else the one on the path."""
    return shutil.which("mojo", path=str(Path(sys.executable).parent)) or shutil.which("mojo")


def build(name: str, folder: Path) -> None:
    """Compile one program into the folder; raises Failure with the compiler's words."""
    mojo = find_mojo()
    if mojo is None:
        raise Failure("there is no Mojo compiler; install one with: pip install 'max==26.7.0'")
    source, _, spans = name.partition("_experts_")
    with tempfile.TemporaryDirectory() as include:
        kernels = Path(include) / "kernels"
        if spans:
            source += "_experts"
            shutil.copytree(KERNELS, kernels)
            text = (kernels / SPANS_FILE).read_text(encoding="utf-8")
            text = SPANS_LINE.sub(f"comptime SECOND_SPLIT = {spans}", text)
            (kernels / SPANS_FILE).write_text(text, encoding="utf-8")
        else:
            kernels.symlink_to(KERNELS)
        command = [mojo, "build", *TARGET, "-I", include, "-I", str(HERE), str(HERE / f"{source}.mojo")]
        done = subprocess.run([*command, "-o", str(folder / name)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"{name} does not compile:\n{done.stdout}{done.stderr}")


def library_folder(given: Path | None) -> Path:
    """Where the libraries lie that every Mojo program loads."""
    folders = [given] if given is not None else []
    spec = importlib.util.find_spec("modular") if given is None else None
    if spec is not None:
        folders = [Path(place) / "lib" for place in spec.submodule_search_locations or ()]
    for folder in folders:
        if all((folder / f"lib{name}.so").is_file() for name in LIBRARIES):
            return folder
    where = given or "the installed package `modular`"
    raise Failure(f"{where} lacks some of {', '.join(f'lib{name}.so' for name in LIBRARIES)}; say where with --lib DIR")


def run(name: str, folder: Path, lib: Path, *, sanitizer: str | None = None, say: Say = print) -> bool:
    """Run one program, passing its lines on; whether all its cases passed."""
    command = [str(folder / name)]
    if sanitizer is not None:
        tool = ["compute-sanitizer", "--tool", sanitizer, "--error-exitcode", str(SANITIZER_FAILED)]
        command = [*tool, *command, "small"]
    environment = dict(os.environ)
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(lib), os.environ.get("LD_LIBRARY_PATH"))))
    say(f"-- {name}")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    ) as process:
        limit = threading.Timer(LIMIT_SECONDS, process.kill)
        limit.start()
        assert process.stdout is not None
        for line in process.stdout:
            say(line.rstrip())
        code = process.wait()
        limit.cancel()
    if code != 0:
        say(f"FAIL {name}: exit code {code}")
    return code == 0


def prices(lines: list[str], own: int | None) -> list[str]:
    """The experts' time with the kernels' own spans against the fastest of all builds, for each T."""
    times: dict[int, dict[int, float]] = {}
    for line in lines:
        if found := EXPERTS_LINE.match(line):
            times.setdefault(int(found.group(1)), {})[int(found.group(2))] = float(found.group(3))
    said = []
    for t, by_spans in sorted(times.items()):
        best = min(by_spans, key=lambda spans: by_spans[spans])
        if own in by_spans:
            said.append(
                f"price experts T={t}: own {own} spans {by_spans[own]:.2f} us; fastest {best} spans "
                f"{by_spans[best]:.2f} us; ratio {by_spans[own] / by_spans[best]:.3f}"
            )
    return said


def run_all(folder: Path, options: argparse.Namespace) -> int:
    lib = library_folder(options.lib)
    if options.sanitizer is not None and shutil.which("compute-sanitizer") is None:
        raise Failure("compute-sanitizer is not on the path; it is part of the CUDA toolkit")
    kind = "bench_" if options.bench else "check_"
    names = [name for name in programs() if name.startswith(kind) and options.only in name]
    lines: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    failed = [name for name in names if not run(name, folder, lib, sanitizer=options.sanitizer, say=say)]
    if options.bench:
        for line in prices(lines, own_spans()):
            print(line)
    else:
        cases = [line for line in lines if line.startswith(("ok  ", "FAIL "))]
        bad = sum(line.startswith("FAIL ") for line in cases)
        print(f"{len(names)} programs, {len(cases) - bad} cases passed, {bad} failures")
    if failed or not names:
        print(f"failed: {', '.join(failed) or 'no program has such a name'}")
        return 1
    return 0


def build_all(folder: Path, options: argparse.Namespace) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in programs():
        if options.only in name:
            print(f"building {name}", flush=True)
            build(name, folder)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--build", type=Path, metavar="DIR", help="only build, into this folder")
    what.add_argument("--run", type=Path, metavar="DIR", help="only run what --build left in this folder")
    parser.add_argument("--only", default="", metavar="TEXT", help="programs whose names contain this")
    parser.add_argument("--lib", type=Path, metavar="DIR", help="where Mojo's libraries are [the installed package]")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--sanitizer", choices=SANITIZERS, help="run small cases under this tool of compute-sanitizer")
    how.add_argument("--bench", action="store_true", help="run the timings, not the checks")
    return parser


def main() -> int:
    options = arguments().parse_args()
    try:
        if options.build is not None:
            build_all(options.build, options)
            return 0
        if options.run is not None:
            return run_all(options.run, options)
        with tempfile.TemporaryDirectory() as folder:
            build_all(Path(folder), options)
            return run_all(Path(folder), options)
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
