"""The project's own Mojo kernels (`mojo/`), one Python wrapper each."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent / "mojo"
"""The Mojo package that all kernels live in."""


@cache
def kernel_package() -> Path:
    """The kernels, parsed once per process into a package that graphs name in `custom_extensions`.

    Handing MAX the source folder instead would parse it again for every subgraph, four seconds each.

    Raises:
        RuntimeError: the sources do not compile; the message is Mojo's.
    """
    from mojo.run import subprocess_run_mojo

    folder = Path(tempfile.mkdtemp(prefix="specdecode-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    package = folder / "specdecode_kernels.mojoc"
    # By a relative name, because a compiled graph keeps the names of its sources.
    done = subprocess_run_mojo(
        ["precompile", SOURCES.name, "-o", str(package)], cwd=SOURCES.parent, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"the Mojo kernels do not compile:\n{done.stderr}")
    return package
