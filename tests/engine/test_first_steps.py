"""What is wrong is found before the first step, before the root is touched, and a fresh run is not due at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from milepost.clock import FakeClock
from milepost.encode.digest import unseal
from milepost.engine import oneshot, provenance
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.errors import CorruptError, MismatchError, SaveFailed, StoreError, UsageError
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.triggers import every
from milepost.publish import layout
from milepost.publish.view import read
from milepost.store.memory import MemoryStore
from milepost.testing.faults import FaultStore
from tests.engine.training import Training, local, snapshot, state_at


def test_a_time_trigger_counts_from_the_start_and_not_from_the_machine_s(tmp_path: Path) -> None:
    clock = FakeClock(now_ns=10**15)  # the machine has been up for days
    with CheckpointEngine(tmp_path, state=state_at(0), when=every(minutes=10), writer="inline", clock=clock) as engine:
        assert not engine.save_if_due(1)
        clock.advance(seconds=599)
        assert not engine.save_if_due(2)
        clock.advance(seconds=1)
        assert engine.save_if_due(3)


@pytest.mark.parametrize("beside", [{}, {"extra": {"deep": [{"here": object()}]}}])
def test_an_object_nobody_knows_is_found_before_the_first_step_and_leaves_no_trace(
    tmp_path: Path, beside: dict[str, Any]
) -> None:
    root = tmp_path / "run"
    state = state_at(0) | (beside or {"extra": {"it": object()}})
    with pytest.raises(UsageError, match="unknown type"), CheckpointEngine(root, state=state):
        pytest.fail("it was let in")
    assert not root.exists()


def test_what_cannot_be_saved_leaves_a_one_shot_save_s_root_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        oneshot.save(tmp_path / "new", {"policy": object()})
    assert not (tmp_path / "new").exists()
    oneshot.save(tmp_path / "run", [1])
    before = snapshot(local(tmp_path / "run"))
    with pytest.raises(UsageError):
        oneshot.save(tmp_path / "run", [object()])
    assert snapshot(local(tmp_path / "run")) == before


def test_surroundings_that_are_wrong_are_found_before_the_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEPOST_ATTEMPT", "first")
    with pytest.raises(UsageError, match="MILEPOST_ATTEMPT"):
        oneshot.save(tmp_path / "run", [1])
    assert [entry.name for entry in local(tmp_path / "run").list("terms/")] == []


def test_a_forgotten_resume_is_told_at_the_first_safe_point_though_nothing_is_due(tmp_path: Path) -> None:
    with Training(tmp_path) as training:
        training.save(1)
    with Training(tmp_path, when=every(steps=1000)) as late, pytest.raises(UsageError, match="not resumed"):
        late.engine.save_if_due(2)


def test_a_second_resume_verifies_anew_before_it_touches_anything(tmp_path: Path) -> None:
    with Training(tmp_path) as training:
        training.save(1)
        training.engine.resume()
        training.train_to(7)
        blob = tmp_path / read(local(tmp_path)).live[1].blobs[0].name
        data = bytearray(blob.read_bytes())
        data[-1] ^= 1
        blob.write_bytes(data)
        with pytest.raises(CorruptError, match="none that may be loaded"):
            training.engine.resume()
        assert training.is_at(7), "nothing was half loaded"


@pytest.mark.parametrize("kind", ["env", "version", "schedule", "anything"])
def test_a_run_with_an_accepted_difference_is_not_called_exact(tmp_path: Path, kind: str) -> None:
    with Training(tmp_path, fingerprint={f"{kind}/x": "A"}) as training:
        training.save(1)
    with Training(tmp_path, fingerprint={f"{kind}/x": "B"}, on_mismatch={kind: "warn"}) as later:
        restored = later.engine.resume()
    assert restored is not None
    assert not restored.exact
    assert f"{kind}/x: saved A, here B" in restored.inexact


def test_a_kind_of_difference_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="per kind") as caught:
        CheckpointEngine(tmp_path, state=state_at(0), on_mismatch={"shpae": "warn"})
    assert "shape" in caught.value.hint


@pytest.mark.parametrize("which", ["best", "never", True, 1.0])
def test_load_says_what_it_takes(tmp_path: Path, which: Any) -> None:
    oneshot.save(tmp_path, [1])
    with pytest.raises(UsageError, match="load takes"):
        oneshot.load(tmp_path, which=which)


def events(store: Any, name: str = "events/0001.jsonl") -> list[dict[str, Any]]:
    return [msgspec.json.decode(unseal(line, name)) for line in store.read(name).splitlines(keepends=True)]


def test_a_failed_save_leaves_an_event() -> None:
    store = FaultStore(MemoryStore())
    with Training(store) as training:
        store.fail("commit_blob", "*", error=StoreError("it broke", kind="io", retryable=False), times=None)
        training.train_to(4)
        with pytest.raises(SaveFailed):
            training.engine.save(4)
        failed = [event for event in events(store) if event["event"] == "save-failed"]
        assert [(event["step"], event["kind"]) for event in failed] == [(4, "io")]


def test_the_event_of_a_claim_holds_the_whole_settlement_for_the_day_that_its_file_is_lost(tmp_path: Path) -> None:
    with Training(tmp_path) as training:
        training.save(1)
    oneshot.reset(tmp_path)
    claimed = events(local(tmp_path / "reset" / training.engine.claim.__self__._open.claimed.run_id))[0]  # type: ignore[attr-defined]
    assert claimed["settlement"] == msgspec.to_builtins(training.engine._open.claimed.settlement)  # type: ignore[union-attr]
    reset = events(local(tmp_path), "events/0002.jsonl")[-1]
    assert (reset["event"], reset["settlement"]["head"], reset["settlement"]["reset"]["head"]) == ("reset", 0, 1)


@pytest.mark.parametrize("leaves", [10, 3000])
def test_the_ballast_makes_room_for_a_manifest_of_any_size(leaves: int) -> None:
    disk = MemoryStore()
    state = {"policy": {f"w{index}": state_at(0)["policy"]["w"].copy() for index in range(leaves)}}
    with CheckpointEngine(disk, state=state, writer="inline") as engine:
        for step in range(1, 5):
            for array in state["policy"].values():
                array += 1
            engine.save(step)
        disk.capacity_bytes = sum(entry.size_bytes for entry in disk.list(""))
        for array in state["policy"].values():
            array += 1
        engine.save(5)
        newest = engine.wait()
    assert newest is not None
    assert newest.step == 5
    assert oneshot.verify(disk).ok


def test_a_run_whose_script_has_changed_is_resumed_and_not_called_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("lr = 1e-3")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    provenance.script_digest.cache_clear()
    with Training(tmp_path / "run") as training:
        training.save(1)
    script.write_text("lr = 1e-4")
    provenance.script_digest.cache_clear()
    with Training(tmp_path / "run") as training:
        restored = training.engine.resume()
    provenance.script_digest.cache_clear()
    assert restored is not None
    assert [warning.partition(":")[0] for warning in restored.inexact] == ["code/script"]
    with Training(tmp_path / "run", on_mismatch={"code": "error"}) as training, pytest.raises(MismatchError):
        training.engine.resume()


def test_what_cannot_be_read_is_told_once_however_often_a_resume_has_to_choose(tmp_path: Path) -> None:
    with Training(tmp_path, keep=Keep(last=4)) as training:
        for step in (1, 2, 3):
            training.save(step)
    (tmp_path / layout.manifest(1)).write_bytes(b"torn")
    answers = iter([False, True])
    with Training(tmp_path, health_eval=lambda: next(answers)) as later:
        restored = later.engine.resume()
    assert restored is not None
    assert restored.generation == 2
    assert [text.partition(":")[0] for text in restored.skipped] == ["generation 3 unhealthy"]
    assert [text.partition(":")[0] for text in restored.warnings] == ["generation 1 unreadable"]
