"""Parts: what is sound of a damaged run comes back, what is wanted of it alone, and the rest is told by name. B7, B8"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from milepost.clock import SystemClock
from milepost.encode.digest import unseal
from milepost.engine import oneshot, reader
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.errors import CorruptError, MilepostError, MismatchError, StoreError, UsageError
from milepost.lifecycle.retain import Keep
from milepost.lifecycle.triggers import every
from milepost.publish import layout, quarantine
from milepost.publish.manifest import decode_manifest
from milepost.publish.view import read
from milepost.records import LeafRecord, Manifest
from milepost.store.base import Store
from milepost.testing.faults import FaultStore
from tests.engine.training import Training, bits, local, state_at


def train(where: Path, *steps: int, **settings: Any) -> None:
    """Save at these steps; the replay buffer is at 5 from there on, so that it is one file for all of them."""
    with Training(where, keep=Keep(last=9), **settings) as training:
        training.engine.resume()
        for step in steps:
            training.train_to(step)
            training.state["replay"]["obs"][:] = state_at(5)["replay"]["obs"]
            training.engine.save(step)


def manifest_of(where: Path, number: int) -> Manifest:
    name = layout.manifest(number)
    return decode_manifest((where / name).read_bytes(), name)


def leaf_of(where: Path, number: int, component: str) -> tuple[str, LeafRecord]:
    manifest = manifest_of(where, number)
    record = manifest.component(component)
    assert record is not None
    leaf = record.leaves[0]
    return manifest.blobs[leaf.blob].name, leaf


def rot(where: Path, number: int, component: str) -> str:
    """Flip a bit in the middle of a component's first array, and return the file's name."""
    name, leaf = leaf_of(where, number, component)
    flip(where / name, (leaf.start + leaf.stop) // 2)
    return name


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def events(where: Path, kind: str) -> list[dict[str, Any]]:
    lines = [line for path in sorted((where / "events").iterdir()) for line in path.read_bytes().splitlines(keepends=True)]
    found = [msgspec.json.decode(unseal(line, "events")) for line in lines]
    return [event for event in found if event["event"] == kind]


def expected(step: int, **others: Any) -> Any:
    """Return the state as `train` saved it, with other components as given."""
    return bits(state_at(step) | {"replay": state_at(5)["replay"]} | others)


# --- a whole one first, then what is sound of the newest ----------------------------------------------------------------


def test_where_the_replay_is_damaged_everywhere_the_newest_comes_back_without_it_and_that_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, 1, 2, 3)
    blob = rot(tmp_path, 1, "replay")
    assert leaf_of(tmp_path, 3, "replay")[0] == blob, "they share it"
    with Training(tmp_path, keep=Keep(last=9)) as training, caplog.at_level(logging.INFO, "milepost"):
        training.state["replay"]["obs"][:] = 77
        restored = training.engine.resume()
        assert restored is not None
        assert bits(training.state) == expected(3, replay={"obs": np.full(400, 77, np.int64)})
        [left] = restored.inexact
        assert left.startswith(f"replay: damaged in generation 3 ({blob}: its digest")
        assert left.endswith("left as it was")
        assert (restored.generation, restored.exact, restored.fault) == (3, False, "data")
        assert restored.components == ("policy", "optimizer", "counters")
        assert [text.partition(": ")[0] for text in restored.warnings] == [
            "replay",
            "generation 2 damaged",
            "generation 1 damaged",
        ]
        assert restored.skipped == (), "nothing newer was passed over"
        assert f"generation=3 exact=no ({left})" in caplog.text
        [told] = events(tmp_path, "resumed")
        assert (told["exact"], told["inexact"], told["generation"]) == (False, [left], 3)
        assert sorted(read(training.store).marks) == [1, 2, 3]
        check_that_the_next_save_stands_alone(training, parent=3)
    assert oneshot.verify(tmp_path).resume_from == 4


def check_that_the_next_save_stands_alone(training: Training, parent: int) -> None:
    """Check that nothing is shared with a generation that was not verified whole, though it is what the state goes back to."""
    known = {blob.name for summary in read(training.store).live.values() for blob in summary.blobs}
    training.engine.save(parent + 10)  # of a state in which nothing has changed since
    saved = training.engine.wait()
    assert saved is not None
    assert known.isdisjoint(blob.name for blob in saved.blobs)
    assert (saved.parent, saved.rollback_to) == (parent, None)
    assert parent in saved.line


def test_an_older_generation_that_is_whole_comes_before_a_newer_one_without_its_replay(tmp_path: Path) -> None:
    with Training(tmp_path, keep=Keep(last=9)) as training:
        for step in (1, 2, 3):
            training.save(step)
    rot(tmp_path, 3, "replay")
    rot(tmp_path, 2, "replay")
    with Training(tmp_path) as training:
        restored = training.engine.resume()
        assert restored is not None
        assert training.is_at(1)
        assert (restored.generation, restored.exact, len(restored.skipped)) == (1, True, 2)


def test_damage_in_what_a_run_cannot_do_without_is_passed_over_for_an_older_generation_without_a_replay(tmp_path: Path) -> None:
    with Training(tmp_path, keep=Keep(last=9)) as training:
        for step in (1, 2, 3):
            training.save(step)
    for number, component in ((3, "optimizer"), (2, "replay"), (1, "policy")):
        rot(tmp_path, number, component)  # of none of these is the file shared
    with Training(tmp_path) as training:
        restored = training.engine.resume()
        assert restored is not None
        assert bits(training.state) == bits(state_at(2) | {"replay": state_at(0)["replay"]})
        assert restored.generation == 2
        assert [text.partition(":")[0] for text in restored.skipped] == ["generation 3 damaged"]
        assert [text.partition(":")[0] for text in restored.warnings] == ["replay", "generation 1 damaged"]


def test_a_strict_engine_takes_no_half_and_says_how_to_get_it(tmp_path: Path) -> None:
    train(tmp_path, 5)
    rot(tmp_path, 1, "replay")
    with Training(tmp_path, strict=True) as training:
        with pytest.raises(CorruptError) as caught:
            training.engine.resume()
        assert training.is_at(0)
        assert caught.value.kind == "nothing-valid"
        assert "engine.resume(parts=['policy', 'optimizer', 'counters'])" in caught.value.hint
        assert "milepost.load(" in caught.value.hint
        assert training.engine.resume(parts=["policy", "optimizer", "counters"]) is not None


def test_where_something_essential_is_damaged_everywhere_each_generation_is_told_with_what_is_sound_of_it(tmp_path: Path) -> None:
    train(tmp_path, 1, 2)
    rot(tmp_path, 2, "policy")
    rot(tmp_path, 1, "optimizer")
    with Training(tmp_path) as training:
        with pytest.raises(CorruptError) as caught:
            training.engine.resume()
        assert training.is_at(0)
        with pytest.raises(MilepostError):
            training.engine.save(1)
    lines = caught.value.message.splitlines()
    [newest] = [line for line in lines if line.startswith("  generation 2 damaged")]
    [older] = [line for line in lines if line.startswith("  generation 1 damaged")]
    assert newest.endswith("; sound: optimizer, replay, counters")
    assert older.endswith("; sound: policy, replay, counters")


def mark(where: Path, number: int) -> None:
    """Note, as a writer before did, that a generation was found damaged."""
    quarantine.mark(
        local(where), SystemClock(), run_id=manifest_of(where, number).run_id, term=1, number=number, kind="damaged", reason=""
    )


def test_a_rotten_header_costs_nothing_and_is_for_verify_to_find(tmp_path: Path) -> None:
    train(tmp_path, 5)
    blob = manifest_of(tmp_path, 1).blobs[0].name
    flip(tmp_path / blob, 9)  # in the header
    with Training(tmp_path) as training:
        restored = training.engine.resume()
        assert restored is not None
        assert bits(training.state) == expected(5)
        assert (restored.exact, restored.warnings) == (True, ()), "only what is loaded is read"
        assert training.save(6).number == 2
    report = oneshot.verify(tmp_path)
    assert {(problem.name, problem.components) for problem in report.problems} == {(blob, ())}
    assert report.resume_from == 2


def test_a_rotten_header_that_is_known_of_costs_nothing_but_a_warning(tmp_path: Path) -> None:
    train(tmp_path, 5)
    flip(tmp_path / manifest_of(tmp_path, 1).blobs[0].name, 9)  # in the header
    mark(tmp_path, 1)
    with Training(tmp_path) as training:
        restored = training.engine.resume()
        assert restored is not None
        assert bits(training.state) == expected(5)
        assert restored.exact
        assert "none of its components" in restored.warnings[0]
        check_that_the_next_save_stands_alone(training, parent=1)


@pytest.mark.parametrize("known", [False, True])
def test_no_training_is_given_up_for_a_rotten_header_though_an_older_generation_is_whole(tmp_path: Path, known: bool) -> None:
    train(tmp_path, 5, 6, 7)
    flip(tmp_path / manifest_of(tmp_path, 3).blobs[0].name, 9)  # in the header: every array of generation 3 verifies
    if known:
        mark(tmp_path, 3)
    assert oneshot.verify(tmp_path).resume_from == 3
    with Training(tmp_path) as training:
        restored = training.engine.resume()
        assert restored is not None
        assert (restored.generation, restored.skipped) == (3, ())
        assert bits(training.state) == expected(7)
        if known:
            check_that_the_next_save_stands_alone(training, parent=3)


@pytest.mark.parametrize("how", ["gone", "cut", "empty"])
def test_a_file_that_is_gone_or_short_takes_only_the_components_in_it(tmp_path: Path, how: str) -> None:
    train(tmp_path, 5, blob_bytes=1)  # a file for each array
    path = tmp_path / leaf_of(tmp_path, 1, "replay")[0]
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(b"" if how == "empty" else data[:-1])
    with Training(tmp_path) as training:
        restored = training.engine.resume()
        assert restored is not None
        assert bits(training.state) == bits(state_at(5) | {"replay": state_at(0)["replay"]})


def test_a_number_that_was_asked_for_is_that_one_also_by_half(tmp_path: Path) -> None:
    train(tmp_path, 1, 2)
    rot(tmp_path, 1, "replay")
    with Training(tmp_path) as training:
        restored = training.engine.resume(1)
        assert restored is not None
        assert (restored.generation, restored.exact) == (1, False)
        assert training.engine.resume().generation == 2  # type: ignore[union-attr]


def test_a_component_that_the_script_has_no_more_is_not_missed_when_it_is_damaged(tmp_path: Path) -> None:
    train(tmp_path, 5)
    rot(tmp_path, 1, "replay")
    state = {name: value for name, value in state_at(0).items() if name != "replay"}
    with CheckpointEngine(tmp_path, state=state, writer="inline") as engine:
        restored = engine.resume()
        assert restored is not None
        assert len(restored.warnings) == 1
        assert not restored.warnings[0].endswith("left as it was")


def test_peek_and_adopt_see_what_a_resume_would_take(tmp_path: Path) -> None:
    train(tmp_path, 1, 2)
    rot(tmp_path, 1, "replay")  # they share it
    with Training(tmp_path) as training:
        assert training.engine.peek().number == 2  # type: ignore[union-attr]
        assert training.engine.adopt().number == 2  # type: ignore[union-attr]
        assert training.is_at(0)
        training.train_to(2)
        training.state["replay"]["obs"][:] = state_at(5)["replay"]["obs"]
        check_that_the_next_save_stands_alone(training, parent=2)


@pytest.fixture
def _into_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load everything straight into place, as what is large is loaded."""
    monkeypatch.setattr(reader, "HELD_BYTES", 0)


