"""Save, load, verify, roll back and reset one path without a training loop around it. B7, A13"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milepost.clock import SystemClock
from milepost.engine import oneshot
from milepost.errors import ConflictError, CorruptError, MilepostError, NotFoundError, UsageError
from milepost.lifecycle.retain import Keep
from milepost.publish.view import read
from milepost.store.base import BlobReader, Store
from milepost.store.local import LocalStore
from tests.engine.training import Training, bits, local, snapshot, state_at, without_git


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    without_git(monkeypatch)


class Counting(LocalStore):
    """Note which bytes of which file are read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, SystemClock())
        self.ranges: list[tuple[str, int, int]] = []

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        data = super().read(name, start, stop)
        self.ranges.append((name, start, start + len(data)))
        return data

    def open_reader(self, name: str) -> Any:
        return BlobReader(self, name)

    def read_into(self, name: str, start: int, into: memoryview) -> int:
        got = super().read_into(name, start, into)
        self.ranges.append((name, start, start + got))
        return got


@pytest.mark.parametrize("tree", [[1, 2.5, None], {"a": np.arange(3)}, {}, np.float32(2), "text", {"policy": 1, "mine": 2}, ()])
def test_any_tree_comes_back_as_it_was(tmp_path: Path, tree: Any) -> None:
    oneshot.save(tmp_path, tree)
    assert bits(oneshot.load(tmp_path)) == bits(tree)


def test_a_tree_of_components_comes_back_by_component_and_whole(tmp_path: Path) -> None:
    oneshot.save(tmp_path, state_at(3), step=3)
    assert bits(oneshot.load(tmp_path)) == bits(state_at(3))
    assert bits(oneshot.load(tmp_path, parts=["counters", "policy"])) == bits(
        {"counters": state_at(3)["counters"], "policy": state_at(3)["policy"]}
    )
    assert oneshot.load(tmp_path, parts=[]) == {}


def test_a_dict_with_only_the_component_extra_comes_back_as_a_dict(tmp_path: Path) -> None:
    oneshot.save(tmp_path, {"extra": [1]})
    assert oneshot.load(tmp_path) == {"extra": [1]}


def test_saving_again_adds_a_generation_and_writes_only_what_changed(tmp_path: Path) -> None:
    tree = {"policy": {"w": np.zeros(20_000), "bias": np.zeros(4)}}
    first = oneshot.save(tmp_path, tree, step=1)
    tree["policy"]["bias"][:] = 1
    second = oneshot.save(tmp_path, tree, step=2)
    assert (first.number, second.number, second.parent) == (1, 2, 1)
    assert first.new_bytes > 160_000
    assert second.new_bytes < 6000
    assert bits(oneshot.load(tmp_path)) == bits(tree)


def test_keep_retires_what_it_does_not_keep(tmp_path: Path) -> None:
    for step in range(1, 5):
        oneshot.save(tmp_path, [step], step=step, keep=Keep(last=2))
    assert sorted(read(local(tmp_path)).live) == [3, 4]


def test_parts_read_their_own_bytes_and_no_others(tmp_path: Path) -> None:
    oneshot.save(tmp_path, {"policy": {"w": np.arange(1000.0)}, "replay": {"obs": np.arange(100_000)}})
    store = Counting(tmp_path)
    oneshot.load(store, parts=["policy"])
    manifest = read(local(tmp_path)).head
    assert manifest is not None
    (blob,) = manifest.blobs
    of_blob = [(start, stop) for name, start, stop in store.ranges if name == blob.name]
    # The weights: whether the blob is whole is no matter.
    assert sum(stop - start for start, stop in of_blob) == 8000
    store.ranges.clear()
    oneshot.load(store)
    whole = sum(stop - start for name, start, stop in store.ranges if name == blob.name)
    # And one byte at the end that tells whether the blob is whole.
    assert whole == 808_000 + 1, "each byte once: a fresh tree needs no second look"


def flip(root: Path, name: str, at: int) -> None:
    data = bytearray((root / name).read_bytes())
    data[at] ^= 4
    (root / name).write_bytes(data)


def two_generations(root: Path) -> list[str]:
    """Write two generations that share nothing; return the blob of each."""
    for step in (1, 2):
        oneshot.save(root, {"policy": {"w": np.full(1000, step)}, "replay": {"obs": np.full(1000, -step)}}, step=step)
    live = read(local(root)).live
    return [live[number].blobs[0].name for number in (1, 2)]


