"""A full disk heals itself by retiring the oldest first, and says what is lacking where it cannot. C14, B5, rule 16"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.cli.main import main
from milepost.engine import oneshot, relief
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.errors import MilepostError, SaveFailed, StoreError
from milepost.lifecycle.retain import Keep
from milepost.publish import layout, manifest, pins
from milepost.publish.view import read
from milepost.records import Manifest
from milepost.store.memory import MemoryStore
from milepost.testing.faults import FaultStore
from milepost.testing.sick import TAKES_SPACE, SickPosix, failing
from tests.engine.training import Training, bits, local, state_at
from tests.sick.injections import SmallDisk

CHANGING = 8_000
CONSTANT = 24_000
SLACK = 4_000
"""Room for records, but not for what changes."""


class Disk(MemoryStore):
    """Be a disk of so many bytes, on which a manifest is never deleted before a published one has dropped it."""

    def delete(self, name: str) -> None:
        number = layout.generation_number(name)
        if number is not None:
            assert number not in read(self).live, "a trim comes first (rule 16)"
        super().delete(name)

    @property
    def used_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.list(""))


class Loop:
    """Save a state of which one part changes; with ``shared`` there is another that never does."""

    def __init__(self, store: Any, keep: Keep, *, shared: bool = False) -> None:
        self.state: dict[str, Any] = {"policy": {"w": np.zeros(CHANGING // 8)}}
        if shared:
            self.state["replay"] = {"obs": np.arange(CONSTANT // 8)}
        self.engine = CheckpointEngine(store, state=self.state, writer="inline", keep=keep)

    def save(self, value: int, **metrics: float) -> int:
        if metrics:
            self.engine.report(value, metrics)
        self.state["policy"]["w"][:] = value
        self.engine.save(value)
        saved = self.engine.wait()
        assert saved is not None
        return saved.number


@pytest.fixture(autouse=True)
def small_ballast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold as much ballast as a manifest needs here."""
    monkeypatch.setattr(relief, "BALLAST_BYTES", 6_000)


@contextmanager
def small_ballast_here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relief, "BALLAST_BYTES", 6_000)
        yield


def steps(disk: MemoryStore) -> list[int]:
    return [summary.step for summary in read(disk).live.values()]


@given(
    generations=st.integers(1, 6),
    shared=st.booleans(),
    pinned=st.sets(st.integers(1, 6), max_size=3),
    best=st.integers(0, 2),
    returns=st.permutations(range(1, 7)),
    more=st.integers(1, 3),
)
def test_a_full_disk_retires_the_oldest_that_may_go_and_the_rest_stays(
    generations: int, shared: bool, pinned: set[int], best: int, returns: list[int], more: int
) -> None:
    keep = Keep(last=10, best=best, by="return" if best else None)
    disk = Disk()
    with small_ballast_here(), Loop(disk, keep, shared=shared).engine as engine:
        loop = Loop.__new__(Loop)
        loop.engine, loop.state = engine, engine.state  # type: ignore[assignment]
        for value in range(1, generations + 1):
            loop.save(value, **{"return": returns[value - 1]})
        pinned &= set(range(1, generations + 1))
        for number in pinned:
            pins.pin(disk, number)
        held = pinned | set(keep.best_of(read(disk).live)) | {generations}
        may_go = [number for number in range(1, generations + 1) if number not in held]
        disk.capacity_bytes = disk.used_bytes + SLACK
        saved, failed = [], None
        for value in range(7, 7 + more):
            try:
                loop.save(value, **{"return": 0.0})
                saved.append(value)
            except SaveFailed as error:
                failed = error
                break
        left = set(steps(disk))
        assert held - {generations} <= left, "neither pinned nor best ones go"
        assert max(left) == (saved[-1] if saved else generations), "the newest acknowledged one stays"
        gone = [number for number in may_go if number not in left]
        assert gone == may_go[: len(gone)], "the oldest went first"
        if failed is not None:
            told = failed.facts
            assert failed.kind == "disk-full"
            assert set(told["retiring_frees_bytes"]) == set(read(disk).live) - repeated(disk)  # type: ignore[call-overload]
            assert int(str(told["needed_bytes"])) >= CHANGING
        disk.capacity_bytes = None
        loop.save(20)
    assert oneshot.verify(disk).ok
    loaded: Any = oneshot.load(disk)
    assert loaded["policy"]["w"][0] == 20


def repeated(disk: MemoryStore) -> set[int | None]:
    return {summary.trim_of for summary in read(disk).live.values()}


def told_by(loop: Loop, value: int) -> dict[str, Any]:
    with pytest.raises(SaveFailed) as caught:
        loop.save(value)
    cause = caught.value.__cause__
    assert isinstance(cause, StoreError)
    assert cause.exit_code == 16
    return {**cause.facts, "hint": cause.hint, "message": cause.message}


