"""A state larger than may be staged: copied in waves while training waits, whole, and nobody waits for ever. B4, B9, C14"""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milepost.engine import oneshot, reader
from milepost.engine.arena import Arena
from milepost.engine.capture import capture
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.errors import SaveFailed, StoreError, UsageError
from milepost.lifecycle.retain import Keep
from milepost.publish.view import read
from milepost.state.rows import Rows
from milepost.store.base import Store
from milepost.testing.faults import HANG_S, FaultStore
from tests.engine.test_logs import events, published
from tests.engine.training import bits, local, without_git

ARRAYS, BYTES = 10, 100_000
FULL = StoreError("no space left on device", kind="disk-full", retryable=False, undone=True)


def state_at(step: int) -> dict[str, Any]:
    arrays = [np.random.default_rng(100 * step + at).standard_normal(BYTES // 8) for at in range(ARRAYS)]
    return {"policy": {f"w{at}": array for at, array in enumerate(arrays)}, "counters": {"step": step}}


class Run:
    def __init__(self, store: Store, **settings: Any) -> None:
        self.store = store
        self.state = state_at(0)
        settings.setdefault("staging_bytes", 3 * BYTES + 10)
        settings.setdefault("keep", Keep(last=2))
        self.engine = CheckpointEngine(store, state=self.state, **settings)

    def __enter__(self) -> Run:
        self.engine.resume()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        self.engine.__exit__(kind, *rest)

    def train_to(self, step: int) -> None:
        for name, array in state_at(step)["policy"].items():
            self.state["policy"][name][:] = array
        self.state["counters"]["step"] = step

    def save(self, step: int) -> None:
        self.train_to(step)
        self.engine.save(step)
        self.train_to(1000 + step)  # whatever training does next
        self.engine.wait()


@pytest.mark.parametrize("writer", ["thread", "inline"])
def test_a_state_in_waves_is_saved_as_it_was_at_the_call_and_told_once(
    tmp_path: Path, writer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with Run(local(tmp_path), writer=writer) as run:
        for step in (1, 2, 3):
            run.save(step)
            assert bits(oneshot.load(local(tmp_path))) == bits(state_at(step))
        told = published(run.store)[-1]
        assert told["waves"] == 4
        assert told["staged_bytes"] == ARRAYS * BYTES
        assert run.engine._saving._arena.size_bytes < 3.2 * BYTES + 4096
        assert run.engine._saving._arena.growths == 1
    assert caplog.text.count("training waited") == (writer == "thread")


def test_unchanged_leaves_of_every_wave_are_shared(tmp_path: Path) -> None:
    with Run(local(tmp_path)) as run:
        run.save(1)
        run.train_to(1)
        run.state["policy"]["w7"][:] = 5.0
        run.engine.save(2)
        run.engine.wait()
        assert published(run.store)[-1]["written_bytes"] < BYTES + 8192
        loaded: Any = oneshot.load(local(tmp_path))
        assert np.array_equal(loaded["policy"]["w7"], run.state["policy"]["w7"])
        assert np.array_equal(loaded["policy"]["w3"], run.state["policy"]["w3"])


def test_save_returns_only_when_the_last_wave_is_copied_and_before_it_is_written(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Run(store) as run:
        first, last = store.pause("commit_blob", "*-t1-????????????????.*"), store.pause("commit_blob", "*-3.safetensors")
        run.train_to(1)
        saving = threading.Thread(target=run.engine.save, args=(1,), name="trainer")
        saving.start()
        first.wait_until_reached()
        assert saving.is_alive(), "it waits for the disk"
        first.release()
        last.wait_until_reached()
        saving.join(HANG_S)
        assert not saving.is_alive()
        run.train_to(2)
        last.release()
        run.engine.wait()
    assert bits(oneshot.load(local(tmp_path))) == bits(state_at(1))


@pytest.mark.parametrize("blob", range(4))
def test_a_writer_that_fails_in_any_wave_lets_training_go_and_the_next_save_counts(tmp_path: Path, blob: int) -> None:
    store = FaultStore(local(tmp_path))
    with Run(store) as run:
        run.save(1)
        broken = StoreError("could not write", kind="io", retryable=False)
        store.fail("commit_blob", f"*-{blob}.safetensors" if blob else "*-t1-????????????????.*", error=broken, times=2)
        with pytest.raises(SaveFailed):
            run.save(2)
        assert len(list(store.list("blobs/"))) == 4, "what was written is gone"
        run.save(3)
    assert bits(oneshot.load(local(tmp_path))) == bits(state_at(3))


def test_a_writer_that_cannot_even_begin_lets_training_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Run(local(tmp_path)) as run:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            with pytest.raises(SaveFailed):
                run.save(1)
        run.save(2)
    assert bits(oneshot.load(local(tmp_path))) == bits(state_at(2))


@pytest.mark.parametrize("blob", [0, 1, 3])
def test_a_disk_that_is_full_in_a_wave_retires_the_oldest_and_begins_again_or_fails_once(tmp_path: Path, blob: int) -> None:
    store = FaultStore(local(tmp_path))
    with Run(store, keep=Keep(last=3)) as run:
        for step in (1, 2):
            run.save(step)
        pattern = f"*-{blob}.safetensors" if blob else "*-t1-????????????????.*"
        store.fail("write_blob", pattern, error=FULL, times=1)
        if blob < 3:  # training has not gone on: the waves before are copied once more
            run.save(3)
        else:
            with pytest.raises(SaveFailed) as caught:
                run.save(3)
            assert caught.value.kind == "disk-full"
            run.save(3)
    assert bits(oneshot.load(local(tmp_path))) == bits(state_at(3))
    assert 1 not in read(local(tmp_path)).live


def test_a_ctrl_c_while_training_waits_ends_the_save_and_the_next_counts(tmp_path: Path) -> None:
    with Run(local(tmp_path)) as run:
        run.save(1)
        copy, copied = capture.__globals__["copy_each"], []

        def interrupted(leaves: Any, memory: memoryview) -> Any:
            copied.append(len(leaves))
            if len(copied) == 3:
                raise KeyboardInterrupt
            return copy(leaves, memory)

        capture.__globals__["stage"].__kwdefaults__["copy"] = interrupted
        try:
            run.train_to(2)
            with pytest.raises(KeyboardInterrupt):
                run.engine.save(2)
        finally:
            capture.__globals__["stage"].__kwdefaults__["copy"] = copy
        with pytest.raises(SaveFailed) as caught:
            run.engine.wait()
        assert caught.value.kind == "staging-over"
        run.save(3)
    assert bits(oneshot.load(local(tmp_path))) == bits(state_at(3))


def test_an_array_larger_than_the_bound_raises_it_and_that_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Run(local(tmp_path), staging_bytes=1000) as run:
        run.save(1)
        run.save(2)
        assert run.engine._saving._arena.size_bytes < 1.2 * BYTES + 4096
        assert published(run.store)[-1]["waves"] == ARRAYS
    assert caplog.text.count("larger than staging_bytes=1000") == 1
    assert bits(oneshot.load(local(tmp_path))) == bits(state_at(2))


def test_a_setting_that_cannot_be_is_refused(tmp_path: Path) -> None:
    for wrong in (0, -1, 1.5, "1GB", True):
        with pytest.raises(UsageError):
            Run(local(tmp_path), staging_bytes=wrong)
    with pytest.raises(UsageError):
        Run(local(tmp_path), compress="zstd")


def test_the_first_save_of_a_large_ring_comes_in_waves_and_the_next_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milepost.engine.capture.PIECES_BYTES", 1 << 20)
    monkeypatch.setattr("milepost.engine.placing.PIECES_BYTES", 1 << 20)
    rows = Rows({"obs": np.random.default_rng(0).integers(0, 255, (50_000, 100), np.uint8)}, count=50_000)
    rows.log.piece_bytes = 300_000
    state = {"policy": {"w": np.arange(10_000.0)}, "replay": rows}
    with CheckpointEngine(local(tmp_path), state=state, keep=Keep(last=2)) as engine:
        engine.save(1)
        engine.wait()
        rows.arrays["obs"][:100] = 7
        rows.advance(100)
        engine.save(2)
        engine.wait()
        first, second = published(local(tmp_path))
        assert first["waves"] >= 5
        assert second["waves"] == 1
        assert second["staged_bytes"] < 11_000 + 80_000
        loaded: Any = oneshot.load(local(tmp_path))
        assert np.array_equal(loaded["replay"].arrays["obs"], rows.arrays["obs"])
        assert engine._saving._arena.growths == 1


def test_a_rollback_of_a_large_generation_reads_and_writes_it_wave_by_wave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_git(monkeypatch)
    with Run(local(tmp_path), keep=Keep(last=3)) as run:
        for step in (1, 2):
            run.save(step)
    monkeypatch.setattr(reader, "RESTAGED_BYTES", 2 * BYTES)
    manifest = oneshot.rollback(local(tmp_path), 1)
    assert manifest.reason == "rollback"
    assert bits(oneshot.load(local(tmp_path))) == bits(state_at(1))


def test_what_is_staged_lies_as_it_will_lie_in_its_file(tmp_path: Path) -> None:
    state = {
        "policy": {"a": np.ones(3, np.uint8), "b": np.ones(5, np.float64), "c": np.ones((2, 3), np.float32)},
        "extra": {"d": np.ones(0), "e": np.ones(7, np.complex128), "f": np.ones(4, np.float16), "g": b"x" * 2000},
    }
    staged = capture(state, Arena())
    laid = sorted((leaf.start, leaf.size_bytes, leaf.path) for part in staged.components for leaf in part.leaves)
    end = 0
    for start, size, _ in laid:
        assert start == end
        end = start + size
    with CheckpointEngine(local(tmp_path), state=state, writer="inline") as engine:
        engine.save(1)
        base = engine.claim().base
        assert base is not None
        records = sorted((leaf.start, leaf.size_bytes, leaf.path) for part in base.components for leaf in part.leaves)
        assert [(start - records[0][0], *rest) for start, *rest in records] == laid
        assert records[0][0] % 4096 == 0


def test_generations_that_must_stand_alone_do_so_in_waves_too(tmp_path: Path) -> None:
    with Run(local(tmp_path), keep=Keep(last=3, independent=2)) as run:
        for step in (1, 2, 3, 4):
            run.train_to(1)
            run.state["policy"]["w0"][:] = step
            run.engine.save(step)
            run.engine.wait()
            loaded: Any = oneshot.load(local(tmp_path))
            assert np.array_equal(loaded["policy"]["w0"], run.state["policy"]["w0"])
            assert np.array_equal(loaded["policy"]["w9"], run.state["policy"]["w9"])
        live = list(read(local(tmp_path)).live.values())
        names = [{blob.name for blob in summary.blobs} for summary in live]
        assert any(one.isdisjoint(other) for one in names for other in names)


def save_one_change(run: Run, step: int) -> int | None:
    """Change one array and save; return the step of the newest generation."""
    run.state["policy"]["w0"][:] = step
    run.engine.save(step)
    saved = run.engine.wait()
    return saved and saved.step


def test_a_copy_in_waves_that_finds_no_room_says_so_and_the_next_save_shares(tmp_path: Path) -> None:
    store = FaultStore(local(tmp_path))
    with Run(store, keep=Keep(last=3, independent=2), on_save_error="warn") as run:
        assert save_one_change(run, 1) == 1
        store.fail("create", "generations/*", error=FULL)
        assert save_one_change(run, 2) == 1
        assert "no space left on device" in events(store, "save-failed")[-1]["error"]
        assert save_one_change(run, 3) == 3
        live = read(local(tmp_path)).live
        assert sorted(live) == [1, 2], "no generation goes for a copy"
        assert live[2].new_bytes < live[2].total_bytes, "it shares"
        assert save_one_change(run, 4) == 4
        assert read(local(tmp_path)).live[3].new_bytes == read(local(tmp_path)).live[3].total_bytes, "there is room again"


def test_a_copy_in_waves_is_not_begun_where_there_is_no_room_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Run(local(tmp_path), keep=Keep(last=3, independent=2)) as run:
        assert save_one_change(run, 1) == 1
        monkeypatch.setattr(run.store, "free_bytes", lambda: ARRAYS * BYTES // 2)
        for step in (2, 3):
            assert save_one_change(run, step) == step
            live = read(local(tmp_path)).live[step]
            assert live.new_bytes < live.total_bytes


def test_leaves_of_the_same_bytes_and_path_in_two_waves_never_lie_over_each_other(tmp_path: Path) -> None:
    class Twin:
        """Give two leaves one path, as a key with a dot can."""

        def __init__(self) -> None:
            self.state: dict[str, Any] = {"a": {"b": np.zeros(5_000)}, "a.b": np.zeros(5_000)}

    twin = Twin()
    with CheckpointEngine(local(tmp_path), state={"extra": twin.state}, staging_bytes=40_000) as engine:
        for step in (1, 2):
            engine.save(step)
            engine.wait()
            base = engine.claim().base
            assert base is not None
            spans = sorted((leaf.blob, leaf.start, leaf.stop) for part in base.components for leaf in part.leaves)
            for (blob, _, stop), (other, start, _) in pairwise(spans):
                assert blob != other or stop <= start
