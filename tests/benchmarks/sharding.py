"""How fast `specdecode shard-weights` is against `cp` of the same files on the same disk.

    python tests/benchmarks/sharding.py --dir /data/scratch

Writes a checkpoint with matrices of the released sizes and random bytes, then copies and shards it in turn. Both count
until the bytes are on the disk: `cp` is followed by `sync` of its files, and shard-weights syncs every file itself.
Page caches are warm for both. Printed are medians and the best round, gigabytes (10^9 bytes) a second, speed as a share
of `cp` with its `sync`: by medians, and the median of the shares of single rounds, which a disk or a neighbour that
changes its pace disturbs less; processor seconds, and how many cores others (the kernel's writing too) kept busy.
Hashing has a floor, printed too: where SHA-256 on one core is slower than the disk, shard-weights needs more cores.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from specdecode.core.bench.machine import busy_seconds
from specdecode.core.checkpoint.sharding.layout import Layout, Strategy
from specdecode.core.checkpoint.sharding.plan import make_plan
from specdecode.core.checkpoint.sharding.source import open_source
from specdecode.core.checkpoint.sharding.writer import shard
from tests.support.hollow import few_layers, write_hollow_checkpoint

PIECE = 1 << 20
FILES = 12


class Nobody:
    """A watcher that does not look."""

    def begin(self, nbytes: int, done: int) -> None: ...

    def advance(self, nbytes: int) -> None: ...

    def note(self, message: str) -> None: ...


def fill(path: Path) -> None:
    """Random bytes in place of the holes behind the header; a pattern would let a disk compress them."""
    with path.open("r+b") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        file.seek(start)
        for at in range(start, path.stat().st_size, PIECE):
            file.write(os.urandom(min(PIECE, path.stat().st_size - at)))


@dataclass(frozen=True, kw_only=True)
class Time:
    """One run: seconds, processor seconds of it and its children, and cores that others kept busy."""

    seconds: float
    processor: float
    others: float


def processor_seconds() -> float:
    """Of this process and its children so far."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def timed(work: Callable[[], object], target: Path) -> Time:
    """Run `work`, which writes `target`; afterwards it is removed."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["sync", "-f", str(target.parent)], check=True)
    start, own, busy = time.perf_counter(), processor_seconds(), busy_seconds()
    work()
    seconds, used = time.perf_counter() - start, processor_seconds() - own
    others = max(0.0, busy_seconds() - busy - used) / seconds
    shutil.rmtree(target)
    return Time(seconds=seconds, processor=used, others=others)


def hash_rate(piece: int = 256 << 10, pieces: int = 2000) -> float:
    """Bytes a second that one core gets through SHA-256."""
    data, state = os.urandom(piece), hashlib.sha256()
    start = time.process_time()
    for _ in range(pieces):
        state.update(data)
    return piece * pieces / (time.process_time() - start)


def copy(model: Path, target: Path, *, on_disk: bool) -> None:
    subprocess.run(["cp", "-r", str(model), str(target)], check=True)
    if on_disk:
        subprocess.run(["sync", *map(str, target.iterdir())], check=True)


def cut(model: Path, target: Path, layout: Layout) -> None:
    source = open_source(model)
    shard(source, make_plan(source.config, source.tensors, layout).placements, layout, target, Nobody())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, help="a folder on the disk to measure; default: the temporary folder")
    parser.add_argument("--experts", type=int, default=8, help="routed experts a layer, 0.13 GB each over all layers")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="sharding-") as scratch:
        model, target = Path(scratch) / "model", Path(scratch) / "out"
        model.mkdir()
        experts = {"n_routed_experts": options.experts, "dspark_n_routed_experts": options.experts}
        write_hollow_checkpoint(model, few_layers(**experts), files=FILES)
        for path in sorted(model.glob("*.safetensors")):
            fill(path)
        size = sum(path.stat().st_size for path in model.iterdir())
        arms: dict[str, Callable[[], object]] = {
            "cp, then sync": lambda: copy(model, target, on_disk=True),
            "cp alone": lambda: copy(model, target, on_disk=False),
        }
        for strategy, ranks in ((Strategy.TENSOR, 8), (Strategy.EXPERT, 8)):
            layout = Layout(strategy=strategy, ranks=ranks)
            arms[f"shard-weights {layout}"] = lambda layout=layout: cut(model, target, layout)  # type: ignore[misc]
        times: dict[str, list[Time]] = {name: [] for name in arms}
        for _ in range(options.rounds):
            for name, work in arms.items():
                times[name].append(timed(work, target))
    report(size, times)


def report(size: int, times: dict[str, list[Time]]) -> None:
    """One line an arm; shares are of the speed of the first."""
    base = [time.seconds for time in next(iter(times.values()))]
    print(f"{size:,} bytes in {FILES} files, {len(base)} rounds, {os.cpu_count()} cores")
    print(f"SHA-256 on one core: {hash_rate() / 1e9:.2f} GB/s")
    heads = ("median s", "best s", "GB/s", "of cp", "by round", "CPU s", "others")
    print(f"{'':22} " + " ".join(f"{head:>8}" for head in heads) + "   all, s")
    for name, runs in times.items():
        seconds = [run.seconds for run in runs]
        median = statistics.median(seconds)
        by_round = statistics.median(one / other for one, other in zip(base, seconds, strict=True))
        cells = [
            f"{median:.2f}",
            f"{min(seconds):.2f}",
            f"{size / median / 1e9:.2f}",
            f"{100 * statistics.median(base) / median:.0f} %",
            f"{100 * by_round:.0f} %",
            *(f"{statistics.median(getattr(run, key) for run in runs):.1f}" for key in ("processor", "others")),
        ]
        every = " ".join(f"{one:.2f}" for one in seconds)
        print(f"{name:22} " + " ".join(f"{cell:>8}" for cell in cells) + f"   {every}")


if __name__ == "__main__":
    main()