class Rots(FaultStore):
    """Lie about one array once somebody says so."""

    def __init__(self, inner: Store, name: str, leaf: LeafRecord) -> None:
        super().__init__(inner)
        self.lying = False
        self._name, self._leaf = name, leaf

    def read_into(self, name: str, start: int, into: memoryview) -> int:
        got = super().read_into(name, start, into)
        if self.lying and name == self._name and start <= self._leaf.start < start + got:
            into[self._leaf.start - start] ^= 1
        return got


@pytest.mark.usefixtures("_into_place")
def test_what_a_broken_off_load_has_half_overwritten_is_never_passed_off_as_left_alone(tmp_path: Path) -> None:
    train(tmp_path, 5)
    store = Rots(local(tmp_path), *leaf_of(tmp_path, 1, "replay"))
    with Training(store) as training:
        training.engine.peek()  # all of it is sound
        store.lying = True
        for _ in range(2):
            with pytest.raises(CorruptError) as caught:
                training.engine.resume()
            assert caught.value.kind == "nothing-valid"
        with pytest.raises(MilepostError):
            training.engine.save(1)
    with Training(store) as training:  # a new process has a replay buffer that nobody has touched
        assert training.engine.resume().generation == 1  # type: ignore[union-attr]
        assert training.save(2).number == 2