def test_the_error_says_how_much_is_needed_what_each_would_free_and_why_it_stays() -> None:
    disk = Disk()
    loop = Loop(disk, Keep(last=10, best=1, by="return"), shared=True)
    with loop.engine:
        for value, result in ((1, 0.0), (2, 9.0), (3, 0.0), (4, 0.0)):
            loop.save(value, **{"return": result})
        for number in (1, 3):
            pins.pin(disk, number)
        disk.capacity_bytes = disk.used_bytes + SLACK
        told = told_by(loop, 5)
    # Only what changed is written: the constant part lies in generation 1's blob, and every other one stands on it.
    assert CHANGING + 4096 < told["needed_bytes"] < CHANGING + 9_000
    assert 0 <= told["free_bytes"] < told["needed_bytes"]
    frees = told["retiring_frees_bytes"]
    assert set(frees) == {1, 2, 3, 4}
    assert frees[1] == 0, "its only blob holds the constant part, too"
    assert all(CHANGING < frees[number] < CHANGING + 5_000 for number in (2, 3, 4))
    assert "pinned: milepost unpin" in told["staying"][1]
    assert told["staying"][2] == "among the best by return"
    assert told["staying"][4] == "the newest"
    assert f"free {told['needed_bytes'] - told['free_bytes']:,} bytes more" in told["hint"]
    assert f"milepost unpin memory:// 3 (frees {frees[3]:,} bytes)" in told["hint"], "to unpin 1 would free nothing"


def test_history_is_not_given_away_where_all_of_it_would_not_be_enough() -> None:
    disk = Disk()
    loop = Loop(disk, Keep(last=10))
    with loop.engine:
        for value in (1, 2, 3):
            loop.save(value)
        disk.capacity_bytes = disk.used_bytes + SLACK
        noise = np.random.default_rng(1).random(1_000_000)  # what shrinks would fit
        loop.state["policy"]["w"] = noise
        loop.engine.state["policy"] = {"w": noise}  # type: ignore[index]
        told = told_by_growing(loop)
        assert "would not make room enough" in told["message"]
        assert told["retiring_all_that_may_go_frees_bytes"] < told["needed_bytes"]
        assert steps(disk) == [1, 2, 3]


def told_by_growing(loop: Loop) -> dict[str, Any]:
    with pytest.raises(SaveFailed) as caught:
        loop.engine.save(4)
    cause = caught.value.__cause__
    assert isinstance(cause, StoreError)
    return {**cause.facts, "message": cause.message}


def test_what_was_dropped_and_could_not_be_deleted_goes_before_any_generation_does() -> None:
    disk = Disk()
    store = FaultStore(disk)
    loop = Loop(store, Keep(last=2))
    with loop.engine:
        store.fail("delete", "generations/*", StoreError("sick", kind="io", retryable=False), times=2)
        for value in (1, 2, 3, 4):
            loop.save(value)
        assert len(disk.list(layout.GENERATIONS)) == 4, "what was dropped is still there"
        disk.capacity_bytes = disk.used_bytes + SLACK
        loop.save(5)
        assert steps(disk) == [4, 5]
        assert "trim" not in [summary.reason for summary in read(disk).live.values()]


def test_a_sick_disk_that_is_also_full_is_told_as_full() -> None:
    disk = Disk()
    store = FaultStore(disk)
    loop = Loop(store, Keep(last=1))
    with loop.engine:
        loop.save(1)
        disk.capacity_bytes = disk.used_bytes + SLACK
        store.fail("free_bytes", error=StoreError("sick", kind="io", retryable=False))
        told = told_by(loop, 2)
    assert told["free_bytes"] is None
    assert told["hint"].startswith("free some space")


def test_a_save_that_fails_before_its_manifest_leaves_no_blob_to_fill_the_disk() -> None:
    disk = Disk()
    store = FaultStore(disk)
    loop = Loop(store, Keep(last=3))
    with loop.engine:
        loop.save(1)
        before = disk.list(layout.BLOBS)
        store.fail("list", layout.PINS, StoreError("sick", kind="io", retryable=False))
        with pytest.raises(SaveFailed):
            loop.save(2)
        assert disk.list(layout.BLOBS) == before
        assert loop.save(3) == 2


def test_a_save_for_whose_manifest_alone_there_is_no_room_leaves_no_blob_and_its_number_is_free() -> None:
    """Left there, the blob of each failed save would take what little space somebody frees."""
    disk, manifests_failed = Disk(), 0
    store = FaultStore(disk)
    loop = Loop(store, Keep(last=1))
    with loop.engine:
        newest = loop.save(1)
        for value, spare in enumerate(range(0, CHANGING + 8_000, 400), 2):
            disk.capacity_bytes = disk.used_bytes + spare
            tried = store.names_asked("create").count(layout.manifest(newest + 1))
            try:
                newest = loop.save(value)
            except SaveFailed:
                manifests_failed += store.names_asked("create").count(layout.manifest(newest + 1)) > tried
            named = {blob.name for blob in read(disk).live[newest].blobs}
            assert {entry.name for entry in disk.list(layout.BLOBS)} == named
            disk.capacity_bytes = None
    assert newest > 1
    assert manifests_failed, "a blob fitted, and its manifest did not"


