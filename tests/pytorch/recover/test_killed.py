"""Two ranks under `milepost run` and torchrun: whoever is killed, and when, it ends as if nothing had been. A5, A9, A10, B11"""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path

import pytest

import milepost
from milepost.lifecycle.stopping import EXIT_CODE
from milepost.publish.view import read
from tests.at_length import AT_LENGTH
from tests.engine.training import local
from tests.pytorch.recover.launched import AGENT, PATIENCE_S, ROOT, TORCHRUN, ends_of, launched, ran, resumed
from tests.pytorch.recover.trained import RETRIES

KILLS = [
    {"rank": 1, "point": "step", "nth": 4},  # between two saves
    {"rank": 0, "point": "load", "when": "after"},
    *([{"rank": 1, "point": "stage"}, {"rank": 0, "point": "blob"}] if AT_LENGTH else []),  # copies; live tensors
    {"rank": 1, "point": "blob", "nth": 2, "when": "after"},  # of copies, beside training: durable, and nobody has published it
    *([{"rank": 0, "point": "publish"}] if AT_LENGTH else []),
    {"rank": 0, "point": "retire"},  # published, and the one before is still there
    {"rank": 0, "point": "close"},
]
"""What befalls each attempt. Each imports torch: `test_killed_ranks.py` has more phases, for less."""

FIRST_TORCHRUN = ("sh", "-c", f"test $MILEPOST_ATTEMPT != 1 || exec {shlex.join(TORCHRUN)}; exec {shlex.join(AGENT)}")
"""torchrun itself in the first attempt, whose end its ranks outlive, and its agent then."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return what each rank is at the end where nothing befalls any."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run = ran(folder, [])
    assert run.process.returncode == 0, run.said()
    assert f"it wants {RETRIES} restarts after failures of its own" in run.said()
    return ends_of(folder)


def is_tidy(folder: Path) -> None:
    """Check that what is left is sound, and no more than that."""
    root = folder / ROOT
    assert milepost.verify(root).ok
    live = read(local(root)).live
    assert len(live) <= 2, "the newest, and the one that the last start went on from"
    assert {blob.name for each in live.values() for blob in each.blobs} == {
        f"blobs/{path.name}" for path in (root / "blobs").iterdir()
    }


# Seconds: the agent and its ranks are started six times, and torch is imported each time.
def test_a_rank_that_is_killed_in_any_phase_costs_one_start_and_the_end_is_the_same(
    tmp_path: Path, undisturbed: list[str]
) -> None:
    run = ran(tmp_path, KILLS)
    assert run.process.returncode == 0, run.said()
    struck = {int(path.name.split("-")[1]) for path in tmp_path.glob("struck-*")}
    assert struck == set(range(1, len(KILLS) + 1)), run.said()
    for attempt, generations in resumed(tmp_path).items():
        assert len(set(generations)) == 1, f"attempt {attempt}: ranks went on from {generations}"
    assert ends_of(tmp_path) == undisturbed, run.said()
    is_tidy(tmp_path)
    ended = [each for each in run.events() if each["event"] == "ended"]
    # A SIGKILL to a rank is one, whatever the other rank, which has lost it, and torchrun make of it.
    assert {each["kind"] for each in ended[:-1]} <= {"killed", "connection"}, run.said()


# Seconds again: torchrun itself is started twice, its ranks import torch as well, and the agent twice.
def test_a_run_that_is_stopped_loses_its_launcher_and_hangs_ends_the_same(tmp_path: Path, undisturbed: list[str]) -> None:
    os.mkfifo(tmp_path / "gate")
    with launched(tmp_path, [{"rank": 0, "point": "step", "nth": 4, "does": "waits"}], TORCHRUN) as run:
        run.gate("struck-1")
        run.send(signal.SIGTERM)
        run.hears("SIGTERM: training stops")
        (tmp_path / "gate").write_bytes(b"")
        assert run.ends() == EXIT_CODE, run.said()
    assert "it left after SIGTERM at step 4" in run.said()
    assert resumed(tmp_path) == {1: [0, 0]}
    # It goes on at step 5: rank 1's launcher is killed at step 6, and it stands still at step 8.
    orders = [
        {"rank": 1, "point": "step", "nth": 6, "does": "agent:SIGKILL"},
        {"rank": 1, "point": "step", "nth": 8, "does": "SIGSTOP"},
    ]
    (tmp_path / "struck-1").unlink()
    with launched(tmp_path, orders, TORCHRUN if AT_LENGTH else FIRST_TORCHRUN, "--hang-after", "5s", "--grace", "5s") as run:
        run.hears("trains on: told to save and leave", "SIGTERM: training stops")
        (tmp_path / "gate").write_bytes(b"")
        assert run.process.wait(PATIENCE_S) == 0, run.said()
    assert "somebody has stopped it" in run.said()
    kinds = [each["kind"] for each in run.events() if each["event"] == "ended"]
    assert kinds[1] == "killed", run.said()
    assert "hang" in kinds
    assert ends_of(tmp_path) == undisturbed, run.said()
    is_tidy(tmp_path)