@pytest.mark.usefixtures("_into_place")
def test_what_turns_bad_before_it_is_touched_is_left_alone(tmp_path: Path) -> None:
    state: dict[str, Any] = {"policy": np.zeros(64), "rng": np.zeros(64), "replay": np.zeros(64)}

    def start(store: Store | Path) -> CheckpointEngine:
        return CheckpointEngine(store, state=state, writer="inline", health_eval=lambda: True)

    with start(tmp_path) as engine:
        engine.save(1)
    store = Rots(local(tmp_path), *leaf_of(tmp_path, 1, "policy"))
    with start(store) as engine:
        engine.peek()
        store.lying = True
        with pytest.raises(CorruptError):
            engine.resume()
        # The policy came first, so the others are as they were; parts which do not heal the policy allow no save.
        assert engine.resume(parts=["replay"]) is not None
        with pytest.raises(MilepostError):
            engine.save(2)
        store.lying = False
        assert engine.resume(parts=["policy"]) is not None
        engine.save(2)


def test_what_a_refused_generation_has_left_behind_is_not_passed_off_as_an_older_ones(tmp_path: Path) -> None:
    """The older one has no replay: it would come back with the one of the generation that was refused, and be saved with it."""

    def start(healthy: bool = True, **more: Any) -> CheckpointEngine:
        state = {"policy": np.zeros(64), "counters": {"step": 0}, **more}
        return CheckpointEngine(tmp_path, state=state, writer="inline", health_eval=lambda: healthy)

    with start() as engine:
        engine.save(1)
    with start(replay=np.zeros(64)) as engine:
        engine.resume()
        engine.state["replay"][:] = 7  # type: ignore[index]
        engine.save(2)
    with start(healthy=False, replay=np.zeros(64)) as engine:
        verdicts = iter([False, True])
        engine._health_eval = lambda: next(verdicts)
        with pytest.raises(CorruptError) as caught:
            engine.resume()
        assert (caught.value.kind, caught.value.facts["components"]) == ("half-loaded", "replay")
        with pytest.raises(MilepostError):
            engine.save(3)
    with start(replay=np.zeros(64)) as engine:  # started anew, it has a replay buffer that nobody has touched
        assert engine.resume(which=1).generation == 1  # type: ignore[union-attr]
        engine.save(3)
    loaded: Any = oneshot.load(tmp_path)
    assert not loaded["replay"].any()


