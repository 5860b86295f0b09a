"""One compiled graph on disk and the manifest that says what it was made from."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdecode.core.progress import Progress

if TYPE_CHECKING:
    from max.driver import Device

    from specdecode.core.engine.graph_store import GraphInfo

PORTABLE_CPU = "x86-64-v3"
CACHE_VARIABLE = "SPECDECODE_CACHE_DIR"
# What x86-64-v3 adds to the baseline, as /proc/cpuinfo spells it (abm stands for lzcnt).
_V3_FLAGS = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "sse4_2", "popcnt", "xsave"})


def cache_directory() -> Path:
    """Where compiled graphs of this user lie: `$SPECDECODE_CACHE_DIR` or `~/.cache/specdecode`."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "specdecode"


def cpu_flags() -> frozenset[str]:
    """The instruction sets of this CPU; empty where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.split(":")[1] for line in lines if line.startswith("flags")), "").split())


@cache
def cpu_target() -> str:
    """What CPU code is compiled for here: the portable target, or this very CPU where it lacks that."""
    machine, flags = platform.machine(), cpu_flags()
    if machine in ("x86_64", "AMD64") and flags >= _V3_FLAGS:
        return PORTABLE_CPU
    return f"{machine}-{hashlib.sha256(' '.join(sorted(flags)).encode()).hexdigest()[:8]}"


def gpu_architecture(device: Device) -> str:
    """A GPU's architecture by one name: NVIDIA's sm_90 and sm_90a are the same chips."""
    name = str(device.architecture_name)
    return re.sub(r"^(sm_\d+)[a-z]$", r"\1", name)


@dataclass(frozen=True, kw_only=True)
class GraphKey:
    """What a compiled graph depends on; two equal keys may share a MEF.

    Attributes:
        name: the graph's role, for file names and messages.
        digest: of everything the graph was traced from.
        target: CPU target, and the GPU's where one is used.
        max_version: the version of MAX.
    """

    name: str
    digest: str
    target: str
    max_version: str

    @classmethod
    def here(cls, name: str, digest: str, device: Device | None = None) -> GraphKey:
        """The key for this machine, with the installed MAX; `device` is the GPU, if any."""
        target = cpu_target()
        if device is not None and device.label != "cpu":
            target += f"+{device.api}-{gpu_architecture(device)}"
            target += f"-{device.id}" if device.id else ""  # a graph names its device by number
        return cls(name=name, digest=digest, target=target, max_version=version("max"))

    @property
    def portable(self) -> bool:
        """Whether the CPU code is for the generic CPU."""
        return self.target.split("+")[0] == PORTABLE_CPU


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of the JSON file beside a MEF: its key, its checksum and what it cost."""

    name: str
    digest: str
    target: str
    max_version: str
    ops: int
    compile_cpu_seconds: float
    sha256: str = ""

    @classmethod
    def of(cls, key: GraphKey, info: GraphInfo) -> Manifest:
        """The manifest of a graph just compiled; the checksum follows when it is written."""
        return cls(**asdict(key), ops=info.ops, compile_cpu_seconds=info.compile_cpu_seconds)

    def matches(self, key: GraphKey) -> bool:
        """Whether the MEF was made from exactly this key."""
        return asdict(key).items() <= asdict(self).items()

    def cost(self, key: GraphKey) -> dict[str, Any]:
        """Name, ops and compile time, as a `GraphInfo` takes them."""
        return {"name": key.name, "ops": self.ops, "compile_cpu_seconds": self.compile_cpu_seconds}


@dataclass(frozen=True)
class MefFile:
    """A MEF and its manifest, `NAME.mef` and `NAME.mef.json`; a shipped one is packed, `NAME.mef.gz`, to a ninth."""

    path: Path

    @classmethod
    def shipped(cls, folder: Path, key: GraphKey) -> MefFile:
        """The one file of this name and target in a folder of ready-made graphs."""
        return cls(folder / f"{key.name}.{key.target}.mef.gz")

    @classmethod
    def cached(cls, folder: Path, key: GraphKey) -> MefFile:
        """The file in a cache that keeps many versions of a graph side by side."""
        whole = hashlib.sha256(json.dumps(asdict(key), sort_keys=True).encode()).hexdigest()
        return cls(folder / "graphs" / f"{key.name}.{key.target}.{whole[:16]}.mef")

    @property
    def _manifest_path(self) -> Path:
        return self.path.with_name(self.path.name.removesuffix(".gz") + ".json")

    @property
    def _packed(self) -> bool:
        return self.path.suffix == ".gz"

    @contextmanager
    def readable(self) -> Iterator[Path]:
        """The MEF as a file that MAX reads, as long as the context lasts."""
        if not self._packed:
            yield self.path
            return
        with tempfile.TemporaryDirectory(prefix="specdecode-") as scratch:
            path = Path(scratch) / self.path.stem
            with gzip.open(self.path) as packed, path.open("wb") as file:
                shutil.copyfileobj(packed, file)
            yield path

    def manifest_for(self, key: GraphKey, progress: Progress) -> Manifest | None:
        """The manifest, if the MEF is there, whole and made from `key`; says so when it is damaged."""
        if not self.path.exists():
            return None
        try:
            manifest = Manifest(**json.loads(self._manifest_path.read_text(encoding="utf-8")))
            if not manifest.matches(key):
                return None
            if _sha256(self.path) == manifest.sha256:
                return manifest
            why = "its checksum is wrong"
        except (OSError, ValueError, TypeError) as error:
            why = f"its manifest is unreadable: {error}"
        progress.note(f"{self.path} is damaged ({why}); it is compiled again.")
        return None

    def write(self, export: Callable[[Path], None], manifest: Manifest, progress: Progress) -> None:
        """Store a MEF, whole or not at all. Where that fails the graph still runs, and a note says why.

        Args:
            export: writes the MEF to the path it is given.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.path.parent) as scratch:
                mef, text = Path(scratch) / "mef", Path(scratch) / "json"
                export(mef)
                if self._packed:
                    mef = _pack(mef)
                content = asdict(manifest) | {"sha256": _sha256(mef)}
                text.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
                for temporary, final in ((mef, self.path), (text, self._manifest_path)):
                    _sync(temporary)
                    temporary.replace(final)
        except OSError as error:
            progress.note(
                f"The compiled graph cannot be kept in {self.path.parent} ({error}), so the next start "
                "compiles "
                f"again. Set {CACHE_VARIABLE} to a folder with room that you may write to."
            )


def _pack(path: Path) -> Path:
    """A packed copy beside it, the same bytes for the same content."""
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes(), compresslevel=9, mtime=0))
    return packed


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
