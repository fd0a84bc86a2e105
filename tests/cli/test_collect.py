"""`milepost gc`: nothing happens without --yes; what stays says why; what goes was dropped by a published trim first. B10"""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import milepost
from milepost.cli.main import main
from milepost.clock import SystemClock
from milepost.engine import collecting, oneshot
from milepost.errors import ConflictError
from milepost.lifecycle.retain import Keep
from milepost.publish import layout, pins
from milepost.publish.view import read
from milepost.store.local import LocalStore
from milepost.testing.faults import FaultStore
from tests.cli.runs import Run, measured
from tests.engine.training import Training, bits, local, snapshot, without_git


def gc(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["gc", *map(str, arguments)], prog_name="milepost")


def document(*arguments: object) -> dict[str, Any]:
    result = gc(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def why(found: dict[str, Any]) -> dict[int, list[str]]:
    return {one["number"]: one["why"] for one in found["generations"]}


def going(found: dict[str, Any]) -> list[int]:
    return [one["number"] for one in found["generations"] if not one["stays"]]


def tree(step: int) -> dict[str, Any]:
    return {"policy": {"w": np.full(1000, step, np.float64)}, "counters": {"step": step}}


def holds(root: Path, number: int, step: int) -> bool:
    return bool(bits(milepost.load(root, which=number)) == bits(tree(step)))


def save(root: Path, step: int, keep: int = 9) -> None:
    milepost.save(root, tree(step), step=step, keep=Keep(last=keep))


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("origin") / "ppo"
    with pytest.MonkeyPatch.context() as patch:
        without_git(patch)
        for step in (1, 2, 3, 4, 5):
            save(made, step)
    return made


@pytest.fixture
def root(origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    without_git(monkeypatch)
    return Path(shutil.copytree(origin, tmp_path / "ppo"))


class TestDryRun:
    def test_nothing_is_changed(self, root: Path) -> None:
        before = snapshot(local(root))
        result = gc(root, "--keep-last", 2)
        assert result.exit_code == 0
        assert snapshot(local(root)) == before
        assert result.stdout.splitlines()[-1].endswith("nothing was changed: the same command with --yes does it")

    def test_every_generation_says_why(self, root: Path) -> None:
        pins.pin(local(root), 1, by="ada")
        found = document(root, "--keep-last", 2)
        assert going(found) == [3, 2]
        assert why(found) == {
            5: ["the newest", "a resume would take it", "the newest healthy one", "one of the last 2"],
            4: ["one of the last 2"],
            3: ["older than the last 2"],
            2: ["older than the last 2"],
            1: ["pinned by ada"],
        }
        assert found["done"] is False

    def test_what_it_would_free_is_what_goes_alone_names(self, root: Path) -> None:
        files = ["generations/000001.json", "generations/000002.json"]
        own = [name for name in snapshot(local(root)) if name.startswith(("blobs/000001", "blobs/000002"))]
        found = document(root, "--keep-last", 3)
        assert found["would_free_bytes"] == sum((root / name).stat().st_size for name in (*files, *own))

    def test_of_the_last_one_alone_the_others_are_not_it(self, root: Path) -> None:
        assert why(document(root, "--keep-last", 1))[4] == ["not the last"]

    def test_without_a_rule_all_that_the_run_keeps_stays(self, root: Path) -> None:
        result = gc(root)
        assert "GOES" not in result.stdout
        assert result.stdout.splitlines()[-1] == "nothing to delete; --keep-last N would let older generations go"
        assert why(document(root))[1] == ["its writer keeps it"]

    def test_the_best_stay_by_the_runs_own_rule_or_another(self, tmp_path: Path) -> None:
        run = Run(tmp_path)
        for step, value in ((1, 10.0), (2, 30.0), (3, 20.0), (4, 5.0)):
            run.save(step, **measured(value, step))
        assert going(document(tmp_path, "--keep-best", 1)) == [3, 1]
        assert why(document(tmp_path, "--keep-best", 1))[2] == ["the best by eval/return"]
        assert why(document(tmp_path, "--keep-last", 1, "--keep-best", 2))[3] == ["number 2 by eval/return"]
        assert going(document(tmp_path, "--keep-best", 1, "--mode", "min")) == [3, 2, 1]

    def test_that_the_best_would_go_is_said(self, tmp_path: Path) -> None:
        run = Run(tmp_path)
        for step, score in ((1, 5.0), (2, 9.0), (3, 7.0)):
            run.save(step, **measured(score, step))
        said = "g000002, the best by eval/return, would go too: --keep-best 1 keeps it"
        assert said in gc(tmp_path, "--keep-last", 1).stdout.splitlines()
        assert "--keep-best" not in gc(tmp_path, "--keep-last", 2).stdout
        assert "would go too" not in gc(tmp_path, "--keep-last", 1, "--keep-best", 1).stdout

    def test_a_best_that_nobody_can_tell_is_a_usage_error(self, root: Path) -> None:
        assert gc(root, "--keep-best", 1).exit_code == 2
        assert gc(root, "--by", "eval/return").exit_code == 2
        assert gc(root, "--keep-last", 0).exit_code == 2

    def test_what_a_killed_save_left_is_counted_and_whose_it_may_be_is_said(self, root: Path) -> None:
        (root / f"blobs/000006-t5-{1:016x}.safetensors.part").write_bytes(b"x" * 1000)
        (root / f"blobs/000003-t3-{2:016x}.safetensors").write_bytes(b"x" * 24)
        (root / "blobs/mine.txt").write_bytes(b"not milepost's")
        found = document(root)
        assert [(one["size_bytes"], one["term"]) for one in found["leftovers"]] == [(24, 3), (1000, 5)]
        assert found["would_free_bytes"] == 1024
        said = gc(root).stdout
        assert "2 files (1 KiB) that no generation stands on" in said
        assert "its process may be writing some of them" in said

    def test_runs_that_were_set_aside_are_mentioned_and_left_alone(self, root: Path) -> None:
        oneshot.reset(root)
        save(root, 9)
        before = {name: data for name, data in snapshot(local(root)).items() if name.startswith(layout.ASIDE)}
        assert f"{root}/reset holds 1 run set aside by a reset" in gc(root, "--keep-last", 1).stdout
        gc(root, "--keep-last", 1, "--yes")
        assert {name: data for name, data in snapshot(local(root)).items() if name.startswith(layout.ASIDE)} == before

    def test_what_cannot_be_read_holds_up_what_is_as_old(self, root: Path) -> None:
        (root / "generations/000003.json").write_bytes(b"torn")
        old = root / f"blobs/000002-t2-{1:016x}.safetensors"
        old.write_bytes(b"unnamed, as far as anybody can tell")
        found = document(root, "--keep-last", 1)
        assert (going(found), found["leftovers"]) == ([4], [])
        assert f"milepost drop {root} 3" in gc(root, "--keep-last", 1).stdout
        assert gc(root, "--keep-last", 1, "--yes").exit_code == 0
        assert old.exists()
        assert {path.stem for path in (root / "generations").iterdir()} == {"000001", "000002", "000003", "000006"}

    def test_a_run_that_was_rolled_back_keeps_what_it_left_behind(self, root: Path) -> None:
        oneshot.rollback(root, 2)
        assert going(document(root, "--keep-last", 1)) == []
        assert why(document(root, "--keep-last", 1))[5] == [
            "from before the run went back or started anew: until two newer ones exist"
        ]


class TestYes:
    def test_what_goes_is_gone_and_what_stays_loads(self, root: Path) -> None:
        planned = document(root, "--keep-last", 2)
        before = sum(path.stat().st_size for path in root.glob("*/*") if path.parent.name in ("blobs", "generations"))
        done = document(root, "--keep-last", 2, "--yes")
        assert (done["gone"], done["trimmed"]["number"]) == ([1, 2, 3, 5], 6)
        view = read(local(root))
        assert [*view.live] == [4, 6]
        assert view.live[6].trim_of == 5
        for number, step in ((4, 4), (6, 5)):
            assert holds(root, number, step)
        after = sum(path.stat().st_size for path in root.glob("*/*") if path.parent.name in ("blobs", "generations"))
        trim = (root / "generations/000006.json").stat().st_size
        assert before + trim - after == done["freed_bytes"] >= planned["would_free_bytes"]
        assert oneshot.verify(root).ok

    def test_it_says_what_it_did(self, root: Path) -> None:
        said = gc(root, "--keep-last", 2, "--yes").stdout.splitlines()
        assert said[0].endswith("gone: g000001, g000002, g000003")
        assert said[1] == "g000005 is called g000006 now: published again, with what stays"

    def test_done_once_there_is_nothing_left_to_do_and_nothing_is_published(self, root: Path) -> None:
        gc(root, "--keep-last", 2, "--yes")
        before = snapshot(local(root))
        assert gc(root, "--keep-last", 2, "--yes").stdout == "nothing to delete; nothing was changed\n"
        assert snapshot(local(root)) == before

    def test_leftovers_alone_are_swept_without_a_trim(self, root: Path) -> None:
        (root / f"blobs/000006-t5-{1:016x}.safetensors.part").write_bytes(b"x" * 1000)
        done = document(root, "--yes")
        assert (done["trimmed"], done["gone"], done["files"], done["freed_bytes"]) == (None, [], 1, 1000)
        assert [*read(local(root)).live] == [1, 2, 3, 4, 5]

    def test_pins_hold(self, root: Path) -> None:
        pins.pin(local(root), 2)
        gc(root, "--keep-last", 1, "--yes")
        assert [*read(local(root)).live] == [2, 6]
        assert holds(root, 2, 2)

    def test_a_run_that_is_being_trained_is_left_alone_unless_it_is_taken_over(self, root: Path) -> None:
        with LocalStore(root, SystemClock()).guard(wait_s=0.0, take_over=False):
            before = snapshot(local(root))
            result = gc(root, "--keep-last", 1, "--yes")
            assert result.exit_code == 11
            assert "pid" in result.stderr
            assert snapshot(local(root)) == before
            assert gc(root, "--keep-last", 1, "--yes", "--take-over").exit_code == 0
        assert [*read(local(root)).live] == [6]

    def test_of_a_newest_that_is_not_healthy_the_newest_healthy_one_stays(self, tmp_path: Path) -> None:
        run = Run(tmp_path).saves([1, 2, 3])
        run.save(4, healthy=False, nonfinite=("policy/w",))
        gc(tmp_path, "--keep-last", 1, "--yes")
        assert [*read(run.store).live] == [3, 5]
        assert read(run.store).live[5].healthy is False

    def test_what_was_retired_and_never_deleted_goes(self, root: Path) -> None:
        dead = {name: data for name, data in snapshot(local(root)).items() if name.partition("/")[2].startswith("000001")}
        gc(root, "--keep-last", 2, "--yes")
        for name, data in dead.items():
            (root / name).write_bytes(data)
        found = document(root)
        assert (going(found), why(found)[1]) == ([1], ["retired already"])
        assert document(root, "--yes")["gone"] == [1]
        assert [*read(local(root)).live] == [4, 6]

    def test_a_run_without_a_save_has_nothing_to_delete(self, tmp_path: Path) -> None:
        Run(tmp_path)
        assert gc(tmp_path).stdout.splitlines()[0] == "no generation yet"
        assert gc(tmp_path, "--yes", "--keep-last", 1).stdout == "nothing to delete; nothing was changed\n"

    def test_a_directory_that_is_no_run_stays_as_it_was(self, tmp_path: Path) -> None:
        (tmp_path / "mine.txt").touch()
        assert gc(tmp_path, "--yes").exit_code == 10
        assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_history_is_not_given_away_for_a_damaged_newest_generation(root: Path) -> None:
    [blob] = [name for name in snapshot(local(root)) if name.startswith("blobs/000005")]
    (root / blob).write_bytes((root / blob).read_bytes()[:-1] + b"\xff")
    before = snapshot(local(root))
    result = gc(root, "--keep-last", 1, "--yes")
    assert result.exit_code == 13
    assert f"milepost rollback {root} 4" in result.stderr
    assert snapshot(local(root)) == before
    oneshot.rollback(root, 4)
    save(root, 7)
    assert gc(root, "--keep-last", 1, "--yes").exit_code == 0
    assert bits(milepost.load(root)) == bits(tree(7))


def test_a_run_that_another_process_saves_to_meanwhile_loses_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = collecting.open_session

    def after_another(*arguments: Any, **settings: Any) -> Any:
        # A guard only keeps claims rare: somebody took over, saved and ended between our look and our claim.
        with Training(root, keep=Keep(last=9), take_over=True, strict=False) as other:
            other.engine._ready = True
            other.save(6)
        return real(*arguments, **settings)

    monkeypatch.setattr(collecting, "open_session", after_another)
    with pytest.raises(ConflictError) as caught:
        collecting.collect(local(root), SystemClock(), Keep(last=1))
    assert caught.value.kind == "changed-meanwhile"
    assert [*read(local(root)).live] == [1, 2, 3, 4, 5, 6]


def test_a_newest_that_a_trainer_retires_while_it_is_read_is_no_damage(root: Path) -> None:  # rule 20
    trained = threading.Event()

    class TrainedBeside(FaultStore):
        def read_into(self, name: str, start: int, into: memoryview) -> int:
            if not trained.is_set():
                trained.set()
                with Training(root, keep=Keep(last=1)) as other:
                    other.engine.resume(which="never")
                    for step in (6, 7, 8):
                        other.save(step)
            return super().read_into(name, start, into)

    with pytest.raises(ConflictError) as caught:
        collecting.collect(TrainedBeside(local(root)), SystemClock(), Keep(last=1))
    assert caught.value.kind == "changed-meanwhile"