# --- resume(parts=) -----------------------------------------------------------------------------------------------------


def test_the_parts_asked_for_come_back_in_place_and_the_others_stay_unread(tmp_path: Path) -> None:
    train(tmp_path, 5, blob_bytes=1)
    store = FaultStore(local(tmp_path))
    with Training(store) as training:
        weights = training.state["policy"]["w"]
        restored = training.engine.resume(parts=["optimizer", "policy"])
        assert restored is not None
        assert training.state["policy"]["w"] is weights
        assert bits(training.state) == bits(state_at(0) | {name: state_at(5)[name] for name in ("policy", "optimizer")})
        assert restored.components == ("policy", "optimizer")
        assert restored.inexact == ("replay: not asked for, left as it was", "counters: not asked for, left as it was")
        assert leaf_of(tmp_path, 1, "replay")[0] not in store.names_asked("read_into")
        check_that_the_next_save_stands_alone(training, parent=1)


def test_parts_come_from_the_newest_generation_in_which_all_of_them_are_sound(tmp_path: Path) -> None:
    with Training(tmp_path, keep=Keep(last=9)) as training:
        for step in (1, 2, 3, 4):
            training.save(step)
    rot(tmp_path, 4, "optimizer")
    rot(tmp_path, 3, "replay")  # which nobody asks for
    with Training(tmp_path, keep=Keep(last=9)) as training:
        restored = training.engine.resume(parts=("policy", "optimizer", "counters"))
        assert restored is not None
        assert (restored.generation, restored.step) == (3, 3)
        assert [text.partition(":")[0] for text in restored.skipped] == ["generation 4 damaged"]
        assert "optimizer/moments[0]" in restored.skipped[0]
        assert bits(training.state) == bits(state_at(3) | {"replay": state_at(0)["replay"]})
        saved = training.save(9)
        assert (saved.parent, saved.rollback_to) == (4, 3)
    with Training(tmp_path) as training:
        rot(tmp_path, 1, "policy")
        assert training.engine.resume(2, parts=["policy"]).generation == 2  # type: ignore[union-attr]
        with pytest.raises(CorruptError) as caught:
            training.engine.resume(1, parts=["policy"])
        assert caught.value.kind == "nothing-valid"
        assert "of which these parts are sound" in caught.value.message
        first, *lines = str(caught.value).split("\n")
        assert "root=`" in first, "not behind the last of what it lists"
        assert lines[0].startswith("  generation 1 damaged")


