"""Each kind of fault is done for real, and the start after it knows it, says it, and goes on. B11"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from milepost.engine import provenance
from milepost.records import Restored
from milepost.testing.faults import run_in_child
from tests.damage.damaged import flip
from tests.engine.training import Training

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def train_and_be_killed(root: Path) -> None:
    """Save three generations in a process of its own, and kill it while it holds the run."""

    def train() -> None:
        training = Training(root)
        training.engine.resume()
        for step in (1, 2, 3):
            training.save(step)
        os.kill(os.getpid(), signal.SIGKILL)

    assert run_in_child(train) == -signal.SIGKILL


def start_again(root: Path) -> tuple[Restored, dict[str, Any]]:
    """Resume, save once more, and return what was restored with the event that tells of it."""
    with Training(root) as training:
        restored = training.engine.resume()
        assert restored is not None
        assert training.is_at(restored.step)
        training.save(9)
    lines = max((root / "events").iterdir()).read_text().splitlines()
    told = next(event for line in lines if (event := json.loads(line))["event"] == "resumed")
    return restored, told["fault"]


def test_a_killed_process_is_a_soft_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train_and_be_killed(tmp_path)
    with caplog.at_level(logging.INFO, "milepost"):
        restored, told = start_again(tmp_path)
    assert (restored.generation, restored.fault, restored.exact) == (3, "soft", True)
    assert "is gone without closing" in told["seen_by"]
    assert (told["source"], told["reused"]) == ("generation 3", "this machine and its files")
    assert "after a soft fault (pid " in caplog.text


def test_a_run_that_moved_to_another_host_has_had_a_hard_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_and_be_killed(tmp_path / "before")
    shutil.move(tmp_path / "before", tmp_path / "after")
    monkeypatch.setattr(provenance.socket, "gethostname", lambda: "another-host")
    restored, told = start_again(tmp_path / "after")
    assert (restored.generation, restored.fault, restored.exact) == (3, "hard", True)
    assert told["seen_by"].endswith("this is another-host")
    assert "environments" in told["rebuilt"]


def test_a_machine_that_was_started_anew_has_had_a_hard_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_and_be_killed(tmp_path)
    monkeypatch.setattr(provenance, "boot_id", lambda: "another-boot")
    restored, told = start_again(tmp_path)
    assert (restored.fault, restored.exact) == ("hard", True)
    assert "was started anew since" in told["seen_by"]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_damage_is_a_data_fault_wherever_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    train_and_be_killed(tmp_path)
    flip(next((tmp_path / "blobs").glob("000003-*")), -1, 0)
    if elsewhere:
        monkeypatch.setattr(provenance.socket, "gethostname", lambda: "another-host")
    restored, told = start_again(tmp_path)
    assert (restored.generation, restored.fault) == (2, "data")
    assert told["seen_by"].startswith("generation 3 damaged")
    assert told["reused"] == "every byte that verifies"


def test_a_run_that_was_closed_has_had_no_fault_and_neither_has_a_second_resume(tmp_path: Path) -> None:
    with Training(tmp_path) as training:
        training.save(1)
    restored, told = start_again(tmp_path)
    assert (restored.fault, told["kind"]) == ("none", "none")
    train_and_be_killed(tmp_path / "killed")
    with Training(tmp_path / "killed") as training:
        first, again = training.engine.resume(), training.engine.resume()
    assert first is not None
    assert again is not None
    assert (first.fault, again.fault) == ("soft", "none")


def test_a_process_that_was_taken_over_is_named(tmp_path: Path) -> None:
    with Training(tmp_path) as stuck:
        stuck.save(1)
        with Training(tmp_path, take_over=True) as training:
            restored = training.engine.resume()
    assert restored is not None
    assert restored.fault == "soft"
