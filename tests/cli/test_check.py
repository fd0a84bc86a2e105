"""`milepost verify`: what is damaged is named, what a resume would take is said, and the exit code tells both apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from milepost.cli.main import main
from milepost.publish import quarantine
from milepost.publish.view import read
from tests.cli.runs import Run


def milepost(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="milepost")


def document(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(milepost(*arguments, "--json").stdout)
    return found


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "ppo").saves([1000, 2000, 3000])


def flip(run: Run, number: int) -> str:
    """Flip one bit of the blob of a generation and return its name."""
    name = read(run.store).listing.summaries[number].blobs[0].name
    data = bytearray((run.root / name).read_bytes())
    data[100] ^= 1
    (run.root / name).write_bytes(data)
    return name


def test_a_sound_run_is_all_valid_and_the_exit_code_is_zero(run: Run) -> None:
    result = milepost("verify", run.root)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.splitlines()[:3] == ["g000001  valid", "g000002  valid", "g000003  valid"]
    assert result.stdout.splitlines()[-1] == "a resume would take g000003"


def test_damage_is_named_and_the_next_best_generation_too(run: Run) -> None:
    name = flip(run, 3)
    result = milepost("verify", run.root)
    assert result.exit_code == 13
    assert "g000003  DAMAGED" in result.stdout
    assert f"  {name} (policy): its digest is not the one that was written" in result.stdout
    assert result.stdout.splitlines()[-1] == "a resume would take g000002"
    found = document("verify", run.root)
    assert (found["ok"], found["resume_from"]) == (False, 2)
    assert [one["state"] for one in found["generations"]] == ["valid", "valid", "damaged"]
    assert found["problems"][0]["name"] == name
    assert found["problems"][0]["components"] == ["policy"]


def test_with_nothing_left_to_resume_from_the_code_says_so(run: Run) -> None:
    for number in (1, 2, 3):
        flip(run, number)
    result = milepost("verify", run.root)
    assert result.exit_code == 14
    assert result.stdout.splitlines()[-1] == f"hint: milepost reset {run.root} sets the run aside for a fresh start"


def test_a_run_of_unhealthy_generations_has_nothing_to_resume_from_either(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(1, healthy=False, nonfinite=("policy/w",))
    assert milepost("verify", run.root).exit_code == 14


def test_a_run_without_a_save_is_fine(tmp_path: Path) -> None:
    result = milepost("verify", Run(tmp_path).root)
    assert (result.exit_code, result.stdout.split(";")[0]) == (0, "no generations")


def test_a_damaged_record_beside_the_generations_is_named(run: Run) -> None:
    (run.root / "terms/0001.from.json").write_bytes(b"{}")
    result = milepost("verify", run.root)
    assert result.exit_code == 13
    assert "terms/0001.from.json: a record is damaged" in result.stdout.splitlines()


def test_only_what_is_named_is_checked(run: Run) -> None:
    flip(run, 3)
    assert milepost("verify", run.root, "latest~1", "g000001").exit_code == 0
    assert milepost("verify", run.root, "latest").exit_code == 13, "one generation is damaged; the others may be fine: not 14"


def test_what_cannot_be_read_can_be_asked_for_by_its_number(run: Run) -> None:
    (run.root / "generations/000002.json").write_bytes(b"{}")
    result = milepost("verify", run.root, "2")
    assert result.exit_code == 13
    assert "g000002  UNREADABLE" in result.stdout


def test_quick_sees_a_truncated_blob_and_not_a_flipped_bit(run: Run) -> None:
    name = flip(run, 3)
    assert milepost("verify", run.root, "--quick").exit_code == 0
    (run.root / name).write_bytes(b"short")
    result = milepost("verify", run.root, "--quick")
    assert result.exit_code == 13
    assert "it is shorter than the 4,096 bytes that were written" in result.stdout


class TestClear:
    @pytest.fixture
    def marked(self, run: Run) -> Run:
        for number in (2, 3):
            quarantine.mark(
                run.store, run.clock, run_id=run.chain.run_id, term=1, number=number, kind="kills-loader", reason="it crashed"
            )
        return run

    def test_a_mark_is_shown_and_stands_without_being_asked_about(self, marked: Run) -> None:
        assert "g000003  valid  (marked kills-loader: it crashed)" in milepost("verify", marked.root).stdout
        assert document("verify", marked.root)["resume_from"] == 1
        assert read(marked.store).marks.keys() == {2, 3}

    def test_it_goes_from_what_verifies_and_stays_on_what_does_not(self, marked: Run) -> None:
        flip(marked, 2)
        result = milepost("verify", marked.root, "--clear")
        assert "g000003  valid  (mark cleared)" in result.stdout
        assert read(marked.store).marks.keys() == {2}
        assert document("verify", marked.root)["resume_from"] == 3

    def test_it_goes_only_from_what_is_named(self, marked: Run) -> None:
        assert document("verify", marked.root, "3", "--clear")["cleared"] == [3]
        assert read(marked.store).marks.keys() == {2}

    def test_it_wants_the_whole_check(self, marked: Run) -> None:
        assert milepost("verify", marked.root, "--clear", "--quick").exit_code == 2
        assert read(marked.store).marks.keys() == {2, 3}
