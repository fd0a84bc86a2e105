"""The floors do the work that they stand for: the same bytes, the same files, the same calls."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import apart_orbax, small_state
from bench.floors import Counting, Recording, Touched, elsewhere, read_and_digest
from bench.machine import files_below
from bench.measure import Setting
from bench.savers import contender, milepost, peers, phases
from bench.states import adam, arrays


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files_below(root)}


def test_the_bare_calls_leave_the_same_files_as_the_saves_did(tmp_path: Path) -> None:
    import shutil

    recording = Recording()
    workload = arrays(5, 5000, "")
    saver = milepost(workload, tmp_path, posix=recording)
    recording.take()
    root, mirror = tmp_path / "milepost", tmp_path / "mirror"
    shutil.copytree(root, mirror)
    for _ in range(4):
        contender(saver, workload).sample()
        assert contents(mirror) != contents(root)
        elsewhere(recording.take(), str(root), str(mirror))()
        assert contents(mirror) == contents(root)
    saver.close()


def test_staged_and_written_are_the_bytes_of_the_state(tmp_path: Path) -> None:
    workload = arrays(7, 7 * 4 * 333, "")
    whole = b"".join(view.tobytes() for view in workload.views)
    touched = Touched(workload.views)
    touched.copy()
    touched.write(tmp_path / "file")
    assert (tmp_path / "file").read_bytes().rstrip(b"\0") == whole.rstrip(b"\0")
    for view in workload.views:
        view[:] = 0
    read_and_digest(tmp_path / "file", workload.views)
    assert b"".join(view.tobytes() for view in workload.views) == whole


def test_counted_are_the_bytes_that_lie_in_the_files(tmp_path: Path) -> None:
    counting = Counting()
    workload = arrays(5, 5_000_000, "")
    saver = milepost(workload, tmp_path, posix=counting)
    saver.close()
    # Small records are written over one another, so less is left than was written.
    there = sum(map(len, contents(tmp_path / "milepost").values()))
    assert 5_000_000 < there <= counting.take() < there + 50_000


def test_a_save_that_shares_what_it_should_write_is_no_measurement(tmp_path: Path) -> None:
    workload = arrays(3, 3000, "")
    saver = milepost(workload, tmp_path)
    workload.change()
    saver.start()()
    with pytest.raises(RuntimeError, match="did not write every byte"):
        saver.start()()
    saver.close()
    assert phases(tmp_path / "milepost").startswith("milepost's thread, in ms: write ")


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_every_peer_saves_all_of_an_optimizer_and_leaves_nothing(tmp_path: Path) -> None:
    workload = adam(1_100_000)
    assert workload.size_bytes > 3_000_000
    for saver in peers(workload, tmp_path):
        saver.start()()
        assert saver.written is not None
        assert workload.size_bytes < saver.written() < 1.1 * workload.size_bytes + 100_000, saver.name
        assert sum(path.stat().st_size for path in files_below(tmp_path)) > workload.size_bytes, saver.name
        saver.clean()
        saver.close()
        assert list(files_below(tmp_path)) == []


def test_orbax_is_measured_where_it_is_installed_and_missed_aloud_where_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart_orbax, "PYTHON", tmp_path / "nowhere")
    assert not apart_orbax.installed()
    assert apart_orbax.MISSING == "Orbax: not installed: make bench-peers installs it"


def test_the_process_that_saves_by_orbax_answers_each_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Orbax itself is heavy: a stand-in of the few names that are used saves a file.
    monkeypatch.setattr(apart_orbax, "PYTHON", Path(sys.executable))
    stand_in = tmp_path / "modules" / "orbax"
    stand_in.mkdir(parents=True)
    (stand_in / "checkpoint.py").write_text(STAND_IN)
    monkeypatch.setattr(apart_orbax, "ENVIRONMENT", {"PYTHONPATH": str(stand_in.parent)})
    workload = arrays(3, 3000, "")
    with apart_orbax.Orbax(workload, tmp_path) as orbax:
        for one in orbax.contenders():
            assert one.sample().keys() == {"stall", "durable", "written"}
        orbax.ask("sync")
        assert orbax.ask("load").keys() == {"load"}
    monkeypatch.setattr(apart_orbax, "ENVIRONMENT", {"PYTHONPATH": str(tmp_path)})
    with pytest.raises(RuntimeError, match=r"(?s)Orbax ended.*No module named 'orbax"):
        apart_orbax.Orbax(workload, tmp_path)


STAND_IN = """
import pathlib, pickle
class args:
    PyTreeSave = staticmethod(lambda tree: tree)
    PyTreeRestore = staticmethod(lambda: None)
def PyTreeCheckpointHandler(): pass
class Checkpointer:
    def __init__(self, handler): pass
    def save(self, path, args):
        path.mkdir()
        (path / "data").write_bytes(pickle.dumps(args))
    def restore(self, path, args):
        return pickle.loads((path / "data").read_bytes())
class AsyncCheckpointer(Checkpointer):
    def wait_until_finished(self): pass
    def close(self): pass
"""


def test_a_benchmark_of_milepost_runs_from_end_to_end(tmp_path: Path) -> None:
    outcome = small_state.measure(Setting(tmp_path, quick=True, rounds=3))
    for quantity in ("stall", "durable"):
        ours = outcome.row("milepost", quantity)
        assert ours is not None
        assert len(ours.values) == 3
    assert outcome.row("the same file operations, bare", "durable") is not None
    assert any("fsync" in note for note in outcome.notes)
