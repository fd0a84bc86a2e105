"""A drill works on a copy: the user's own run root is the same afterwards, whatever is struck, whoever is killed. B11"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milepost.clock import SystemClock
from milepost.engine import oneshot
from milepost.errors import InternalError, NotFoundError, StoreError, UsageError
from milepost.publish import layout
from milepost.publish.view import read
from milepost.store.local import LocalStore
from milepost.store.resolve import directory_of, name_from
from milepost.supervise import drill_copy, drill_scratch
from milepost.supervise.drill import Request, drill
from milepost.supervise.drill_copy import check_root, copy_root, place, unshare
from tests.supervise.drilled import bench, drilled, fingerprint, written

CLOCK = SystemClock()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a run root of 40 steps, ``runs/mine``, and what it looks like."""
    folder = tmp_path_factory.mktemp("trained")
    subprocess.run([sys.executable, str(written("exact", folder, {}))], cwd=folder, check=True)
    return folder


@pytest.fixture
def mine(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a run root of the user's own, and say after the test whether it is as it was."""
    shutil.copytree(trained, tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")
    root = tmp_path / "mine" / "runs" / "mine"
    before = fingerprint(root)
    yield root
    assert fingerprint(root) == before


@pytest.mark.parametrize(("verb", "named"), [("kill9", "whole path"), ("stop", "runs/mine"), ("bitflip", "runs/mine")])
def test_a_run_goes_on_from_a_copy_whatever_it_is_called_and_the_users_own_is_not_touched(
    mine: Path, tmp_path: Path, verb: str, named: str
) -> None:
    script = "goes by its whole path" if named == "whole path" else "trains to 80"
    verdict = drilled(script, Path.cwd(), verb, {1: 45}, roots=(str(mine) if verb == "stop" else "runs/mine",))
    (run,) = verdict.runs
    assert (verdict.outcome, run.end, run.problems) == ("recovered", "identical", ())
    assert verdict.copied[0].step == 40
    assert 40 <= run.step <= 45


def test_a_root_has_the_same_name_in_each_run_however_the_user_spells_it(mine: Path, tmp_path: Path) -> None:
    os.symlink(mine, "link")
    for named in ("../mine/runs/mine", "runs/mine", "link", str(mine)):
        copied = copy_root(mine, tmp_path / f"copied {named.replace('/', ' ')}", CLOCK, named)
        found = []
        for run in ("one", "other"):
            into, work = tmp_path / f"{named.replace('/', ' ')} {run}", tmp_path / run / "work"
            into.mkdir()
            place(copied, into, work, CLOCK)
            found.append([entry.name for entry in into.iterdir() if not entry.is_symlink()])
            assert (into / directory_of(name_from(named, str(work)))).is_dir()
            assert (into / "runs%2Fmine").is_dir()
        assert found[0] == found[1]


def test_a_root_that_is_redirected_already_is_found_where_the_command_finds_it(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILEPOST_ROOT", str(tmp_path / "all"))
    assert check_root("runs/mine") == mine
    shutil.copytree(mine, tmp_path / "all" / "runs%2Fmine")
    assert check_root("runs/mine") == tmp_path / "all" / "runs%2Fmine"


def test_immutable_files_are_linked_and_what_is_written_to_is_not(mine: Path, tmp_path: Path) -> None:
    copied = copy_root(mine, tmp_path / "copy", CLOCK)
    shared = {
        str(path.relative_to(tmp_path / "copy"))
        for path in (tmp_path / "copy").rglob("*")
        if path.is_file() and path.stat().st_nlink > 1
    }
    assert shared == {str(p.relative_to(mine)) for part in ("blobs", "generations") for p in (mine / part).iterdir()}
    assert copied.linked == len(shared)
    left_out = {layout.BALLAST, "writer.lock", "lease.json"}
    assert {p.name for p in (tmp_path / "copy").iterdir()} == {p.name for p in mine.iterdir()} - left_out
    assert oneshot.verify(tmp_path / "copy").ok


def test_where_files_cannot_be_linked_they_are_copied_if_they_fit(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("milepost.supervise.drill_copy.Posix.link", refuse)
    copied = copy_root(mine, tmp_path / "copy", CLOCK)
    assert copied.linked == 0
    assert oneshot.verify(tmp_path / "copy").ok
    monkeypatch.setattr("milepost.supervise.drill_copy.Posix.free_bytes", lambda *_: 100)
    with pytest.raises(StoreError) as caught:
        copy_root(mine, tmp_path / "another", CLOCK)
    assert caught.value.kind == "disk-full"
    assert "TMPDIR" in caught.value.hint


def test_a_file_is_unshared_before_it_is_damaged_and_one_that_is_not_the_drills_is_never_damaged(
    mine: Path, tmp_path: Path
) -> None:
    copy_root(mine, tmp_path / "scratch" / "copy", CLOCK)
    blob = next((tmp_path / "scratch" / "copy" / "blobs").iterdir())
    assert blob.stat().st_nlink == 2
    unshare(blob, tmp_path / "scratch")
    assert blob.stat().st_nlink == 1
    blob.write_bytes(b"damaged")
    for stranger in (mine / "LATEST", next((mine / "blobs").iterdir())):
        with pytest.raises(InternalError):
            unshare(stranger, tmp_path / "scratch")
    os.symlink(mine / "LATEST", tmp_path / "scratch" / "a-link")
    with pytest.raises(InternalError):
        unshare(tmp_path / "scratch" / "a-link", tmp_path / "scratch")


PUBLISHER = """
import sys
import numpy as np
import milepost

weights = np.zeros(1000)
with milepost.CheckpointEngine(sys.argv[1], state={"policy": {"w": weights}}, keep=milepost.Keep(last=2)) as engine:
    engine.resume()
    for step in range(10**9):
        weights += 1
        engine.save(step)
        engine.wait()
        if step == 3:
            print("ready", flush=True)
"""


def test_each_copy_of_a_run_that_is_written_to_is_one_state_that_it_was_in(tmp_path: Path) -> None:
    """Publishes and retires as fast as it can; each copy is verified byte by byte, and holds what the step says."""
    root = tmp_path / "runs"
    with subprocess.Popen([sys.executable, "-c", PUBLISHER, str(root)], stdout=subprocess.PIPE, text=True) as trainer:
        try:
            assert trainer.stdout is not None
            assert trainer.stdout.readline() == "ready\n"
            steps = []
            for number in range(20):
                copy = tmp_path / f"copy-{number}"
                copied = copy_root(root, copy, CLOCK)
                assert oneshot.verify(copy).ok
                view = read(LocalStore(str(copy), CLOCK))
                assert view.head is not None
                assert view.lost == 0
                assert (view.head.number, view.head.step) == (copied.newest, copied.step)
                loaded: Any = oneshot.load(copy)
                assert bool((loaded["policy"]["w"] == copied.step + 1).all())
                steps.append(copied.step)
            assert steps == sorted(steps)
        finally:
            trainer.kill()


def test_a_run_that_is_never_the_same_twice_is_refused(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(range(10**6))
    monkeypatch.setattr(drill_copy, "_listing", lambda _: ((str(next(looks)),), (), ()))
    with pytest.raises(StoreError) as caught:
        copy_root(mine, tmp_path / "copy", CLOCK)
    assert (caught.value.kind, caught.value.retryable) == ("unstable", True)


def test_what_is_no_run_root_is_refused_before_anything_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFoundError):
        drill(Request("kill9", ("true",), ("runs/none",)), bench(tmp_path))
    assert os.listdir(tmp_path) == []
    with pytest.raises(UsageError):
        check_root("s3://bucket/run")


def test_a_command_that_saves_to_another_root_than_the_copied_one_is_told_so(mine: Path, tmp_path: Path) -> None:
    shutil.copytree(mine, tmp_path / "mine" / "other")
    verdict = drilled("trains to 80", Path.cwd(), roots=("other",))
    assert (verdict.outcome, verdict.kind) == ("nothing proven", "another-root")
    assert verdict.places == ("other was copied, and nothing was saved to it", "saved to runs/mine")


STAGES = {
    "while it copies": "copied/0/blobs/*",
    "while the undisturbed run trains": "alone/supervised-1/beat-*",
    "while a run is struck": "run-1-1/supervised-1/beat-*",
    "while it recovers": "run-1-1/supervised-2/beat-*",
}
RUN = "import sys; from milepost.cli.main import main; main()"


@pytest.mark.parametrize("stage", STAGES)
def test_a_drill_that_is_killed_leaves_the_users_root_as_it_was_and_nothing_that_trains(
    mine: Path, tmp_path: Path, stage: str
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, str(written("trains to 80", Path.cwd(), {1: "end", 2: "end"}))]
    arguments = ["drill", "bitflip", "--runs", "1", "--root", "runs/mine", "--", *command]
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen([sys.executable, "-c", RUN, *arguments], env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            while process.poll() is None and not [*temporary.glob(f"milepost-drill-*/{STAGES[stage]}")]:
                threading.Event().wait(0.001)
            beats = [int(path.name.split("-")[1]) for path in temporary.glob("milepost-drill-*/*/supervised-*/beat-*")]
            assert process.poll() is None
            assert drill_scratch.remove_left_over(temporary) == [], "it is in use"
        finally:
            process.send_signal(signal.SIGKILL)
    for pid in beats:
        assert_gone(pid)
    (left,) = temporary.iterdir()
    assert drill_scratch.remove_left_over(temporary) == [left]
    assert [*temporary.iterdir()] == []


def assert_gone(pid: int) -> None:
    """Wait for the end of what a killed drill had started; it is nobody's child here."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    import select

    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    ended = poll.poll(60_000)
    os.close(descriptor)
    assert ended, f"{pid} trains on"


def test_only_directories_of_ended_drills_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "milepost-drill-somebody-elses").mkdir()
    (tmp_path / "precious").mkdir()
    os.symlink(tmp_path / "precious", tmp_path / "milepost-drill-link")
    with drill_scratch.scratch(keep=True) as kept, drill_scratch.scratch(keep=False) as used:
        assert drill_scratch.remove_left_over(tmp_path) == []
        assert used.is_dir()
    assert drill_scratch.remove_left_over(tmp_path) == []
    names = {"milepost-drill-somebody-elses", "precious", "milepost-drill-link", kept.name}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_what_still_trains_in_the_directory_of_a_killed_drill_ends_with_it_and_nobody_else(tmp_path: Path) -> None:
    left, mine = tmp_path / "milepost-drill-left", tmp_path / "mine"
    left.mkdir()
    (left / "drill.lock").touch()
    theirs, other = (
        subprocess.Popen(["sleep", "1000"], env=os.environ | {"MILEPOST_ROOT": f"{folder}/roots"}) for folder in (left, mine)
    )
    try:
        assert drill_scratch.remove_left_over(tmp_path) == [left]
        assert theirs.wait(60) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for each in (theirs, other):
            each.kill()
            each.wait()


def test_a_command_that_does_not_go_on_from_the_copy_is_told_so_and_never_struck(mine: Path) -> None:
    verdict = drilled("begins anew", Path.cwd(), roots=("runs/mine",))
    assert (verdict.outcome, verdict.kind, verdict.runs) == ("nothing proven", "never-resumed", ())


def test_a_command_that_goes_past_the_copy_to_the_users_own_root_is_found_before_anything_is_struck(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only here is a root of one's own changed: the command clears its environment, which no drill can prevent."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path)
    script = written("clears the environment", tmp_path, {})
    script.write_text(script.read_text().replace("runs/mine", str(tmp_path / "runs" / "mine")))
    verdict = drill(Request("bitflip", (sys.executable, str(script)), ("runs/mine",)), bench(tmp_path / "scratch"))
    assert (verdict.outcome, verdict.kind, verdict.runs) == ("nothing proven", "saved-elsewhere", ())
    assert verdict.places == ("runs/mine",)
