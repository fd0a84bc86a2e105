"""An engine from claim to close: triggers, metrics, elapsed time, settings that change, provenance, events. B4, B5, B19"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from milepost.clock import FakeClock
from milepost.encode.digest import unseal
from milepost.engine import oneshot
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.engine.provenance import without_secrets
from milepost.errors import UsageError
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.triggers import every
from milepost.publish import pins
from milepost.publish.hints import read_latest, read_progress
from milepost.publish.manifest import decode_manifest
from milepost.publish.view import read
from milepost.store.local import LocalStore
from milepost.store.memory import MemoryStore
from milepost.testing.faults import FaultStore
from tests.engine.training import Training, local


def live(root: Path) -> list[int]:
    return sorted(read(local(root)).live)


# --- when ----------------------------------------------------------------------------------------------------------


def test_steps_that_cross_a_mark_make_a_save_due_once(tmp_path: Path) -> None:
    with Training(tmp_path, when=every(steps=10)) as training:
        due = [step for step in range(1, 40, 4) if training.engine.save_if_due(step)]
    assert due == [13, 21, 33]


def test_time_counts_from_the_last_save_and_from_the_resume(tmp_path: Path) -> None:
    clock = FakeClock()
    with Training(tmp_path, when=every(minutes=10), clock=clock) as training:
        training.engine.resume()
        clock.advance(seconds=599)
        assert not training.engine.save_if_due(1)
        clock.advance(seconds=1)
        assert training.engine.save_if_due(2)
        assert not training.engine.save_if_due(3)
    clock.advance(seconds=5000)
    with Training(tmp_path, when=every(minutes=10), clock=clock) as training:
        training.engine.resume()
        assert not training.engine.save_if_due(4)
        clock.advance(seconds=600)
        assert training.engine.save_if_due(5)


def test_any_of_several_triggers_will_do_and_the_manifest_says_which(tmp_path: Path) -> None:
    when = every(steps=100) | every(episodes=3) | every(epochs=2)
    with Training(tmp_path, when=when, keep=Keep(last=9)) as training:
        engine = training.engine
        assert not engine.save_if_due(10, episodes=2, epochs=1)
        assert engine.save_if_due(20, episodes=3, epochs=1)
        assert engine.save_if_due(30, episodes=3, epochs=2)
        assert engine.save_if_due(101, episodes=4, epochs=3)
        engine.save(102)
    reasons = [summary.reason for summary in read(local(tmp_path)).live.values()]
    assert reasons == ["every 3 episodes", "every 2 epochs", "every 100 steps", "manual"]


def test_triggers_go_on_from_the_counters_that_were_saved(tmp_path: Path) -> None:
    when = every(steps=100) | every(episodes=10)
    with Training(tmp_path, when=when) as training:
        training.save(95, episodes=19)
    with Training(tmp_path, when=when) as training:
        training.engine.resume()
        assert not training.engine.save_if_due(99, episodes=19)
        assert training.engine.save_if_due(99, episodes=20)
        assert training.engine.save_if_due(100, episodes=20)


def test_without_a_trigger_only_asking_saves(tmp_path: Path) -> None:
    with Training(tmp_path) as training:
        assert not training.engine.save_if_due(10**9)
        assert training.save(1).number == 1


# --- metrics and best ----------------------------------------------------------------------------------------------

BEST = Keep(last=1, best=1, by="return")


def test_a_new_best_makes_the_next_safe_point_due_and_only_a_new_best(tmp_path: Path) -> None:
    with Training(tmp_path, keep=BEST) as training:
        engine = training.engine
        scores = [3.0, 2.0, float("nan"), 3.0, 4.0, -1.0]
        due = []
        for step, score in enumerate(scores, 1):
            engine.report(step, {"return": score})
            due.append(engine.save_if_due(step))
            assert not engine.save_if_due(step)
    assert due == [True, False, False, False, True, False]


def test_a_best_kept_by_its_score_outlives_newer_ones_and_restarts(tmp_path: Path) -> None:
    for scores in ((1.0, 7.0, 3.0), (7.0, 2.0), (5.0,)):
        with Training(tmp_path, keep=BEST) as training:
            engine = training.engine
            engine.resume()
            for score in scores:
                engine.report(1, {"return": score})
                engine.save(1)
    generations = read(local(tmp_path)).live
    best = [number for number, summary in generations.items() if summary.metrics["return"].number == 7.0]
    assert best == [4], "of two equal ones the newer"
    assert max(generations) == 6


def test_after_a_restart_a_score_below_the_best_is_no_new_best(tmp_path: Path) -> None:
    with Training(tmp_path, keep=BEST) as training:
        training.engine.report(1, {"return": 7.0})
        training.save(1)
    with Training(tmp_path, keep=BEST) as training:
        training.engine.resume()
        training.engine.report(2, {"return": 6.0})
        assert not training.engine.save_if_due(2)
        training.engine.report(3, {"return": 7.5})
        assert training.engine.save_if_due(3)


def test_a_lower_score_is_better_where_the_mode_says_so(tmp_path: Path) -> None:
    keep = Keep(last=1, best=1, by="loss", mode="min")
    with Training(tmp_path, keep=keep) as training:
        due = []
        for score in (3.0, 4.0, 2.0):
            training.engine.report(1, {"loss": score})
            due.append(training.engine.save_if_due(1))
    assert due == [True, False, True]


def test_a_metric_belongs_to_one_generation_and_keeps_the_step_it_was_measured_at(tmp_path: Path) -> None:
    with Training(tmp_path, keep=Keep(last=5)) as training:
        training.engine.report(90, {"return": 1.5, "length": 200})
        training.engine.report(95, {"length": 210})
        training.save(100)
        training.save(200)
        training.engine.report(201, {"return": np.float32(2.5), "odd": float("inf")})
        training.save(300)
    metrics = [
        {name: (metric.number, metric.step) for name, metric in summary.metrics.items()}
        for summary in read(local(tmp_path)).live.values()
    ]
    assert metrics == [
        {"return": (1.5, 90), "length": (210.0, 95)},
        {},
        {"return": (2.5, 201), "odd": (float("inf"), 201)},
    ]


def test_a_best_that_is_waiting_for_its_safe_point_is_not_replaced_by_a_worse_score(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Training(store, keep=BEST, writer="thread") as training:
        gate = store.pause("commit_blob")
        training.engine.save(1)
        gate.wait_until_reached()
        training.engine.report(2, {"return": 9.0})
        assert not training.engine.save_if_due(2)
        training.engine.report(3, {"return": 4.0})
        gate.release()
        training.engine.wait()
        assert training.engine.save_if_due(3)
        saved = training.engine.wait()
    assert saved is not None
    assert (saved.metrics["return"].number, saved.metrics["return"].step) == (9.0, 2)
    assert saved.reason == "new best return"


def test_what_was_measured_on_a_line_that_is_left_goes_with_it(tmp_path: Path) -> None:
    with Training(tmp_path, keep=Keep(last=5, best=1, by="return")) as training:
        training.save(1)
        training.save(2)
        training.engine.report(3, {"return": 100.0})
        training.engine.resume(1)
        assert not training.engine.save_if_due(2)
        assert training.save(2).metrics == {}


def test_what_was_measured_before_a_resume_that_finds_nothing_is_kept(tmp_path: Path) -> None:
    with Training(tmp_path) as training:
        training.engine.report(0, {"return": 1.0})
        training.engine.resume()
        assert training.save(1).metrics["return"].number == 1.0


# --- what goes on over restarts ------------------------------------------------------------------------------------


def test_training_time_adds_up_over_restarts_and_the_pauses_between_them_do_not_count(tmp_path: Path) -> None:
    clock = FakeClock()
    for start, seconds in enumerate((100.0, 50.0, 25.0)):
        with Training(tmp_path, clock=clock) as training:
            restored = training.engine.resume()
            assert (restored.elapsed_s if restored else 0.0) == sum((100.0, 50.0, 25.0)[:start])
            clock.advance(seconds=seconds)
            training.save(start)
            clock.advance(seconds=7.0)  # trained, and lost in a crash
        clock.advance(seconds=1e6)
    with Training(tmp_path, clock=clock) as training:
        assert training.engine.resume().elapsed_s == 175.0  # type: ignore[union-attr]


def test_time_of_a_line_that_is_left_does_not_count(tmp_path: Path) -> None:
    clock = FakeClock()
    with Training(tmp_path, clock=clock) as training:
        clock.advance(seconds=10)
        training.save(1)
        clock.advance(seconds=1000)
        training.save(2)
        training.engine.resume(1)
        clock.advance(seconds=5)
        assert float.fromhex(training.save(3).elapsed_s) == 15.0


@pytest.mark.parametrize(("last", "kept"), [(1, [6, 7]), (3, [5, 6, 7]), (50, [2, 3, 4, 5, 6, 7])])
def test_a_restart_with_another_retention_uses_that(tmp_path: Path, last: int, kept: list[int]) -> None:
    with Training(tmp_path, keep=Keep(last=5)) as training:
        for step in range(1, 7):
            training.save(step)
    assert live(tmp_path) == [2, 3, 4, 5, 6]
    with Training(tmp_path, keep=Keep(last=last)) as training:
        training.engine.resume()
        training.save(7)
    assert live(tmp_path) == kept, "6 was resumed from"


def test_the_best_by_another_metric_is_chosen_from_what_is_on_disk(tmp_path: Path) -> None:
    with Training(tmp_path, keep=Keep(last=9)) as training:
        for step, (a, b) in enumerate([(1.0, 5.0), (9.0, 1.0), (2.0, 2.0)], 1):
            training.engine.report(step, {"a": a, "b": b})
            training.save(step)
    with Training(tmp_path, keep=Keep(last=1, best=1, by="b")) as training:
        training.engine.resume()
        training.save(4)
        training.save(5)
    assert live(tmp_path) == [1, 3, 5]


def test_a_pinned_generation_stays_until_it_is_unpinned(tmp_path: Path) -> None:
    with Training(tmp_path, keep=Keep(last=1)) as training:
        training.save(1)
        pins.pin(training.store, 1)
        training.save(2)
        training.save(3)
        assert live(tmp_path) == [1, 3]
        pins.unpin(training.store, 1)
        training.save(4)
        assert live(tmp_path) == [4]


def test_five_generations_of_nan_do_not_push_out_the_last_good_one(tmp_path: Path) -> None:
    with Training(tmp_path, keep=Keep(last=2)) as training:
        training.save(1)
        for step in range(2, 7):
            training.train_to(step)
            training.state["policy"]["w"][:] = np.nan
            training.engine.save(step)
    assert live(tmp_path) == [1, 5, 6]
    with Training(tmp_path) as training:
        assert training.engine.resume().step == 1  # type: ignore[union-attr]


# --- what is recorded ----------------------------------------------------------------------------------------------


def test_a_manifest_says_what_is_exact_who_made_it_and_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEPOST_ATTEMPT", "3")
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "--token=abc", "--lr", "0.1"])
    exactness: Any = {"replay": ("approximate", "only the last half")}
    with Training(tmp_path, exactness=exactness, fingerprint={"env/id": "X-v1"}) as training:
        training.save(1)
    manifest = decode_manifest((tmp_path / "generations/000001.json").read_bytes(), "")
    found = {component.name: (component.exactness, component.reason) for component in manifest.components}
    assert found == {
        "policy": ("exact", ""),
        "optimizer": ("exact", ""),
        "replay": ("approximate", "only the last half"),
        "counters": ("exact", ""),
    }
    made_by = manifest.provenance
    assert (made_by.pid, made_by.attempt, made_by.host) == (os.getpid(), 3, os.uname().nodename)
    assert made_by.command == "python train.py '--token=***' --lr 0.1"
    assert made_by.versions["numpy"] == np.__version__
    assert manifest.fingerprint["env/id"] == "X-v1"
    assert len(made_by.incarnation) == 16


@pytest.mark.parametrize("text", ["0", "x", "-1", ""])
def test_an_attempt_that_is_no_count_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("MILEPOST_ATTEMPT", text)
    with pytest.raises(UsageError) as caught:
        Training(tmp_path).engine.claim()
    assert caught.value.kind == "bad-environment"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--password", "hunter2", "--steps", "5"], "--password '***' --steps 5"),
        (["--wandb-api-key=k", "AWS_SECRET_ACCESS_KEY=k"], "'--wandb-api-key=***' 'AWS_SECRET_ACCESS_KEY=***'"),
        (["https://me:pw@host/x", "s3://bucket/run"], "'https://***@host/x' s3://bucket/run"),
        (["--no-auth", "--lr", "1"], "--no-auth --lr 1"),
    ],
)
def test_what_looks_like_a_secret_is_not_recorded(arguments: list[str], shown: str) -> None:
    assert without_secrets(arguments) == shown


def test_events_are_sealed_lines_in_one_file_a_term(tmp_path: Path) -> None:
    for steps in ((1, 2, 3), (4,)):
        with Training(tmp_path) as training:
            training.engine.resume()
            for step in steps:
                training.save(step)
    files = sorted((tmp_path / "events").iterdir())
    assert [path.name for path in files] == ["0001.jsonl", "0002.jsonl"]
    told = []
    for path in files:
        for line in path.read_bytes().splitlines(keepends=True):
            event = json.loads(unseal(line, path.name))
            assert (event["run_id"], event["attempt"]) == (read(local(tmp_path)).run_id, 1)
            told.append((event["term"], event["event"], event.get("generation"), event.get("generations")))
    assert told == [
        (1, "claimed", None, None),
        (1, "started-anew", None, None),
        (1, "published", 1, None),
        (1, "published", 2, None),
        (1, "published", 3, None),
        (1, "retired", None, [1]),
        (2, "claimed", None, None),
        (2, "resumed", 3, None),
        (2, "published", 4, None),
        (2, "retired", None, [2]),
    ]


def test_a_log_that_cannot_be_written_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = FaultStore(local(tmp_path))
    store.fail("append", times=None)
    with Training(store) as training:
        assert training.save(1).number == 1
    assert "the event log could not be written" in caplog.text
    assert oneshot.verify(tmp_path).ok


def test_latest_and_progress_say_where_the_run_is(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Training(store, writer="thread") as training:
        training.save(1)
        gate = store.pause("open_blob")
        training.train_to(2)
        training.engine.save(2)
        gate.wait_until_reached()
        progress, latest = read_progress(local(tmp_path)), read_latest(local(tmp_path))
        assert progress is not None
        assert latest is not None
        assert (progress.step, progress.generation, latest.generation, latest.step) == (2, 2, 1, 1)
        gate.release()
        training.engine.wait()
        assert read_latest(local(tmp_path)).generation == 2  # type: ignore[union-attr]


def test_a_pointer_that_cannot_be_written_does_not_undo_the_save(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Training(store) as training:
        store.fail("replace", "LATEST", times=None)
        assert training.save(1).number == 1
    assert b"latest-not-written" in (tmp_path / "events/0001.jsonl").read_bytes()


def test_versions_rise_even_if_the_clock_goes_back(tmp_path: Path) -> None:
    clock = FakeClock()
    with Training(tmp_path, clock=clock) as training:
        first = training.save(1)
        clock.epoch_ns -= 10**15
        second = training.save(1)
    with Training(tmp_path, clock=clock) as training:
        training.engine.resume()
        third = training.save(1)
    stamps = [summary.version.commit_timestamp for summary in (first, second, third)]
    assert stamps == [stamps[0], stamps[0] + 1, stamps[0] + 2]


# --- claim and close -----------------------------------------------------------------------------------------------


def test_an_engine_claims_at_its_first_verb_and_only_once(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert training.engine.wait() is None
    training.engine.resume()
    training.engine.save(1)
    training.engine.claim()
    training.engine.close()
    assert sorted(path.name for path in (tmp_path / "run/terms").iterdir()) == ["0001.from.json", "0001.json"]


def test_closing_twice_does_nothing_and_closing_unused_makes_nothing(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    training.engine.close()
    training.engine.close()
    assert not (tmp_path / "run").exists()


def test_closing_waits_for_the_save_in_flight_and_gives_up_the_root(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    training = Training(store, writer="thread")
    gate = store.pause("commit_blob")
    training.engine.save(1)
    gate.wait_until_reached()
    gate.release()
    training.engine.close()
    with Training(tmp_path) as other:
        assert other.engine.resume().generation == 1  # type: ignore[union-attr]


def test_a_failed_claim_holds_nothing_and_can_be_tried_again(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    store.fail("create", "terms/*")
    training = Training(store)
    with pytest.raises(OSError, match="network"):
        training.engine.claim()
    with Training(tmp_path) as other:
        other.save(1)
    training.engine.resume()
    assert training.save(2).number == 2
    training.engine.close()


def test_a_root_may_be_a_path_a_text_a_url_or_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for root in (tmp_path / "a", str(tmp_path / "a"), f"file://{tmp_path}/a", "a", local(tmp_path / "a")):
        with CheckpointEngine(root, state={"counters": {"n": 1}}, writer="inline") as engine:
            engine.resume()
            engine.save(1)
    assert live(tmp_path / "a")[-1] == 5
    with CheckpointEngine("memory://here", state={"counters": {"n": 1}}, writer="inline") as engine:
        engine.save(1)
    assert oneshot.load("memory://here") == {"counters": {"n": 1}}
    assert isinstance(engine._store, MemoryStore)


def test_a_script_that_changes_its_directory_keeps_its_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with CheckpointEngine("run", state={"counters": {"n": 1}}, writer="inline") as engine:
        engine.save(1)
        monkeypatch.chdir(tmp_path / "elsewhere")
        engine.save(2)
    assert live(tmp_path / "run") == [1, 2]
    assert isinstance(engine._store, LocalStore)


def test_a_manifest_is_plain_json_that_any_tool_reads(tmp_path: Path) -> None:
    with Training(tmp_path) as training:
        training.save(1)
    record = msgspec.json.decode((tmp_path / "generations/000001.json").read_bytes())
    assert (record["number"], record["step"], record["format_version"]) == (1, 1, 2)
    assert record["digest"].startswith("sha256:")
