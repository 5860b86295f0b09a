"""A run that stops half-way, by whatever cause, leaves the original alone and goes on when it is called again."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from specdecode.cli.shard_bar import Bar
from specdecode.core.checkpoint.reader import Checkpoint
from specdecode.core.checkpoint.sharding import files, units
from specdecode.core.errors import CheckpointError
from tests.support.sharded import FIRST, PART, THIRD, Place, cut, digests, flip, merged, shard_weights, truncate


def test_a_merge_that_fails_keeps_no_bad_file_and_goes_on(place):
    flip(place.sharded / PART)
    assert shard_weights(place.sharded, place.out, "--merge").exit_code == 5
    assert set(digests(place.out)) == {FIRST}  # the good one; the second is where the flipped byte is
    flip(place.sharded / PART)
    result = shard_weights(place.sharded, place.out, "--merge")
    assert result.exit_code == 0
    assert "1 original shards by an earlier run" in result.stdout
    assert digests(place.out) == digests(place.model)


def finishes(place: Place, command: Callable[[Place], tuple[object, ...]] = cut) -> str:
    """The same command again, mended: it finishes with the same files as a run without a fault."""
    result = shard_weights(*command(place))
    assert result.exit_code == 0, result.stderr
    expected = digests(place.sharded if command is cut else place.model)
    found = digests(place.out)
    assert found.keys() == expected.keys()
    differing = {name for name in found if found[name] != expected[name]}
    assert differing == set()
    return result.stderr


def share(place: Place, part: float) -> int:
    """So much of the bytes of all shards. The second shard begins after 0.37 of them, the third after 0.72."""
    return int(part * sum(path.stat().st_size for path in place.model.glob("*.safetensors")))


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch):
    """So that it is known which shards are done; tests of several at a time say so."""
    monkeypatch.setattr(units, "workers", lambda: 1)


def weights(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.safetensors")} if folder.exists() else set()


OF_FIRST = {f"model-{label}-00001.safetensors" for label in ("shared", "engram", "rank-0-of-2", "rank-1-of-2")}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO], ids=["full", "quota", "broken"])
def test_a_disk_that_takes_no_more(place, monkeypatch, number):
    model = digests(place.model)
    written, write = [], files.PartialFile.write

    def limited(self, data: bytes) -> None:
        written.append(len(data))
        with files.writing(self.path):
            if sum(written) > share(place, 0.9):  # in the third shard, so that the first one is done
                raise OSError(number, os.strerror(number))
        write(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(files.PartialFile, "write", limited)
        result = shard_weights(*cut(place), "--quiet")
    assert result.exit_code == 1
    assert f"cannot be written: {os.strerror(number)}" in result.stderr
    assert "run the command again: it goes on" in result.stderr
    assert digests(place.model) == model
    assert not list(place.out.rglob("*.partial"))
    assert "going on after" in finishes(place)


def test_a_real_limit_of_the_system(place):
    """A limit on the size of a file, as a shell's ulimit sets it, stops the run in the middle of one."""
    script = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        "from specdecode.cli.__main__ import main\n"
        "main()"
    )
    command = [sys.executable, "-c", script, "shard-weights", *map(str, cut(place)), "--quiet"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert "cannot be written: File too large" in result.stderr
    assert not list(place.out.rglob("*.partial"))
    finishes(place)


def test_too_little_room_is_said_before_the_first_byte(place, monkeypatch):
    usage = shutil.disk_usage(place.model)
    with monkeypatch.context() as patch:
        patch.setattr(files.shutil, "disk_usage", lambda path: usage._replace(free=12_345))
        for command in (cut, merged):
            result = shard_weights(*command(place), "--quiet")
            assert result.exit_code == 1
            assert "and its disk has 12,345 free" in result.stderr
            assert not place.out.exists()
    finishes(place)


def test_a_read_only_target(place, monkeypatch):
    place.out.mkdir()
    place.out.chmod(0o555)
    if os.access(place.out, os.W_OK):  # root may write anywhere; the system's answer is put in its place
        mkdir = Path.mkdir

        def refuse(self, *arguments, **options):
            if place.out in self.parents:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            mkdir(self, *arguments, **options)

        monkeypatch.setattr(Path, "mkdir", refuse)
    result = shard_weights(*cut(place), "--quiet")
    assert result.exit_code == 1
    assert "cannot be written" in result.stderr
    assert digests(place.out) == {}
    monkeypatch.undo()
    place.out.chmod(0o755)
    finishes(place)


KILLED = """
import os, signal, sys
from pathlib import Path
from specdecode.cli.shard_bar import Bar
from specdecode.cli.__main__ import main
from specdecode.core.checkpoint.sharding import units
done, advance, limit, workers = 0, Bar.advance, int(sys.argv.pop(1)), int(sys.argv.pop(1))
units.workers = lambda: workers
def counted(self, nbytes):
    global done
    done += nbytes
    if done > limit:
        os.kill(os.getpid(), signal.SIGKILL)
Bar.advance = counted
main()
"""


@pytest.mark.parametrize("after", [0, 0.15, 0.45, 0.85])
@pytest.mark.parametrize(("command", "workers"), [(cut, 1), (cut, 3), (merged, 1)])
def test_killed_in_the_middle(place, command, workers, after):
    arguments = [str(share(place, after)), str(workers), "shard-weights", *map(str, command(place))]
    result = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True, text=True)
    assert result.returncode == -signal.SIGKILL
    assert list(place.out.rglob("*.partial"))
    with pytest.raises(CheckpointError):  # what is unfinished is no checkpoint
        Checkpoint.open(place.out) if (place.out / "config.json").exists() else _no_weights(place.out)
    said = finishes(place, command)
    if workers == 1 and (after > 0.8 or (command is merged and after > 0.4)):
        assert "going on after" in said


