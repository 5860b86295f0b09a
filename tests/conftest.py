"""Isolation for every test, and what the compiler cost at the end of a run."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """Compiled graphs of a test run go to a folder of its own, not to the user's."""
    monkeypatch.setenv("SPECDECODE_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


def pytest_terminal_summary(terminalreporter):
    from specdecode.core.engine.graph_store import compiled_here

    cost = sum(info.compile_cpu_seconds for info in compiled_here)
    terminalreporter.write_line(f"compiled in this run: {len(compiled_here)} graphs, {cost:.0f} CPU-seconds")
