"""`milepost drill`: each verb strikes real processes; what cannot be said is not called recovered. B11, C17"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import milepost
from milepost.clock import SystemClock
from milepost.publish import layout
from milepost.publish.manifest import decode_manifest
from milepost.publish.view import read
from milepost.store.local import LocalStore
from milepost.supervise.drill_judge import Bounds, Drilled
from milepost.supervise.drill_verbs import _leaf_of
from tests.supervise.drilled import drilled


def only(verdict: Any) -> Drilled:
    (run,) = verdict.runs
    found: Drilled = run
    return found


@pytest.fixture(autouse=True)
def _not_where_the_tests_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_killed_run_is_measured_from_its_last_safe_point_to_the_first_new_one(tmp_path: Path) -> None:
    verdict = drilled("exact", tmp_path, stops={1: 15})
    run = only(verdict)
    assert (verdict.outcome, run.end, run.lost, run.problems) == ("recovered", "identical", (), ())
    assert (run.from_step, run.measured_by) == (10, "beats")
    assert 10 <= run.step <= 15
    assert run.rpo_steps == run.step - 10
    assert run.rpo_s is not None
    assert run.rto_s is not None
    assert run.rto_s >= run.resumed_s > 0  # type: ignore[operator]
    order = [mark.kind for mark in run.marks if mark.kind in ("struck", "resumed", "trained", "ended")]
    assert order == ["struck", "resumed", "trained", "ended"]


def test_a_run_that_forgets_a_generator_has_recovered_and_ends_otherwise(tmp_path: Path) -> None:
    verdict = drilled("forgets", tmp_path)
    assert (verdict.outcome, verdict.kind, only(verdict).end) == ("missed its bounds", "end-differs", "differs")
    assert not only(verdict).recovered


def test_a_command_that_begins_anew_has_lost_what_was_acknowledged(tmp_path: Path) -> None:
    verdict = drilled("begins anew", tmp_path)
    run = only(verdict)
    assert verdict.outcome == "missed its bounds"
    assert any("it began anew, although runs/mine holds" in problem for problem in run.problems)
    assert not run.recovered


def test_a_command_that_does_not_start_again_has_not_recovered(tmp_path: Path) -> None:
    verdict = drilled("refuses a second start", tmp_path)
    assert (verdict.outcome, only(verdict).end) == ("missed its bounds", "not reached")
    assert only(verdict).problems == (
        "started again it ended with exit code 1",
        "it began anew, although runs/mine holds what it could have gone on from",
    )
    assert verdict.complaint == ("locked by another run",)


def test_a_command_that_does_not_repeat_itself_is_told_apart_from_one_that_differs(tmp_path: Path) -> None:
    verdict = drilled("not seeded", tmp_path)
    assert (verdict.outcome, verdict.kind) == ("not deterministic", "before-any-strike")


@pytest.mark.parametrize(
    ("name", "outcome", "kind"),
    [
        ("saves nothing", "nothing proven", "never-saved"),
        ("clears the environment", "nothing proven", "saved-elsewhere"),
        ("crashes", "failed", "failed-by-itself"),
        ("ends at once when it is not alone", "nothing proven", "ended-before"),
    ],
)
def test_what_cannot_be_drilled_is_said_and_never_called_recovered(tmp_path: Path, name: str, outcome: str, kind: str) -> None:
    verdict = drilled(name, tmp_path, stops={})
    assert (verdict.outcome, verdict.kind) == (outcome, kind)
    assert not any(run.recovered for run in verdict.runs)


def test_a_second_start_beside_a_stopped_one_is_refused_and_the_first_trains_on(tmp_path: Path) -> None:
    run = only(drilled("exact", tmp_path, "stop"))
    assert run.notes == ("a second start was refused meanwhile",)
    assert (run.rpo_steps, run.end, run.problems) == (0, "identical", ())


def test_a_second_start_that_takes_over_fences_the_one_that_was_stopped(tmp_path: Path) -> None:
    run = only(drilled("takes over", tmp_path, "stop"))
    assert run.notes == ("the second start took over from the one that was stopped",)
    assert (run.end, run.problems, run.lost) == ("identical", (), ())
    assert run.from_step is not None
    assert run.rpo_steps == run.step - run.from_step


def test_a_second_start_that_waits_is_ended_and_has_written_nothing(tmp_path: Path) -> None:
    run = only(drilled("waits for the other", tmp_path, "stop"))
    assert run.notes == ("the second start waited; it was ended after 3 s",)
    assert (run.end, run.problems) == ("identical", ())


def test_a_second_start_that_takes_its_time_to_begin_is_tried_all_the_same(tmp_path: Path) -> None:
    """It takes longer to begin than one that has come to its root is let wait: 4 and 3 s."""
    run = only(drilled("takes its time to begin, and waits for the other", tmp_path, "stop"))
    assert run.notes == ("the second start waited; it was ended after 3 s",)
    at_s = {mark.kind: mark.at_s for mark in run.marks}
    assert at_s["ended"] - at_s["struck"] > 4.0 + 3.0


def test_a_flipped_bit_in_a_blob_a_manifest_and_latest(tmp_path: Path) -> None:
    """Three runs of a real process, and one alone: seven starts."""
    verdict = drilled("exact", tmp_path, "bitflip", runs=3)
    assert verdict.outcome == "recovered"
    blob, manifest, latest = verdict.runs
    assert {run.lost for run in verdict.runs} == {()}
    number = re.search(r"flipped in blobs/(\d+)-.*, the newest", blob.what)
    assert number is not None
    assert blob.generation == int(number[1]) - 1
    number = re.search(r"flipped in generations/(\d+).json, the newest", manifest.what)
    assert number is not None
    assert manifest.generation == int(number[1]) - 1
    number = re.search(r"flipped in LATEST of g(\d+)", latest.what)
    assert number is not None
    assert latest.generation == int(number[1])
    assert {run.end for run in verdict.runs} == {"identical"}


def test_with_one_generation_there_is_nothing_to_fall_back_to(tmp_path: Path) -> None:
    verdict = drilled("keeps one", tmp_path, "bitflip")
    assert (verdict.outcome, verdict.kind) == ("nothing proven", "nothing-to-fall-back-to")


def test_a_run_that_would_train_for_days_is_drilled_for_a_part_of_it(tmp_path: Path) -> None:
    verdict = drilled("never ends, and saves", tmp_path, stops={1: 15}, for_s=0.0)
    assert (verdict.outcome, only(verdict).end) == ("recovered", "identical")


def test_a_bound_is_missed_by_the_worst_run_and_by_one_that_could_not_be_measured() -> None:
    def run(rto_s: float | None, rpo_steps: int) -> Drilled:
        return Drilled(1, struck=True, kind="recovered", rto_s=rto_s, rpo_steps=rpo_steps, rpo_s=1.0, end="identical")

    fast, slow, unknown = run(1.0, 5), run(9.0, 50), run(None, 0)
    assert Bounds(rto_s=9.0, rpo_steps=50, rpo_s=1.0).missed([fast, slow]) == []
    assert Bounds(rto_s=8.9).missed([fast, slow]) == ["RTO"]
    assert Bounds(rpo_steps=49).missed([fast, slow]) == ["RPO in steps"]
    assert Bounds(rto_s=1000.0).missed([fast, unknown]) == ["RTO"]
    assert Bounds().missed([unknown]) == []


def test_who_ends_with_75_and_has_not_saved_has_lost_steps_and_is_not_recovered(tmp_path: Path) -> None:
    verdict = drilled("ends with 75 and has not saved", tmp_path, "term")
    run = only(verdict)
    assert (verdict.outcome, run.rpo_steps) == ("missed its bounds", 5)
    assert run.problems == ("it ended without having saved its last 5 steps",)


def test_who_ends_early_with_0_when_it_is_started_again_is_not_recovered_however_long_it_was_to_train(tmp_path: Path) -> None:
    verdict = drilled("ends at once when it is started again, and would never", tmp_path, stops={1: 15}, for_s=0.0)
    run = only(verdict)
    assert (verdict.outcome, run.end) == ("missed its bounds", "not reached")
    assert run.problems[0].startswith("started again it ended at step 10, before the ")


def test_what_was_the_same_before_a_strike_proves_nothing_of_the_end(tmp_path: Path) -> None:
    verdict = drilled("saves at other steps when it is started again", tmp_path, stops={1: 15}, for_s=0.0)
    assert (verdict.outcome, verdict.kind, only(verdict).end) == ("nothing proven", "never-compared", "not compared")


@pytest.mark.parametrize("name", ["in a session of its own", "under milepost run"])
def test_a_kill_reaches_a_trainer_in_another_session_and_its_safe_points_are_seen(tmp_path: Path, name: str) -> None:
    run = only(drilled(name, tmp_path, stops={1: 15}))
    assert (run.rpo_steps, run.end, run.problems, run.measured_by) == (run.step - 10, "identical", (), "beats")


def test_a_bit_is_never_flipped_in_what_each_older_generation_needs_too(tmp_path: Path) -> None:
    weights, counters = np.zeros(4), {"step": 0}
    with milepost.CheckpointEngine(str(tmp_path / "run"), state={"policy": {"weights": weights}, "counters": counters}) as engine:
        for step in (1, 2, 2):
            weights[:] = counters["step"] = step
            engine.save(step)
        engine.wait()
    view = read(LocalStore(str(tmp_path / "run"), SystemClock()))
    *older, newest = (
        decode_manifest((tmp_path / "run" / layout.manifest(number)).read_bytes(), "") for number in sorted(view.live)
    )
    names = [{blob.name for blob in each.blobs} for each in older]
    drawn = {_leaf_of(newest, names, lambda draw=draw: draw / 100) for draw in range(100)}  # type: ignore[misc]
    assert not names[0].intersection(found[0] for found in drawn if found)
    assert _leaf_of(newest, [{blob.name for blob in newest.blobs}], lambda: 0.0) is None
