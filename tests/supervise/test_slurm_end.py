from __future__ import annotations

import os
from pathlib import Path

import pytest

from milepost.supervise import slurm_end
from milepost.supervise.slurm_end import asked_left_s, in_a_job, job_of, seconds_left, told_end_wall_ns

JOB = {"SLURM_JOB_ID": "41"}
TASK = {"SLURM_JOB_ID": "41", "SLURM_ARRAY_JOB_ID": "41", "SLURM_ARRAY_TASK_ID": "7"}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be the only programs that are found by their names, besides the shell's."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return tmp_path


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("text", "end"),
    [("1800000000", 1_800_000_000_000_000_000), ("", None), ("0", None), ("Unknown", None), ("-1", None), ("²", None)],
)
def test_the_end_that_the_environment_tells(text: str, end: int | None) -> None:
    assert told_end_wall_ns({"SLURM_JOB_END_TIME": text}) == end


def test_a_job_is_known_by_its_environment() -> None:
    assert [in_a_job(JOB), in_a_job({}), job_of(JOB), job_of(TASK)] == [True, False, "41", "41_7"]


@pytest.mark.parametrize("text", ["UNLIMITED", "INVALID", "NOT_SET", "", "5", "1:2:3:4", "abc"])
def test_what_is_no_length_of_time_is_none(text: str) -> None:
    assert seconds_left(text) is None


def test_squeue_is_asked_for_what_is_left_of_this_task(programs: Path) -> None:
    program(programs / "squeue", f'echo "$@" > {programs}/asked; echo 1-00:00:10')
    assert asked_left_s(TASK)[0] == 86410.0
    assert (programs / "asked").read_text() == "--noheader --jobs 41_7 --format %L\n"


def test_where_squeue_cannot_tell_scontrol_is_asked(programs: Path) -> None:
    program(programs / "squeue", "echo slurm_load_jobs error >&2; exit 1")
    program(programs / "scontrol", 'echo "JobId=41 RunTime=00:10:00 TimeLimit=01:00:00 EndTime=2027-01-15T08:00:00"')
    assert asked_left_s(JOB)[0] == 3000.0
    program(programs / "scontrol", 'echo "JobId=41 RunTime=00:10:00 TimeLimit=UNLIMITED"')
    assert asked_left_s(JOB) == (None, "TimeLimit=UNLIMITED")


def test_an_unlimited_job_has_no_end(programs: Path) -> None:
    program(programs / "squeue", "echo UNLIMITED")
    assert asked_left_s(JOB) == (None, "UNLIMITED")


def test_without_slurms_programs_nothing_is_told_but_why(programs: Path) -> None:
    assert asked_left_s(JOB) == (None, "there is no squeue; there is no scontrol")


def test_a_program_that_hangs_is_not_waited_for_for_ever(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_end, "TIMEOUT_S", 0.05)
    program(programs / "squeue", "exec tail -f /dev/null")
    left, answer = asked_left_s(JOB)
    assert left is None
    assert "squeue did not answer" in answer
