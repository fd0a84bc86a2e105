"""Have SLURM start a job again: what stands for scontrol here writes down what it is asked, fails, hangs, or is not there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from milepost.supervise import slurm_end
from milepost.supervise.requeue import attempts_before, requeue

JOB = {"SLURM_JOB_ID": "4711"}
SCONTROL = """#!{python}
import os, sys
open({calls!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
{does}
"""
RUNNING = "JobId=4711 JobName=train UserId=ada(1000) JobState=RUNNING Reason=None Requeue=1 Restarts=0 TimeLimit=1-00:00:00"


class Scontrol:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.calls = folder, folder / "calls"
        (folder / "bin").mkdir()
        monkeypatch.setenv("PATH", str(folder / "bin"))

    def does(self, code: str) -> None:
        program = self.folder / "bin/scontrol"
        program.write_text(SCONTROL.format(python=sys.executable, calls=str(self.calls), does=code))
        program.chmod(0o755)

    def shows(self, job: str) -> None:
        self.does(f"if sys.argv[1] != 'requeue': print({job!r})")

    @property
    def requeued(self) -> list[str]:
        calls = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [call.removeprefix("requeue ") for call in calls if call.startswith("requeue")]


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scontrol:
    found = Scontrol(tmp_path, monkeypatch)
    found.shows(RUNNING)
    return found


def test_outside_a_job_there_is_nothing_to_ask(scontrol: Scontrol) -> None:
    assert requeue({}) == ""
    assert scontrol.requeued == []


@pytest.mark.parametrize(
    ("more", "job"),
    [
        ({}, "4711"),
        ({"SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "11"}, "4700_11"),  # 4711 is the last task: or the whole array
        ({"SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "0"}, "4711_0"),
        ({"SLURM_HET_JOB_ID": "4709"}, "4709"),  # the leader stands for all parts
        ({"SLURM_PROCID": "0", "SLURM_RESTART_COUNT": "999"}, "4711"),
    ],
)
def test_the_job_is_asked_for_by_the_name_that_slurm_has_for_it(scontrol: Scontrol, more: dict[str, str], job: str) -> None:
    assert requeue(JOB | more) == f"SLURM was asked to start job {job} again"
    assert scontrol.requeued == [job]


def test_one_task_of_a_step_asks_for_all(scontrol: Scontrol) -> None:
    told = [requeue(JOB | {"SLURM_PROCID": str(task)}) for task in range(4)]
    assert scontrol.requeued == ["4711"]
    assert {"first task" in words for words in told[1:]} == {True}


def test_a_job_that_came_back_often_enough_is_not_put_back_again(scontrol: Scontrol) -> None:
    assert "that was done 3 times" in requeue(JOB | {"SLURM_RESTART_COUNT": "3"}, most=3)
    assert scontrol.requeued == []
    requeue(JOB | {"SLURM_RESTART_COUNT": "2"}, most=3)
    assert scontrol.requeued == ["4711"]


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "TIMEOUT"])
def test_a_job_that_somebody_cancelled_does_not_come_back(scontrol: Scontrol, state: str) -> None:
    """``scancel`` sends SIGTERM as a preemption does, and SLURM would put a cancelled job back if it were asked."""
    scontrol.shows(RUNNING.replace("RUNNING", state))
    assert f"job 4711 is {state}" in requeue(JOB)
    assert scontrol.requeued == []


def test_a_job_that_may_not_be_requeued_is_told_what_to_write(scontrol: Scontrol) -> None:
    scontrol.shows(RUNNING.replace("Requeue=1", "Requeue=0"))
    assert "sbatch --requeue" in requeue(JOB)
    assert scontrol.requeued == []


def test_what_slurm_answers_without_a_state_does_not_keep_it_from_being_asked(scontrol: Scontrol) -> None:
    scontrol.shows("")
    assert "was asked" in requeue(JOB)


def test_without_scontrol_the_exit_code_is_all_there_is(scontrol: Scontrol) -> None:
    (scontrol.folder / "bin/scontrol").unlink()
    assert requeue(JOB) == "SLURM was not asked to start it again: there is no scontrol"


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("sys.exit('slurm_load_jobs error: Unable to contact slurm controller')", "Unable to contact slurm controller"),
        ("sys.exit(1)", "scontrol: 1"),
        ("if sys.argv[1] == 'requeue': sys.exit('Job/step already completing or completed')", "already completing"),
        ("os.kill(os.getpid(), 9)", "scontrol: -9"),
    ],
)
def test_what_scontrol_complains_of_is_told(scontrol: Scontrol, does: str, words: str) -> None:
    scontrol.does(does)
    told = requeue(JOB)
    assert words in told
    assert "was asked" not in told


def test_an_scontrol_that_hangs_keeps_nobody_for_ever(scontrol: Scontrol, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_end, "TIMEOUT_S", 0.3)
    scontrol.does("import signal; signal.pause()")
    assert "did not answer" in requeue(JOB)


def test_an_scontrol_that_cannot_be_run_is_told(scontrol: Scontrol) -> None:
    (scontrol.folder / "bin/scontrol").write_text("#!/no/such/interpreter\n")
    assert "cannot be run" in requeue(JOB)
    assert not os.path.exists(scontrol.calls)


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 0),
        ({"SLURM_RESTART_COUNT": "3"}, 3),
        ({"MILEPOST_ATTEMPT": "1"}, 0),
        ({"MILEPOST_ATTEMPT": "5", "SLURM_RESTART_COUNT": "2"}, 4),
        ({"SLURM_RESTART_COUNT": "x", "MILEPOST_ATTEMPT": "²"}, 0),
    ],
)
def test_numbers_of_attempts_go_on_over_requeues(environment: dict[str, str], count: int) -> None:
    assert attempts_before(environment) == count
