"""`milepost selftest`: a script that resumes exactly passes; one that does not is caught, told apart, and told what to do. B20"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from milepost.cli.main import main
from tests.supervise.scripts import written


@pytest.fixture(autouse=True)
def _scratch_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")


ONE, TWO = {1: 35}, {1: 25, 2: "end"}
"""Where starts wait to be killed: between two saves, and the second after its last one, if not in it."""


def selftest(name: str, *options: str, stops: dict[int, int | str] | None = None) -> Result:
    if stops is None:
        stops = ONE if "--kills" in options else TWO  # type: ignore[assignment]
    command = [sys.executable, str(written(name, Path.cwd(), stops or {}))]
    return CliRunner().invoke(main, ["selftest", *options, "--", *command], prog_name="milepost")


def document(name: str, *options: str, stops: dict[int, int | str] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(selftest(name, "--json", *options, stops=stops).stdout)
    return found


def test_an_exact_script_passes(tmp_path: Path) -> None:
    result = selftest("exact")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("identical: killed ")
    assert "alone: ended by itself" in result.stderr
    assert "killed: went on from step " in result.stderr
    assert os.listdir(tmp_path / "scratch") == []
    assert os.listdir() == ["train.py"]


def test_a_kill_while_a_save_is_written_is_one() -> None:
    found = document("exact", "--at", "during-save", "--kills", "1", stops={1: 40})
    assert (found["outcome"], found["kind"]) == ("identical", "identical")
    assert [start["ended"] for start in found["starts"]] == ["by itself", "killed", "by itself"]


def test_a_kill_reaches_a_trainer_that_has_left_the_session_of_the_command() -> None:
    found = document("in a session of its own", "--at", "mid-rollout", "--kills", "1", stops={2: 35})
    assert (found["outcome"], [start["ended"] for start in found["starts"]]) == (
        "identical",
        ["by itself", "killed", "by itself"],
    )


def test_a_script_that_forgets_a_generator_is_caught_where_it_first_shows() -> None:
    result = selftest("forgets", "--at", "mid-rollout", "--kills", "1")
    assert result.exit_code == 20, result.output
    assert "DIFFERENT: killed 1 time and resumed, it is not the run that was left alone" in result.stdout
    assert "it is the first save after it went on from step 30" in result.stdout
    assert "policy/weights, numpy float64[4]: 4 of 4 elements differ" in result.stdout
    assert " killed and resumed\n" in result.stdout
    assert "hint: " in result.stdout


def test_where_the_data_of_the_first_difference_is_gone_a_later_one_is_shown() -> None:
    found = document("forgets, and keeps little", "--kills", "1")
    assert found["parting"]["components"][0]["first"]["count"] == 0
    assert found["parting"]["shown"]["components"][0]["first"]["count"] == 4


def test_a_script_that_does_not_repeat_itself_is_told_apart_without_a_further_run() -> None:
    found = document("not seeded", "--kills", "1")
    assert (found["outcome"], found["kind"]) == ("not deterministic", "before-any-kill")
    assert len(found["starts"]) == 3


def test_asked_to_it_runs_alone_twice_before_anything_else() -> None:
    result = selftest("not seeded", "--twice")
    assert result.exit_code == 21
    assert result.stdout.startswith("NOT DETERMINISTIC")
    assert "killed" not in result.stderr
    assert "hint: seed all that it draws from" in result.stdout


def test_a_generator_that_is_neither_seeded_nor_used_does_not_count() -> None:
    result = selftest("seeds nothing it does not use", "--kills", "1")
    assert result.exit_code == 0, result.output
    assert "note: rng/process/numpy was neither seeded nor drawn from" in result.stdout


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("saves nothing", "hint: it saved nothing: is CheckpointEngine or Checkpointing reached"),
        ("saves once", "when=every(steps=...)"),
        ("another root each time", "  runs/"),
        ("begins anew", "hint: it began anew"),
        ("clears the environment", "  runs/mine"),
    ],
)
def test_where_nothing_can_be_proven_it_says_why(name: str, says: str) -> None:
    result = selftest(name, "--kills", "1")
    assert result.exit_code == 22, result.output
    assert result.stdout.startswith("NOTHING PROVEN: ")
    assert says in result.stdout


def test_a_script_that_fails_by_itself_is_shown_with_the_end_of_what_it_said() -> None:
    result = selftest("crashes")
    assert result.exit_code == 23
    assert "FAILED by itself, before anything was proven: exit code 1" in result.stdout
    assert "  no GPU found\n  ask the administrator\n" in result.stdout
    assert "epoch" not in result.stdout


def test_a_script_that_never_ends_is_stopped() -> None:
    result = selftest("never ends", "--timeout", "0.3")
    assert result.exit_code == 23
    assert "hint: give it fewer steps, or more time: --timeout 1h" in result.stdout


def test_a_script_that_fails_only_when_it_is_started_again_is_not_exact() -> None:
    result = selftest("refuses a second start")
    assert result.exit_code == 20
    assert "left alone it ends, killed and started again it does not (exit code 1)" in result.stdout
    assert "  locked by another run" in result.stdout


def test_several_roots_of_one_script_are_kept_apart_and_all_compared() -> None:
    found = document("two roots", "--kills", "1", stops={1: "end"})
    assert found["outcome"] == "identical"
    assert found["starts"][0]["generations"] == 10


def test_the_users_own_run_root_is_not_touched(tmp_path: Path) -> None:
    own = Path("runs/mine")
    own.mkdir(parents=True)
    (own / "milepost.json").write_text("mine")
    assert selftest("exact", "--here", "--kills", "1").exit_code == 0
    assert [path.name for path in own.iterdir()] == ["milepost.json"]


def test_what_it_kept_can_be_looked_at(tmp_path: Path) -> None:
    result = selftest("forgets", "--kills", "1", "--keep")
    scratch = next((tmp_path / "scratch").iterdir())
    assert f"kept: {scratch}" in result.stderr
    line = next(line for line in result.stdout.splitlines() if "--keep, then " in line)
    words = line.partition("then milepost ")[2].replace("KEPT", str(scratch)).split()
    assert CliRunner().invoke(main, words).exit_code == 1


def test_a_command_that_is_not_there_is_a_usage_error_and_leaves_nothing(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["selftest", "--", "no-such-program", "train.py"], prog_name="milepost")
    assert result.exit_code == 2
    assert "command: no-such-program" in result.stderr
    assert os.listdir(tmp_path / "scratch") == []


@pytest.mark.slow  # three starts that import torch
def test_a_script_of_stable_baselines3_passes() -> None:
    result = selftest("dqn", "--kills", "1", stops={1: 200})
    assert result.exit_code == 0, result.output
    assert "generations of equal steps" in result.stdout


def test_the_summary_of_what_is_said_is_one_document() -> None:
    found = document("forgets", "--kills", "1")
    assert (found["message_type"], found["outcome"], found["kind"]) == ("selftest", "different", "state-differs")
    assert found["parting"]["run_root"] == "runs/mine"
    assert found["parting"]["resumed_from_step"] == found["starts"][2]["from_step"]
    assert [part["name"] for part in found["parting"]["components"]] == ["policy"]
    assert found["advice"]