@pytest.mark.parametrize("parts", [None, ["policy", "replay"]])
def test_a_damaged_newest_generation_is_passed_over(tmp_path: Path, parts: list[str] | None) -> None:
    _, newest = two_generations(tmp_path)
    flip(tmp_path, newest, -10)
    loaded: Any = oneshot.load(tmp_path, parts=parts)
    assert loaded["policy"]["w"][0] == 1
    with pytest.raises(CorruptError):
        oneshot.load(tmp_path, which=2, parts=parts)


def test_damage_in_another_part_does_not_keep_a_part_from_being_loaded(tmp_path: Path) -> None:
    _, newest = two_generations(tmp_path)
    flip(tmp_path, newest, -10)  # of the replay, which comes last
    loaded: Any = oneshot.load(tmp_path, parts=["policy"])
    assert loaded["policy"]["w"][0] == 2


@pytest.mark.parametrize("parts", [None, ["replay"]])
def test_where_every_generation_is_damaged_nothing_is_returned(tmp_path: Path, parts: list[str] | None) -> None:
    for blob in two_generations(tmp_path):
        flip(tmp_path, blob, -10)
    with pytest.raises(CorruptError) as caught:
        oneshot.load(tmp_path, parts=parts)
    assert caught.value.kind == "nothing-valid"
    assert "generation 2 damaged" in caught.value.message
    assert "generation 1 damaged" in caught.value.message


class Overtaken(LocalStore):
    """Let two more generations be saved, and older ones retired, just before the first blob is read to its end."""

    def open_reader(self, name: str) -> Any:
        return BlobReader(self, name)

    def read_into(self, name: str, start: int, into: memoryview) -> int:
        if not Path(self.root, "overtaken").exists():
            Path(self.root, "overtaken").touch()
            for step in (2, 3):
                oneshot.save(self.root, {"policy": np.full(100, step)}, step=step, keep=Keep(last=1))
        return super().read_into(name, start, into)


@pytest.mark.parametrize("parts", [None, ["policy"]])
def test_a_load_that_a_retiring_writer_overtakes_returns_the_newer_generation(tmp_path: Path, parts: list[str] | None) -> None:
    oneshot.save(tmp_path, {"policy": np.full(100, 1)}, step=1, keep=Keep(last=1))
    loaded = oneshot.load(Overtaken(tmp_path, SystemClock()), parts=parts)
    assert bits(loaded) == bits({"policy": np.full(100, 3)})


