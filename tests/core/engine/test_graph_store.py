"""Stored graphs: used only when everything matches, rebuilt when damaged, never half-written. No "
"compiler runs here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from specdecode.core.engine import graph_store, mef
from specdecode.core.engine.graph_store import GraphStore
from specdecode.core.engine.mef import GraphKey
from specdecode.core.progress import ticking

KEY = GraphKey(name="step", digest="d1", target="x86-64-v3", max_version="26.7.0")
TEXT = """module {
  mo.graph @g() -> () {
    %0 = mo.chain.create()
    %1:2 = mo.call @s(%0) : ()
    mo.output %1#0
  }
  mo.graph @s() isSubgraph {
    %0 = rmo.mul(%arg0, %arg0)
    mo.output %0
  }
}
"""


class Recorder:
    def __init__(self):
        self.notes, self.ticks = [], []

    def note(self, message):
        self.notes.append(message)

    def tick(self, message, seconds):
        self.ticks.append((message, seconds))


class FakeSession:
    """Stands in for MAX: compiling counts, a MEF is a text, initialising gives back what was in it."""

    def __init__(self):
        self.compiled = 0

    def compile(self, graph):
        self.compiled += 1
        content = f"mef {self.compiled}"
        return SimpleNamespace(export_mef=lambda path: Path(path).write_text(content), content=content)

    def init(self, compiled, *, weights_registry=None):
        return compiled.content, weights_registry


@pytest.fixture(autouse=True)
def _no_max(monkeypatch):
    import max.engine

    monkeypatch.setattr(max.engine, "read", lambda path: SimpleNamespace(content=Path(path).read_text()))
    monkeypatch.setattr(graph_store, "_target_portable_cpu", lambda: None)
    monkeypatch.setattr(graph_store, "compiled_here", [])


@pytest.fixture
def store(tmp_path):
    return GraphStore(shipped=tmp_path / "shipped", cache=tmp_path / "cache")


def build():
    return SimpleNamespace(module=SimpleNamespace(mlir_module=TEXT))


def load(store, key=KEY, session=None, progress=None, **options):
    return store.load(session or FakeSession(), key, build, progress=progress, **options)


def test_compiled_once_then_cached(store):
    session, weights, recorder = FakeSession(), {"w": 1}, Recorder()
    model, info = load(store, session=session, weights_registry=weights)
    assert (model, info.source, info.cached, info.ops) == (("mef 1", weights), "compiled", False, 5)
    model, info = load(store, session=session, weights_registry=weights, progress=recorder)
    assert (model, info.source, info.cached, info.ops) == (("mef 1", weights), "cache", True, 5)
    assert session.compiled == 1
    assert recorder.notes == ["graph step: 5 ops, cache, not compiled (was 0 CPU-seconds)"]
    assert [i.name for i in graph_store.compiled_here] == ["step"]


@pytest.mark.parametrize("change", [{"digest": "d2"}, {"target": "aarch64-1"}, {"max_version": "26.8.0"}])
def test_another_key_is_another_graph(store, change):
    session = FakeSession()
    load(store, session=session)
    other = replace(KEY, **change)
    model, _ = load(store, other, session)
    assert (model[0], session.compiled) == ("mef 2", 2)
    assert load(store, KEY, session)[0][0] == "mef 1"


def test_shipped_graphs_come_first_and_are_not_written_to(store, tmp_path):
    session, shipped = FakeSession(), tmp_path / "shipped"
    store.compile_into(session, KEY, build, shipped, Recorder())
    before = {p: p.read_bytes() for p in shipped.iterdir()}
    assert sorted(p.name for p in before) == ["step.x86-64-v3.mef.gz", "step.x86-64-v3.mef.json"]
    model, info = load(store, session=session)
    assert (model[0], info.source) == ("mef 1", "shipped")  # unpacked
    load(store, replace(KEY, digest="d2"), session)
    assert session.compiled == 2
    assert {p: p.read_bytes() for p in shipped.iterdir()} == before


def test_a_graph_made_for_an_absent_device_is_found_in_the_cache(store):
    class Absent(FakeSession):
        def init(self, compiled, *, weights_registry=None):
            raise AssertionError("there is no such device here")

    session, key = Absent(), replace(KEY, target="x86-64-v3+cuda-sm_90")
    assert store.make(session, key, build, Recorder()).source == "compiled"
    assert store.make(session, key, build, Recorder()).source == "cache"
    assert session.compiled == 1
    assert load(store, key)[1].source == "cache"


@pytest.mark.parametrize("change", [{"digest": "d2"}, {"target": "aarch64-1"}, {"max_version": "26.8.0"}])
def test_a_file_under_the_right_name_with_another_manifest_is_not_used(store, tmp_path, change):
    store.compile_into(FakeSession(), KEY, build, tmp_path / "shipped", Recorder())
    manifest = tmp_path / "shipped" / "step.x86-64-v3.mef.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
    assert load(store)[1].source == "compiled"


def damage_bytes(mef_path, manifest):
    mef_path.write_text("mef X")


def damage_length(mef_path, manifest):
    mef_path.write_text("")


def damage_manifest(mef_path, manifest):
    manifest.write_text("{")


def lose_manifest(mef_path, manifest):
    manifest.unlink()


@pytest.mark.parametrize("damage", [damage_bytes, damage_length, damage_manifest, lose_manifest])
def test_a_damaged_graph_is_rebuilt_with_a_note(store, tmp_path, damage):
    session, recorder = FakeSession(), Recorder()
    load(store, session=session)
    [mef_path] = (tmp_path / "cache" / "graphs").glob("*.mef")
    damage(mef_path, mef_path.with_name(mef_path.name + ".json"))
    model, info = load(store, session=session, progress=recorder)
    assert (model[0], info.source) == ("mef 2", "compiled")
    assert "is damaged" in recorder.notes[0]
    assert load(store, session=session)[0][0] == "mef 2"


def test_a_packed_graph_is_the_same_file_every_time_and_checked_as_it_lies(store, tmp_path):
    first, second = tmp_path / "shipped", tmp_path / "again"
    for folder in (first, second):
        store.compile_into(FakeSession(), KEY, build, folder, Recorder())
    name = "step.x86-64-v3.mef.gz"
    assert (first / name).read_bytes() == (second / name).read_bytes()
    (first / name).write_bytes((first / name).read_bytes()[:-9])
    recorder = Recorder()
    assert load(store, progress=recorder)[1].source == "compiled"
    assert "is damaged" in recorder.notes[0]


def test_a_graph_that_max_cannot_read_is_rebuilt_with_a_note(store, monkeypatch):
    import max.engine

    load(store)

    def fail(path):
        raise RuntimeError("bad artifact")

    monkeypatch.setattr(max.engine, "read", fail)
    recorder = Recorder()
    assert load(store, progress=recorder)[1].source == "compiled"
    assert "cannot be loaded (bad artifact); it is compiled again" in recorder.notes[0]


def test_a_cache_that_cannot_be_written_is_said_and_survived(tmp_path):
    (tmp_path / "file").write_text("")
    recorder = Recorder()
    model, info = load(GraphStore(cache=tmp_path / "file"), progress=recorder)
    assert (model[0], info.source) == ("mef 1", "compiled")
    assert "cannot be kept" in recorder.notes[0]
    assert "SPECDECODE_CACHE_DIR" in recorder.notes[0]


def test_an_interrupted_export_leaves_nothing(store, tmp_path):
    class Stops(FakeSession):
        def compile(self, graph):
            def export(path):
                Path(path).write_text("half")
                raise KeyboardInterrupt

            return SimpleNamespace(export_mef=export)

    with pytest.raises(KeyboardInterrupt):
        load(store, session=Stops())
    assert list((tmp_path / "cache" / "graphs").iterdir()) == []


def test_the_cache_folder_can_be_named(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDECODE_CACHE_DIR", str(tmp_path / "named"))
    assert mef.cache_directory() == tmp_path / "named"
    monkeypatch.delenv("SPECDECODE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert mef.cache_directory() == tmp_path / "xdg" / "specdecode"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert mef.cache_directory() == tmp_path / ".cache" / "specdecode"


@pytest.mark.parametrize(
    ("machine", "lacking", "portable"),
    [("x86_64", set(), True), ("x86_64", {"avx2"}, False), ("aarch64", set(), False)],
)
def test_only_a_cpu_with_all_of_v3_uses_portable_code(monkeypatch, machine, lacking, portable):
    monkeypatch.setattr(mef.platform, "machine", lambda: machine)
    monkeypatch.setattr(mef, "cpu_flags", lambda: mef._V3_FLAGS - lacking)
    mef.cpu_target.cache_clear()
    try:
        key = GraphKey.here("step", "d")
        assert key.portable is portable
        assert key.target.startswith(machine if not portable else "x86-64-v3")
    finally:
        mef.cpu_target.cache_clear()


def test_a_gpu_is_part_of_the_key():
    def target(architecture, number=0):
        gpu = SimpleNamespace(label="gpu", api="cuda", architecture_name=architecture, id=number)
        return GraphKey.here("step", "d", gpu).target

    assert target("sm_90a").endswith("+cuda-sm_90")
    assert target("sm_90a") == target("sm_90")
    assert target("sm_90a") != target("sm_100a")
    assert target("sm_90a", 1).endswith("+cuda-sm_90-1")
    assert GraphKey.here("step", "d", SimpleNamespace(label="cpu")) == GraphKey.here("step", "d")


def test_ticks_tell_the_time_until_the_work_is_done():
    recorder = Recorder()
    with ticking(recorder, "compiling", every=0.01):
        while len(recorder.ticks) < 2:
            pass
    seen = list(recorder.ticks)
    assert all(message == "compiling" for message, _ in seen)
    assert 0 < seen[0][1] < seen[1][1]
