"""The server under load, a process of its own, and what can be seen of it from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.benchmarks.serving.memory import Resident, resident


class Served:
    """`specdecode serve-local` in a process, ready once made.

    Args:
        options: of the command. entry: what Python runs in place of the command line.

    Attributes:
        url: where it listens.
    """

    def __init__(self, *options: str, entry: Sequence[str] = ("-m", "specdecode.cli")) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *entry, "serve-local", "--port", "0", "--quiet", *options],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            raise RuntimeError(f"the server ended with exit code {self._process.wait()}")

    def stop(self) -> int:
        """End it; its exit code."""
        self._process.terminate()
        try:
            return self._process.wait(60)
        finally:
            self._process.kill()

    def resident(self) -> Resident:
        """Its memory."""
        return resident(self._process.pid)

    def descriptors(self) -> int:
        """Files and sockets that it holds open."""
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    def metrics(self) -> dict[str, float]:
        """Counters and gauges by name, summed over labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            text = response.read().decode()
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
        return found