def test_a_rollback_makes_an_older_generation_the_newest_again_and_loses_none(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        oneshot.save(tmp_path, [step], step=step)
    made = oneshot.rollback(tmp_path, 1)
    assert (made.number, made.step, made.rollback_to, made.reason, made.new_bytes) == (4, 1, 1, "rollback", 0)
    assert oneshot.load(tmp_path) == [1]
    assert [oneshot.load(tmp_path, which=number) for number in (1, 2, 3, 4)] == [[1], [2], [3], [1]]
    assert oneshot.verify(tmp_path).ok


def test_a_training_resumed_after_a_rollback_goes_on_from_there_under_a_new_number(tmp_path: Path) -> None:
    with Training(tmp_path, keep=Keep(last=5)) as training:
        for step in (1, 2, 3):
            training.save(step)
    oneshot.rollback(tmp_path, 1)
    with Training(tmp_path, keep=Keep(last=5)) as training:
        restored = training.engine.resume()
        assert restored is not None
        assert (restored.generation, restored.step) == (4, 1)
        assert training.is_at(1)
        assert training.save(2).number == 5


@pytest.mark.parametrize(("to", "error", "kind"), [(3, UsageError, "already-newest"), (7, NotFoundError, "no-such-generation")])
def test_a_rollback_to_what_cannot_be_says_why_and_changes_nothing(
    tmp_path: Path, to: int, error: type[MilepostError], kind: str
) -> None:
    for step in (1, 2, 3):
        oneshot.save(tmp_path, [step], step=step)
    before = snapshot(local(tmp_path))
    with pytest.raises(error) as caught:
        oneshot.rollback(tmp_path, to)
    assert caught.value.kind == kind
    assert f"milepost ls {tmp_path}" in caught.value.hint
    assert snapshot(local(tmp_path)) == before


def test_a_rollback_to_a_damaged_generation_names_the_damage_and_changes_nothing(tmp_path: Path) -> None:
    oldest, _ = two_generations(tmp_path)
    flip(tmp_path, oldest, -1)
    before = snapshot(local(tmp_path))
    with pytest.raises(CorruptError) as caught:
        oneshot.rollback(tmp_path, 1)
    assert oldest in caught.value.message
    assert snapshot(local(tmp_path)) == before


def test_a_rollback_to_an_unreadable_generation_is_damage_and_not_a_missing_number(tmp_path: Path) -> None:
    two_generations(tmp_path)
    flip(tmp_path, "generations/000001.json", 5)
    with pytest.raises(CorruptError) as caught:
        oneshot.rollback(tmp_path, 1)
    assert "generation 1 unreadable" in caught.value.message


def test_a_reset_run_is_whole_in_its_new_place_and_the_next_start_is_fresh(tmp_path: Path) -> None:
    for step in (1, 2):
        oneshot.save(tmp_path, [step], step=step)
    record = oneshot.reset(tmp_path)
    aside = tmp_path / record.to
    assert oneshot.verify(aside).ok
    assert oneshot.load(aside) == [2]
    with pytest.raises(NotFoundError) as caught:
        oneshot.load(tmp_path)
    assert caught.value.kind == "no-generation"
    saved = oneshot.save(tmp_path, [9])
    assert saved.number > 2, "numbers of the old run are never used again"
    assert saved.run_id != record.run_id
    assert oneshot.load(tmp_path) == [9]


@pytest.mark.parametrize("where", ["nowhere", "a directory that is no run"])
def test_what_is_no_run_is_told_so_and_stays_as_it_is(tmp_path: Path, where: str) -> None:
    root = tmp_path / "run"
    if where != "nowhere":
        root.mkdir()
        (root / "model.pt").write_bytes(b"theirs")
    actions = [oneshot.load, oneshot.verify, oneshot.reset, lambda url: oneshot.rollback(url, 1)]
    for action in actions:
        with pytest.raises(NotFoundError) as caught:
            action(root)
        assert caught.value.kind == "no-such-run"
        assert caught.value.facts["root"] == str(root)
    assert root.exists() == (where != "nowhere")
    assert [path.name for path in root.glob("**/*")] == ([] if where == "nowhere" else ["model.pt"])


def test_a_part_that_was_not_saved_is_named_with_those_that_were(tmp_path: Path) -> None:
    oneshot.save(tmp_path, {"policy": 1, "counters": 2})
    with pytest.raises(NotFoundError) as caught:
        oneshot.load(tmp_path, parts=["replay"])
    assert caught.value.kind == "no-such-component"
    assert "policy, counters" in caught.value.hint


@pytest.mark.parametrize("which", ["lastest", True, None, 1.0, "3"])
def test_a_which_that_means_nothing_is_refused_with_those_that_do(tmp_path: Path, which: Any) -> None:
    oneshot.save(tmp_path, [1])
    with pytest.raises(UsageError) as caught:
        oneshot.load(tmp_path, which=which)
    assert caught.value.kind == "bad-which"


def test_all_of_it_but_looking_is_refused_while_the_run_is_being_trained(tmp_path: Path) -> None:
    with Training(tmp_path) as training:
        training.save(1)
        training.save(2)
        actions = [lambda: oneshot.save(tmp_path, [1]), lambda: oneshot.rollback(tmp_path, 1), lambda: oneshot.reset(tmp_path)]
        for action in actions:
            with pytest.raises(ConflictError) as caught:
                action()
            assert caught.value.kind == "held"
        assert bits(oneshot.load(tmp_path)) == bits(state_at(2))
        report = oneshot.verify(tmp_path)
        assert report.ok, "a run that is being trained is not damaged for that"
        training.save(3)


def test_taking_over_ends_the_training_at_its_next_save(tmp_path: Path) -> None:
    with Training(tmp_path) as training:
        training.save(1)
        training.save(2)
        oneshot.rollback(tmp_path, 1, take_over=True)
        with pytest.raises(ConflictError) as caught:
            training.save(3)
    assert caught.value.kind == "fenced"
    assert bits(oneshot.load(tmp_path)) == bits(state_at(1))


def test_a_store_may_stand_for_a_path(tmp_path: Path) -> None:
    store: Store = local(tmp_path)
    oneshot.save(store, [1])
    assert oneshot.load(store) == oneshot.load(tmp_path) == [1]


def test_a_tree_saved_whole_comes_back_whole_after_a_rollback(tmp_path: Path) -> None:
    oneshot.save(tmp_path, {"mine": 1})
    oneshot.save(tmp_path, {"mine": 2})
    oneshot.rollback(tmp_path, 1)
    assert oneshot.load(tmp_path) == {"mine": 1}
