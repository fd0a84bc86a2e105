"""`milepost rollback`, `reset`, `pin`, `unpin`: on a run that was made by `milepost.save`, as a user's are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import milepost
from milepost.cli.main import main
from milepost.clock import SystemClock
from milepost.lifecycle.retain import Keep
from milepost.publish import pins
from milepost.records import Summary
from milepost.store.base import Store
from milepost.store.local import LocalStore
from tests.cli.runs import Run


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="milepost")


def document(*arguments: object) -> dict[str, Any]:
    result = call(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for step in (1000, 2000, 3000):
        milepost.save(tmp_path / "ppo", {"policy": {"w": [float(step)]}, "counters": {"step": step}}, step=step)
    return tmp_path / "ppo"


class TestRollback:
    def test_the_old_content_is_the_newest_generation_again(self, root: Path) -> None:
        result = call("rollback", root, "@1000")
        assert result.exit_code == 0
        assert result.stdout == "g000004 is the newest now, with the content of g000001 (step 1,000)\n"
        assert milepost.load(root) == {"policy": {"w": [1000.0]}, "counters": {"step": 1000}}

    def test_history_only_grows(self, root: Path) -> None:
        made = document("rollback", root, "latest~1")
        assert (made["to"], made["generation"]["number"], made["generation"]["rollback_to"]) == (2, 4, 2)
        assert [one["number"] for one in document("ls", root)["generations"]] == [4, 3, 2, 1]

    def test_to_the_newest_is_a_usage_error(self, root: Path) -> None:
        assert call("rollback", root, "latest").exit_code == 2

    def test_to_what_is_not_there_changes_nothing(self, root: Path) -> None:
        before = sorted(path.name for path in root.rglob("*"))
        assert call("rollback", root, "99").exit_code == 10
        assert sorted(path.name for path in root.rglob("*")) == before

    def test_a_directory_that_is_no_run_stays_as_it_was(self, tmp_path: Path) -> None:
        (tmp_path / "mine.txt").touch()
        assert call("rollback", tmp_path, "1").exit_code == 10
        assert call("reset", tmp_path).exit_code == 10
        assert call("pin", tmp_path).exit_code == 10
        assert [path.name for path in tmp_path.iterdir() if path.name != "writer.lock"] == ["mine.txt"]

    def test_a_run_that_is_being_trained_is_left_alone(self, root: Path) -> None:
        with LocalStore(root, SystemClock()).guard(wait_s=0.0, take_over=False):
            for verb in (["rollback", root, "1"], ["reset", root]):
                result = call(*verb)
                assert result.exit_code == 11
                assert result.stderr.splitlines()[-1].startswith("hint: ")
        assert document("ls", root)["head"] == 3


class TestReset:
    def test_the_run_is_set_aside_whole_and_the_next_start_is_fresh(self, root: Path) -> None:
        run_id = document("ls", root)["run_id"]
        moved = document("reset", root)
        assert moved["run_id"] == run_id
        assert document("ls", root)["generations"] == []
        assert document("ls", root)["run_id"] == moved["new_run_id"]
        aside = root / moved["moved_to"]
        assert document("ls", aside)["run_id"] == run_id
        assert milepost.load(aside) == {"policy": {"w": [3000.0]}, "counters": {"step": 3000}}

    def test_it_says_where_the_run_is_now(self, root: Path) -> None:
        said = call("reset", root).stdout.splitlines()
        shown = said[-1].removesuffix(" shows what it was").split()
        assert shown[:2] == ["milepost", "ls"]
        assert call(*shown[1:]).stdout.splitlines()[1].startswith("g000003")


class TestDrop:
    @pytest.mark.parametrize(
        ("number", "what", "code", "words"),
        [
            (2, "torn", 0, "g000002 is given up; the next start deletes what it alone had named"),
            (3, "torn", 0, "g000003 is given up; the next start deletes what it alone had named"),
            (2, "misnamed", 0, "g000002 is given up; the next start deletes what it alone had named"),
            (2, "sound", 2, "only a manifest that cannot be read can be dropped"),
            (17, "sound", 10, "there is no such generation"),
        ],
    )
    def test_only_what_cannot_be_read_is_given_up(self, root: Path, number: int, what: str, code: int, words: str) -> None:
        manifest = root / f"generations/{number:06d}.json"
        if what == "torn":
            manifest.write_bytes(b"torn")
        elif what == "misnamed":
            manifest.write_bytes((root / "generations/000001.json").read_bytes())
        before = sorted(path.name for path in (root / "terms").iterdir())
        result = call("drop", root, number)
        assert result.exit_code == code
        assert words in result.stdout + result.stderr
        if code:
            assert sorted(path.name for path in (root / "terms").iterdir()) == before
            assert len(document("ls", root)["generations"]) == 3
        else:
            assert not manifest.exists()
            assert sorted(one["number"] for one in document("ls", root)["generations"]) == sorted({1, 2, 3} - {number})
            milepost.save(root, {"policy": {"w": [9.0]}}, step=9000)  # its number is not used again
            assert document("ls", root)["generations"][0]["number"] == 4

    def test_it_can_be_read_by_a_program(self, root: Path) -> None:
        (root / "generations/000002.json").write_bytes(b"torn")
        said = document("drop", root, 2)
        assert (said["number"], said["name"]) == (2, "g000002")

    def test_where_nothing_can_be_read_it_names_the_way_out_and_that_works(self, root: Path) -> None:
        for path in (root / "generations").iterdir():
            path.write_bytes(b"torn")
        result = call("drop", root, 3)
        assert result.exit_code == 14
        assert "milepost reset" in result.stderr
        assert call("reset", root).exit_code == 0
        assert document("ls", root)["generations"] == []

    def test_a_run_that_is_being_trained_or_is_none_is_left_alone(self, root: Path, tmp_path: Path) -> None:
        (root / "generations/000002.json").write_bytes(b"torn")
        with LocalStore(root, SystemClock()).guard(wait_s=0.0, take_over=False):
            assert call("drop", root, 2).exit_code == 11
        assert (root / "generations/000002.json").exists()
        assert call("drop", tmp_path, 2).exit_code == 10


class TestPins:
    def test_a_pinned_generation_outlives_retention_until_it_is_unpinned(self, tmp_path: Path) -> None:
        run = Run(tmp_path / "ppo", Keep(last=2)).saves([1, 2])
        assert call("pin", run.root, "1").stdout == "g000001 (step 1) stays until it is unpinned\n"
        run.saves([3, 4, 5])
        assert [one["number"] for one in document("ls", run.root)["generations"]] == [5, 4, 1]
        assert call("unpin", run.root, "g000001").stdout == "g000001 is left to retention again\n"
        run.saves([6])
        assert [one["number"] for one in document("ls", run.root)["generations"]] == [6, 5]

    def test_the_latest_is_pinned_by_default(self, root: Path) -> None:
        assert document("pin", root)["number"] == 3
        assert document("ls", root)["generations"][0]["tags"] == ["latest", "resume", "pinned"]

    def test_what_is_not_live_cannot_be_pinned(self, root: Path) -> None:
        assert call("pin", root, "17").exit_code == 10
        assert not (root / "pins").exists() or not list((root / "pins").iterdir())

    def test_a_latest_that_is_retired_before_it_is_pinned_is_another_one_by_now(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run, real, steps = Run(tmp_path / "ppo", Keep(last=1)).saves([1]), pins.pin, [[2, 3], [4]]

        def after_the_trainer(store: Store, number: int, *, by: str = "") -> Summary:
            run.saves(steps.pop() if steps else [])
            return real(store, number, by=by)

        monkeypatch.setattr(pins, "pin", after_the_trainer)
        assert document("pin", run.root)["number"] == 4
        assert [one["number"] for one in document("ls", run.root)["generations"]] == [4]

    def test_taking_a_pin_away_twice_does_no_harm(self, root: Path) -> None:
        call("pin", root)
        assert document("unpin", root, "latest")["name"] == "g000003"
        assert call("unpin", root, "3").stdout == "g000003 was not pinned\n"


def test_the_installed_program_does_all_of_it(root: Path) -> None:
    program = Path(sys.executable).with_name("milepost")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)

    assert run("verify", str(root)).returncode == 0
    assert run("rollback", str(root), "@2000").stdout.startswith("g000004 is the newest now")
    assert run("show", str(root), "latest").stdout.startswith("run ")
    listed = json.loads(run("ls", str(root), "--json").stdout)
    assert [one["step"] for one in listed["generations"]] == [2000, 3000, 2000, 1000]
    missing = run("ls", str(root / "nothing"))
    assert (missing.returncode, missing.stdout) == (10, "")