def _no_weights(folder: Path) -> None:
    if not (folder / "model.safetensors.index.json").exists():
        raise CheckpointError("no index")


@pytest.mark.parametrize("workers", [1, 3])
def test_ctrl_c(place, monkeypatch, workers):
    done, advance = [], Bar.advance
    monkeypatch.setattr(units, "workers", lambda: workers)

    def interrupted(self, nbytes: int) -> None:
        done.append(nbytes)
        if sum(done) > share(place, 0.85):
            raise KeyboardInterrupt
        advance(self, nbytes)

    with monkeypatch.context() as patch:
        patch.setattr(Bar, "advance", interrupted)
        result = shard_weights(*cut(place), "--quiet")
    assert result.exit_code == 130
    assert result.stderr == "interrupted\n"
    assert not list(place.out.rglob("*.partial"))
    if workers == 1:
        assert weights(place.out) >= OF_FIRST
    assert "going on after" in finishes(place) or workers > 1


def test_the_shards_before_the_one_that_fails_are_done(place, monkeypatch):
    """Three at a time, and the second cannot be written once the first is done."""
    write, first_done = files.PartialFile.write, threading.Event()

    def limited(self, data: bytes) -> None:
        if self.path.name == PART:
            assert first_done.wait(60)
            with files.writing(self.path):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, data)

    def noted(self, message: str) -> None:
        if message.startswith(FIRST):
            first_done.set()

    with monkeypatch.context() as patch:
        patch.setattr(units, "workers", lambda: 3)
        patch.setattr(files.PartialFile, "write", limited)
        patch.setattr(Bar, "note", noted)
        result = shard_weights(*cut(place), "--quiet")
    assert result.exit_code == 1
    assert f"{PART} cannot be written: No space left" in result.stderr
    assert not list(place.out.rglob("*.partial"))
    assert weights(place.out) >= OF_FIRST
    assert "going on after" in finishes(place)


def test_a_shard_that_shrinks_while_it_is_read(place, monkeypatch):
    advance, whole = Bar.advance, (place.model / THIRD).read_bytes()
    times = (place.model / THIRD).stat()

    def shrinking(self, nbytes: int) -> None:
        if (place.model / THIRD).stat().st_size == len(whole):
            truncate(place.model / THIRD, 1000)
        advance(self, nbytes)

    with monkeypatch.context() as patch:
        patch.setattr(Bar, "advance", shrinking)
        result = shard_weights(*cut(place), "--quiet")
    assert result.exit_code == 3
    assert f"{THIRD} became shorter while it was read: at least " in result.stderr
    (place.model / THIRD).write_bytes(whole)
    os.utime(place.model / THIRD, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "going on after" in finishes(place)


def test_a_file_that_vanished_between_two_runs_is_made_again(place):
    shutil.copytree(place.sharded, place.out)
    manifest = place.out / "sharding/manifest.json"
    manifest.rename(manifest.with_name("journal.json"))
    (place.out / PART).unlink()
    finishes(place)


def test_a_finished_run_does_nothing_more(place):
    before = {path: path.stat().st_mtime_ns for path in place.sharded.rglob("*")}
    assert shard_weights(place.model, place.sharded, "--tp", 2).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in place.sharded.rglob("*")} == before