def test_a_save_whose_manifest_is_too_large_to_be_read_leaves_no_blob_either(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    loop = Loop(disk, Keep(last=3))
    with loop.engine:
        loop.save(1)
        before = disk.list(layout.BLOBS)
        with monkeypatch.context() as patch:
            patch.setitem(manifest._MOST, Manifest, 1_000)
            with pytest.raises(SaveFailed) as caught:
                loop.save(2)
        assert caught.value.kind == "too-large"
        assert disk.list(layout.BLOBS) == before
        assert loop.save(3) == 2


def test_a_pin_that_could_not_be_promised_leaves_no_wish_behind() -> None:
    disk = Disk()
    store = FaultStore(disk)
    loop = Loop(disk, Keep(last=1))
    with loop.engine:
        loop.save(1)
        store.fail("replace", layout.pin(1), StoreError("full", kind="disk-full", retryable=False), nth=2)
        with pytest.raises(StoreError) as caught:
            pins.pin(store, 1)
        assert caught.value.exit_code == 16
        loop.save(2)
        assert steps(disk) == [2]
        assert disk.list(layout.PINS) == []


# --- commands on a disk without a byte left ---------------------------------------------------------------------------


def three(root: Path) -> None:
    with Training(root, keep=Keep(last=3)) as training:
        for step in (1, 2, 3):
            training.save(step)


def full(root: Path, *, with_ballast: bool = True) -> Any:
    """Return a store that takes no byte more than lies there; with a ballast that may be given up, or without one."""
    if not with_ballast:
        (root / layout.BALLAST).unlink()
    posix = SmallDisk()
    posix.root, posix.capacity_bytes = root, sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    return local(root, posix)


COMMANDS: dict[str, Callable[[Any], object]] = {
    "rollback": lambda store: oneshot.rollback(store, 1),
    "reset": oneshot.reset,
    "drop": lambda store: oneshot.drop(store, 3),
    "save": lambda store: oneshot.save(store, {"policy": {"w": 1.0}}, step=4),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_on_a_totally_full_disk_gives_up_the_ballast_and_works(place: Path, command: str) -> None:
    three(place)
    if command == "drop":
        (place / layout.manifest(3)).write_bytes(b"torn")
    COMMANDS[command](full(place))
    with Training(place) as training:
        restored = training.engine.resume() if command != "save" else None
        expected = {"rollback": 1, "reset": None, "drop": 2, "save": None}[command]
        assert (restored.step if restored else None) == expected
    assert oneshot.verify(place).ok


@pytest.mark.parametrize("command", [*COMMANDS, "pin"])
def test_a_command_for_which_there_is_no_room_at_all_says_so_and_harms_nothing(place: Path, command: str) -> None:
    three(place)
    if command == "drop":
        (place / layout.manifest(3)).write_bytes(b"torn")
    act = COMMANDS.get(command, lambda store: pins.pin(store, 1))
    with pytest.raises(MilepostError) as caught:
        act(full(place, with_ballast=False))
    assert (caught.value.kind, caught.value.exit_code) == ("disk-full", 16)
    assert caught.value.hint
    with Training(place) as training:
        restored = training.engine.resume()
        assert restored is not None
        assert restored.step == (2 if command == "drop" else 3)
    assert bits(oneshot.load(place, which=1)) == bits(state_at(1))


def test_a_reset_that_has_happened_and_has_no_room_to_move_things_says_both(place: Path) -> None:
    three(place)

    def in_reset(operation: Any) -> bool:
        return any("/reset" in str(argument) for argument in operation.arguments)

    posix = SickPosix(failing(28), calls=TAKES_SPACE, lasting=True, only=in_reset)
    with pytest.raises(StoreError) as caught:
        oneshot.reset(local(place, posix))
    assert caught.value.exit_code == 16
    assert "the run is reset" in caught.value.message
    assert "the next start moves the rest" in caught.value.hint
    with Training(place) as training:
        assert training.engine.resume() is None
        training.save(9)
    assert oneshot.verify(place).ok
    (aside,) = (place / "reset").iterdir()
    assert bits(oneshot.load(aside)) == bits(state_at(3))
    assert oneshot.verify(aside).ok


def test_the_command_line_ends_with_16_where_the_disk_is_full(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    three(place)
    sick = full(place, with_ballast=False)._posix
    monkeypatch.setattr("milepost.store.local.Posix", lambda: sick)
    with pytest.raises(SystemExit) as caught:
        main(["reset", str(place)])
    assert caught.value.code == 16
    assert "hint: free some space" in capsys.readouterr().err