BAD_PARTS: dict[str, tuple[Any, str]] = {
    "one that the engine has not": (["policy", "value"], "this engine has policy, optimizer, replay, counters"),
    "none at all": ([], "this engine has policy, optimizer, replay, counters"),
    "letters of a name": (["p"], "this engine has"),
}


@pytest.mark.parametrize("case", BAD_PARTS)
def test_parts_that_are_not_there_are_named_with_those_that_are(tmp_path: Path, case: str) -> None:
    train(tmp_path, 5)
    parts, hint = BAD_PARTS[case]
    with Training(tmp_path) as training:
        with pytest.raises(UsageError) as caught:
            training.engine.resume(parts=parts)
        assert caught.value.kind == "no-such-component"
        assert hint in caught.value.hint
        assert training.is_at(0)
        assert training.engine.resume(parts="policy").components == ("policy",)  # type: ignore[union-attr]


def test_a_part_that_the_generation_has_not_is_named_with_those_that_it_has(tmp_path: Path) -> None:
    train(tmp_path, 5)
    with CheckpointEngine(tmp_path, state=state_at(0) | {"value": np.zeros(1)}, writer="inline") as engine:
        with pytest.raises(UsageError) as caught:
            engine.resume(parts=["policy", "value"])
        assert caught.value.facts["missing"] == "value"
        assert "generation 1 has policy, optimizer, replay, counters" in caught.value.hint


def test_to_start_anew_with_parts_of_the_old_makes_no_sense(tmp_path: Path) -> None:
    train(tmp_path, 5)
    with Training(tmp_path) as training, pytest.raises(UsageError) as caught:
        training.engine.resume("never", parts=["policy"])
    assert caught.value.kind == "bad-which"


def test_parts_of_a_run_without_any_generation_are_a_fresh_start(tmp_path: Path) -> None:
    with Training(tmp_path) as training:
        assert training.engine.resume(parts=["policy"]) is None
        assert training.save(1).number == 1


