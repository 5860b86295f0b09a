"""Ctrl-C at any moment of the start: one message and exit code 130, never a traceback or an abort."""

from __future__ import annotations

import subprocess
import sys

import pytest

INTERRUPTED_AT_IMPORT = """
import os, signal, sys

module = sys.argv.pop()

class Finder:
    def find_spec(self, name, path, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

from specdecode.cli.__main__ import main

sys.meta_path.insert(0, Finder())
sys.argv += ["generate", "-p", "x"]
main()
"""


@pytest.mark.parametrize("module", ["specdecode.cli.app", "typer", "specdecode.cli.generation", "max.driver"])
def test_ctrl_c_during_an_import(module):
    command = [sys.executable, "-c", INTERRUPTED_AT_IMPORT, module]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "interrupted\n")
