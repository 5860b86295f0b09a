"""A results file is whole at every moment and goes on where it stopped."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdecode.core.errors import SpecdecodeError, UsageError
from specdecode.core.results_file import ResultsFile

KEYS = ["a", "b", "b", "c"]


def line(place: int, **more: object) -> dict[str, object]:
    return {"id": f"req_{KEYS[place]}", "text": f"é{place}", **more}


def write(path, places, *, resume=False, sort=True, keys=KEYS) -> frozenset[int]:
    """Write these places and return those that were there before."""
    file = ResultsFile(path, keys, resume=resume)
    known = file.answered
    for place in places:
        file.add(place, line(place))
    file.close(sort=sort)
    return known


def ids(path) -> list[str]:
    return [json.loads(text)["id"][4:] for text in path.read_text().splitlines()]


def test_lines_come_as_they_are_done_and_are_sorted_at_the_end(tmp_path):
    path = tmp_path / "out.jsonl"
    file = ResultsFile(path, KEYS, resume=False)
    for place in (3, 0, 1):
        file.add(place, line(place))
    assert ids(path) == ["c", "a", "b"]
    file.close(sort=True)
    assert ids(path) == ["a", "b", "c"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~current_umask()
    assert list(tmp_path.iterdir()) == [path]


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_without_sorting_they_stay(tmp_path):
    write(tmp_path / "out", [3, 0], sort=False)
    assert ids(tmp_path / "out") == ["c", "a"]


def test_a_file_with_results_is_not_touched(tmp_path):
    path = tmp_path / "out"
    write(path, [0])
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"has results already\. Continue it with --resume"):
        write(path, [1])
    assert path.read_bytes() == before


def test_resuming_knows_equal_requests_apart(tmp_path):
    path = tmp_path / "out"
    write(path, [1, 3])
    assert write(path, [0, 2], resume=True) == {1, 3}
    assert ids(path) == KEYS


def test_resuming_what_is_not_there_begins(tmp_path):
    assert write(tmp_path / "out", [0], resume=True) == frozenset()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(cut=st.integers(0, 200), order=st.permutations(range(4)))
def test_a_file_that_was_cut_anywhere_goes_on(tmp_path, cut, order):
    path = tmp_path / "out"
    path.unlink(missing_ok=True)
    write(path, order, sort=False)
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    file = ResultsFile(path, KEYS, resume=True)
    known = len(file.answered)
    assert known == whole[:cut].count(b"\n")
    assert path.read_bytes() in (b"", whole[: whole[:cut].rfind(b"\n") + 1])
    for place in set(range(4)) - file.answered:
        file.add(place, line(place))
    file.close(sort=True)
    assert ids(path) == KEYS


def test_what_failed_is_tried_again(tmp_path):
    path = tmp_path / "out"
    file = ResultsFile(path, KEYS, resume=False)
    file.add(0, {"id": "req_a", "error": "broken"})
    file.add(3, {"id": "req_c", "error": None})
    file.close(sort=True)
    assert write(path, [0, 1, 2], resume=True) == {3}
    assert ids(path) == KEYS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"id": "req_a"}\n{"id": "req_z"}\n', r"out:2 answers no prompt of this run: .* has changed since"),
        ('{"id": "req_a"}\n{"id": "req_a"}\n', r"out:2 answers no prompt of this run"),
        ("text\n", r"out:1 is no result of an earlier run"),
        ("[1]\n", r"out:1 is no result of an earlier run"),
        ('{"text": "a"}\n', r"out:1 is no result of an earlier run"),
    ],
)
def test_a_file_of_something_else_is_refused_and_kept(tmp_path, content, message):
    path = tmp_path / "out"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        ResultsFile(path, KEYS, resume=True)
    assert path.read_text() == content


def test_a_folder_that_is_missing(tmp_path):
    with pytest.raises(SpecdecodeError, match=r"cannot be written: No such file or directory"):
        ResultsFile(tmp_path / "none" / "out", KEYS, resume=False)


def test_a_full_disk_leaves_no_half_line(tmp_path, monkeypatch):
    path = tmp_path / "out"
    file = ResultsFile(path, KEYS, resume=False)
    file.add(0, line(0))
    whole, real = path.read_bytes(), os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
    with pytest.raises(SpecdecodeError, match="No space left on device"):
        file.add(1, line(1))
    assert path.read_bytes() == whole


def test_a_pipe_is_written_to_as_it_is(tmp_path):
    read, write_end = os.pipe()
    file = ResultsFile(type(tmp_path)(f"/dev/fd/{write_end}"), KEYS, resume=False)
    file.add(0, line(0))
    file.close(sort=True)
    assert json.loads(os.read(read, 1000)) == line(0)


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(tmp_path / "link", [3, 0])
    assert (tmp_path / "link").is_symlink()
    assert ids(tmp_path / "real") == ["a", "c"]


WRITES_FOR_EVER = """
import sys
from pathlib import Path
from specdecode.core.results_file import ResultsFile
file = ResultsFile(Path(sys.argv[1]), ["k"] * 100000, resume=False)
for place in range(100000):
    file.add(place, {"id": "req_k", "text": "x" * (place * 37 % 3000)})
"""


def test_a_killed_process_leaves_whole_lines(tmp_path):
    path = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", WRITES_FOR_EVER, str(path)])
    while not path.exists() or path.stat().st_size < 20000:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    content = path.read_bytes()
    assert content.endswith(b"\n")
    assert all(json.loads(text)["id"] == "req_k" for text in content.splitlines())