def test_only_the_parts_asked_for_have_to_fit(tmp_path: Path) -> None:
    train(tmp_path, 5)
    state = state_at(0) | {"replay": {"obs": np.zeros(7)}, "optimizer": {"moments": [np.zeros(3), None], "lr": 0.5}}
    with CheckpointEngine(tmp_path, state=state, writer="inline") as engine:
        with pytest.raises(MismatchError):
            engine.resume()
        with pytest.raises(MismatchError) as caught:
            engine.resume(parts=["policy", "optimizer"])
        assert {difference.path.partition("/")[0] for difference in caught.value.differences} == {"optimizer"}
        assert engine.resume(parts=["policy"]) is not None
    assert bits(state["policy"]) == bits(state_at(5)["policy"])


def test_without_the_counters_the_loop_and_its_triggers_are_where_they_were(tmp_path: Path) -> None:
    train(tmp_path, 500)
    with Training(tmp_path, when=every(steps=100), keep=Keep(best=1, by="return")) as training:
        training.engine.resume(parts=["policy"])
        assert not training.engine.save_if_due(99)
        assert training.engine.save_if_due(100)
    with Training(tmp_path, when=every(steps=100)) as training:
        training.engine.resume(parts=["policy", "counters"])
        assert not training.engine.save_if_due(199)


def test_generators_come_back_last_also_among_parts_and_no_evaluation_draws_from_others(tmp_path: Path) -> None:
    state: dict[str, Any] = {"rng": np.random.default_rng(3), "policy": np.zeros(3)}
    state = {"rng": {"own": state["rng"]}, "policy": state["policy"]}
    with CheckpointEngine(tmp_path, state=state, writer="inline") as engine:
        engine.save(1)
        due = state["rng"]["own"].random(4)
    evaluations: list[float] = []

    def evaluate() -> bool:
        evaluations.append(state["rng"]["own"].random())
        return True

    with CheckpointEngine(tmp_path, state=state, writer="inline", health_eval=evaluate) as engine:
        engine.resume(parts=["policy"])
        assert state["rng"]["own"].random() not in due, "it was not asked for"
        engine.resume(parts=["policy", "rng"])
        assert (state["rng"]["own"].random(4) == due).all()
        assert len(evaluations) == 2


# --- load(parts=) -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gone", "cut", "longer", "flipped"])
def test_damage_in_a_file_that_the_parts_do_not_need_is_none_of_theirs(tmp_path: Path, how: str) -> None:
    train(tmp_path, 1, 2, blob_bytes=1)
    path = tmp_path / leaf_of(tmp_path, 2, "optimizer")[0]
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes({"cut": data[:-9], "longer": data + b"x", "flipped": data[:-1] + bytes([data[-1] ^ 1])}[how])
    loaded: Any = oneshot.load(tmp_path, parts=["policy", "counters"])
    assert bits(loaded) == bits({name: state_at(2)[name] for name in ("policy", "counters")})
    assert bits(oneshot.load(tmp_path)) == expected(1), "the whole is taken from where it is whole"
    assert bits(oneshot.load(tmp_path, parts=["optimizer"])) == bits({"optimizer": state_at(1 + (how == "longer"))["optimizer"]})


def test_a_file_that_was_cut_off_behind_the_weights_still_gives_the_weights(tmp_path: Path) -> None:
    tree = {"policy": np.arange(9.0), "replay": np.zeros(99, np.uint8)}
    oneshot.save(tmp_path, tree)
    name, leaf = leaf_of(tmp_path, 1, "policy")
    assert leaf.stop <= leaf_of(tmp_path, 1, "replay")[1].start
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[: leaf.stop])
    loaded: Any = oneshot.load(tmp_path, parts=["policy"])
    assert bits(loaded) == bits({"policy": tree["policy"]})
    for parts in (None, ["replay"], ["policy", "replay"]):
        with pytest.raises(CorruptError) as caught:
            oneshot.load(tmp_path, parts=parts)
        assert caught.value.kind == "nothing-valid"


