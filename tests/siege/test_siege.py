"""The siege in its short form; `make soak` is the long one, with another seed each time. A5, B11, B16

Takes about half a minute: 100 strikes need as many processes, and one that writes beside a trainer has its own.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milepost import CheckpointEngine
from milepost.testing.power import scratch
from tests.siege.campaign import Campaign, Kind, besiege
from tests.siege.judge import End, Note, Root, check_end, check_steps, read_notes, wait_for_the_end_of
from tests.siege.nursery import Hang, Nursery
from tests.siege.supervised import besiege_runs
from tests.siege.training import Training, alone

SEED = 20261130


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a directory in memory where there is one: a hundred runs are written, and nothing here depends on the medium."""
    with scratch() as made:
        yield made


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_that_is_struck_a_hundred_times_in_every_phase_loses_nothing_and_never_hangs(place: Path) -> None:
    toll = besiege(place, 100, SEED, tell=print)
    print(toll)
    assert toll.lost == []
    assert toll.missed() == []
    assert toll.strikes >= 100


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_milepost_run_looks_after_ends_as_if_nobody_had_struck_it_and_leaves_no_process(place: Path) -> None:
    toll = besiege_runs(place, 12, SEED, tell=print)
    print(toll)
    assert toll.lost == []


@pytest.mark.parametrize("writer", ["thread", "process"])
def test_a_rollout_that_outlasts_the_grace_period_ends_the_process_at_its_last_safe_point(place: Path, writer: str) -> None:
    stuck = Kind({"writer": writer, "grace": 1e-9, "leaves": "2s", "every": 2})
    with Nursery(place) as nursery:
        campaign = Campaign(place / "0", stuck, (nursery, nursery), dict(enumerate(alone(20))))
        for step, number in ((5, signal.SIGTERM), (9, signal.SIGUSR1)):
            nursery.start(campaign.order(str(step), 20, stuck=step, signal=int(number)))
            assert os.waitstatus_to_exitcode(nursery.changed()) == 75
            wait_for_the_end_of(str(place / "0")) if writer == "process" else None
            assert campaign.roots["run"].head()[1] == step
        campaign.finish()


# The judge itself: one that passes everything would make all of the above true.


def end_of(code: int, *notes: tuple[Any, ...], alone: bool = True) -> End:
    return End("1", code, [Note("1", word, tuple(rest)) for word, *rest in notes], alone)


def struck(number: int, phase: str) -> tuple[Any, ...]:
    return ("struck", number, phase, 1, phase, "-")


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(end_of(0, struck(signal.SIGTERM, "training"), ("safe", "run", 2)), id="trained on"),
        pytest.param(end_of(-15, struck(signal.SIGTERM, "training")), id="died of a signal that it listens to"),
        pytest.param(end_of(75, struck(signal.SIGTERM, "training"), ("safe", "run", 2)), id="left without Stopped"),
        pytest.param(end_of(130, struck(signal.SIGTERM, "claim"), ("left", 130, "SIGTERM")), id="left with another code"),
        pytest.param(end_of(75, struck(signal.SIGKILL, "training"), ("left", 75, "")), id="survived a kill"),
        pytest.param(end_of(1), id="failed by itself"),
        pytest.param(end_of(11), id="was refused with nobody else there"),
    ],
)
def test_an_end_that_should_not_be_is_told(end: End) -> None:
    with pytest.raises(AssertionError):
        check_end(end)


@pytest.mark.parametrize(
    "end",
    [
        end_of(0),
        end_of(0, struck(signal.SIGTERM, "closing")),
        end_of(-15, struck(signal.SIGTERM, "claim")),
        end_of(75, struck(signal.SIGTERM, "training"), ("safe", "run", 2), ("left", 75, "SIGTERM")),
        end_of(130, struck(signal.SIGINT, "waiting"), ("left", 130, "SIGINT")),
        end_of(-9, struck(signal.SIGKILL, "publishing")),
        end_of(-9, struck(signal.SIGTERM, "training"), struck(signal.SIGKILL, "stopping")),
        end_of(11, struck(signal.SIGSTOP, "training"), alone=False),
    ],
)
def test_an_end_that_may_be_passes(end: End) -> None:
    check_end(end)


def test_a_trainer_that_hangs_is_told_with_its_stacks_and_killed(place: Path) -> None:
    with Nursery(place) as nursery:
        campaign = Campaign(place / "0", Kind({"writer": "thread"}), (nursery, nursery), {})
        nursery.start(campaign.order("1", 9, stuck=2, signal=int(signal.SIGCONT)))
        while not any(note.word == "stuck" for note in read_notes(place / "0/notes")):
            threading.Event().wait(0.01)
        with pytest.raises(Hang, match="in be_stuck"):
            nursery.changed(within_s=0.1)
        nursery.start(campaign.order("2", 9))
        assert nursery.changed() == 0


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """Return a run root with two generations in it, which was looked at."""
    with CheckpointEngine(tmp_path / "run", state={"policy": {"w": np.ones(99)}}, writer="inline") as engine:
        engine.resume()
        engine.save(1)
        engine.save(2)
    found = Root(tmp_path / "run")
    found.look()
    found.check_acknowledged([(1, 1), (2, 2)])
    return found


def test_a_generation_that_was_acknowledged_and_is_gone_is_told(root: Root) -> None:
    (root.path / "generations/000002.json").unlink()
    with pytest.raises(AssertionError, match="generation 2 was acknowledged, and 1 is the newest"):
        root.check_acknowledged([(2, 2)])


def test_a_flipped_bit_is_told(root: Root) -> None:
    for path in root.path.glob("blobs/*"):
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(AssertionError, match="is damaged"):
        root.look()


def test_two_writers_at_once_are_told(root: Root) -> None:
    root.seen[1] = (5, 1)
    with pytest.raises(AssertionError, match="generation 1 was"):
        root.look()
    root.seen[3] = (0, 3)
    root.seen[1] = (1, 1)
    with pytest.raises(AssertionError, match="two writers wrote at once"):
        root.look()


def test_a_clean_stop_that_left_its_safe_point_behind_is_told(root: Root) -> None:
    root.check_where_it_left(end_of(75, ("safe", "run", 2)), "run")
    with pytest.raises(AssertionError, match="safe point 3 is not among"):
        root.check_where_it_left(end_of(75, ("safe", "run", 3)), "run")


def test_other_bits_and_lost_steps_are_told() -> None:
    hashes = {1: "one", 2: "two"}
    check_steps(
        [Note("1", "resumed", (1, "one")), Note("1", "acknowledged", ("run", 1, 2)), Note("2", "end", (2, "two"))], hashes
    )
    with pytest.raises(AssertionError, match="with other bits"):
        check_steps([Note("1", "resumed", (1, "two"))], hashes)
    with pytest.raises(AssertionError, match="resumed at 1; 2 was acknowledged"):
        check_steps([Note("1", "acknowledged", ("run", 1, 2)), Note("2", "resumed", (1, "one"))], hashes)


def test_what_is_trained_repeats_itself_and_no_two_steps_are_alike() -> None:
    assert alone(30) == alone(30)
    assert len(set(alone(60))) == 61
    training = Training()
    training.weights[3] = 1.0
    assert training.bits() != alone(0)[0]
