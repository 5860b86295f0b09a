"""The GPU kernels' own tests: run where there is a GPU; elsewhere one is compiled for one."""

from __future__ import annotations

import pytest
from max.driver import accelerator_count

from tests.kernels import run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(run.find_mojo() is None, reason="there is no Mojo compiler"),
]


CHECKS = [name for name in run.programs() if name.startswith("check_")]
BUILT = ("check_linear",)
"""What is compiled where nothing can run: all would take minutes, and `run.py --build` does that."""


@pytest.mark.parametrize("name", CHECKS)
def test_program(name, tmp_path):
    if accelerator_count() == 0 and name not in BUILT:
        pytest.skip("there is no GPU")
    run.build(name, tmp_path)
    if accelerator_count() > 0:
        assert run.run(name, tmp_path, run.library_folder(None))


@pytest.mark.skipif(accelerator_count() > 0, reason="covered by the programs themselves")
def test_a_program_that_cannot_run_has_failed(tmp_path):
    """Without a GPU every check fails, so a silent one would show."""
    run.build("check_selection", tmp_path)
    assert not run.run("check_selection", tmp_path, run.library_folder(None))