def test_a_load_of_a_number_gives_its_parts_or_an_error(tmp_path: Path) -> None:
    train(tmp_path, 1, 2)
    rot(tmp_path, 2, "optimizer")
    assert bits(oneshot.load(tmp_path, which=2, parts="policy")) == bits({"policy": state_at(2)["policy"]})
    with pytest.raises(CorruptError):
        oneshot.load(tmp_path, which=2, parts=["optimizer"])


# --- a read that fails is not damage ------------------------------------------------------------------------------------


class Flaky(FaultStore):
    """Give wrong bytes at the first read of every range of every blob, and the right ones from then on."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._asked: set[tuple[str, int, int]] = set()

    def read_into(self, name: str, start: int, into: memoryview) -> int:
        got = super().read_into(name, start, into)
        if name.startswith(layout.BLOBS) and got and (name, start, len(into)) not in self._asked:
            self._asked.add((name, start, len(into)))
            into[got - 1] ^= 1
        return got


READS: dict[str, Callable[[Store], object]] = {
    "a resume": lambda store: resumed(store),
    "a resume of parts": lambda store: resumed(store, parts=["policy", "counters", "optimizer"]),
    "a load": lambda store: oneshot.load(store),
    "a load of parts": lambda store: oneshot.load(store, parts=["policy"]),
}


def resumed(store: Store, **arguments: Any) -> object:
    with Training(store) as training:
        restored = training.engine.resume(**arguments)
        assert restored is not None
        assert (restored.generation, restored.skipped) == (2, ())
        assert training.state["counters"]["step"] == 2
        return training.state


@pytest.mark.parametrize("reader", READS)
def test_bytes_that_are_wrong_once_are_read_again_and_are_no_damage(tmp_path: Path, reader: str) -> None:
    train(tmp_path, 1, 2)
    found: Any = READS[reader](Flaky(local(tmp_path)))
    assert bits(found["policy"]) == bits(state_at(2)["policy"])
    assert read(local(tmp_path)).marks == {}


def test_a_flaky_read_takes_no_component_from_a_generation_that_is_damaged_elsewhere(tmp_path: Path) -> None:
    train(tmp_path, 5)
    rot(tmp_path, 1, "replay")
    with Training(Flaky(local(tmp_path))) as training:
        restored = training.engine.resume()
        assert restored is not None
        assert restored.components == ("policy", "optimizer", "counters")


class BadMemory(FaultStore):
    """Give wrong bytes of a blob, as often as it is read, until the next read is asked to come from the medium."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._dropped: set[str] = set()

    def drop_cached(self, name: str) -> None:
        self._dropped.add(name)

    def read_into(self, name: str, start: int, into: memoryview) -> int:
        got = super().read_into(name, start, into)
        if name.startswith(layout.BLOBS) and got and name not in self._dropped:
            into[got - 1] ^= 1
        return got


@pytest.mark.parametrize("reader", READS)
def test_what_is_wrong_in_memory_only_is_read_from_the_disk_and_is_no_damage(tmp_path: Path, reader: str) -> None:
    train(tmp_path, 1, 2)
    found: Any = READS[reader](BadMemory(local(tmp_path)))
    assert bits(found["policy"]) == bits(state_at(2)["policy"])
    assert read(local(tmp_path)).marks == {}


@pytest.mark.parametrize("reader", READS)
@pytest.mark.parametrize("rotten", [False, True])
def test_a_read_that_fails_is_raised_marks_nothing_and_the_next_try_succeeds(tmp_path: Path, reader: str, rotten: bool) -> None:
    train(tmp_path, 1, 2)
    if rotten:
        rot(tmp_path, 1, "replay")  # they share it
    if rotten and reader == "a load":
        return
    for nth in (1, 2, 4, 6):
        store = FaultStore(local(tmp_path))
        store.fail("read_into", "blobs/*", nth=nth, times=None)  # what fails only once is tried once more
        try:
            READS[reader](store)
            break
        except StoreError:
            assert rotten or read(local(tmp_path)).marks == {}
        READS[reader](local(tmp_path))
    assert nth > 1
