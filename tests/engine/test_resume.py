"""A resume: in place, compared before the first assignment, the newest healthy generation, generators last. B12, B16"""

from __future__ import annotations

import io
import logging
import random
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milepost.engine import reader
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.engine.mismatch import Mismatches
from milepost.errors import CorruptError, MilepostError, MismatchError, NotFoundError, UsageError
from milepost.lifecycle.retain import Keep
from milepost.publish.view import read
from milepost.records import Difference
from milepost.state.rng import Rng
from milepost.testing.faults import FaultStore
from tests.engine.training import Training, bits, local, set_to, state_at


def train(where: Path, *steps: int, **settings: Any) -> None:
    with Training(where, **settings) as training:
        training.engine.resume()
        for step in steps:
            training.save(step)


class Net:
    """An object with state of its own, as a module of a framework is."""

    def __init__(self, value: float) -> None:
        self.weight = np.full(4, value)

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def load_state_dict(self, state: Any) -> None:
        self.weight[:] = state["weight"]


def test_everything_comes_back_in_place(tmp_path: Path) -> None:
    def make(value: int) -> dict[str, Any]:
        return {
            "policy": {"w": np.full((3, 2), value, np.float32), "net": Net(value), "nested": [np.full(2, value), {"n": value}]},
            "counters": OrderedDict(step=value),
            "rollout": deque([value, value + 1], maxlen=4),
            "extra": {"set": {value}, "bytes": bytearray([value]), "none": None, "text": str(value)},
            "replay": np.full(5, value, np.uint8),
        }

    saved = make(7)
    with CheckpointEngine(tmp_path, state=saved, writer="inline") as engine:
        engine.save(7)
    live = make(1)
    holders = [
        *(live, live["policy"], live["policy"]["w"], live["policy"]["net"], live["policy"]["net"].weight),
        *(live["policy"]["nested"], live["policy"]["nested"][0], live["policy"]["nested"][1], live["counters"]),
        *(live["rollout"], live["extra"], live["extra"]["set"], live["extra"]["bytes"], live["replay"]),
    ]
    before = [id(holder) for holder in holders]
    with CheckpointEngine(tmp_path, state=live, writer="inline") as engine:
        assert engine.resume() is not None
    after = [
        *(live, live["policy"], live["policy"]["w"], live["policy"]["net"], live["policy"]["net"].weight),
        *(live["policy"]["nested"], live["policy"]["nested"][0], live["policy"]["nested"][1], live["counters"]),
        *(live["rollout"], live["extra"], live["extra"]["set"], live["extra"]["bytes"], live["replay"]),
    ]
    assert [id(holder) for holder in after] == before
    assert live["policy"]["w"].tolist() == saved["policy"]["w"].tolist()
    assert live["policy"]["net"].weight.tolist() == [7.0] * 4
    assert live["policy"]["nested"][1] == {"n": 7}
    assert live["rollout"] == deque([7, 8], maxlen=4)
    assert (live["counters"], live["extra"], live["replay"].tolist()) == (saved["counters"], saved["extra"], [7] * 5)


def test_a_run_without_any_generation_starts_anew(tmp_path: Path) -> None:
    with Training(tmp_path) as training:
        assert training.engine.resume() is None
        assert training.is_at(0)
        assert training.save(1).number == 1


def test_a_best_of_nothing_is_a_fresh_start_and_a_number_of_nothing_is_not(tmp_path: Path) -> None:
    with Training(tmp_path, keep=Keep(best=1, by="return")) as training:
        assert training.engine.resume("best") is None
        with pytest.raises(NotFoundError) as caught:
            training.engine.resume(3)
        assert caught.value.kind == "no-such-generation"


def test_what_was_restored_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Training(tmp_path) as training:
        training.save(1, counters={"updates": 12}, episodes=3)
    with Training(tmp_path) as training, caplog.at_level(logging.INFO, "milepost"):
        restored = training.engine.resume()
    assert restored is not None
    assert (restored.generation, restored.step, restored.counters) == (1, 1, {"episodes": 3, "epochs": 0, "updates": 12})
    assert restored.components == ("policy", "optimizer", "replay", "counters")
    assert restored.exact
    assert "restored global_step=1 generation=1 exact=yes" in caplog.text


def test_peek_says_what_a_resume_would_take_and_loads_nothing(tmp_path: Path) -> None:
    train(tmp_path, 1, 2)
    with Training(tmp_path) as training:
        summary = training.engine.peek()
        assert summary is not None
        assert (summary.number, summary.step) == (2, 2)
        assert training.is_at(0)
        with pytest.raises(UsageError):
            training.engine.save(3)
        assert training.engine.resume().generation == 2  # type: ignore[union-attr]


def test_the_second_resume_of_a_process_does_what_the_first_did(tmp_path: Path) -> None:
    train(tmp_path, 1, 2)
    with Training(tmp_path) as training:
        first = training.engine.resume()
        training.train_to(9)
        assert training.engine.resume() == first
        assert training.is_at(2)
        assert training.save(3).number == 3


def test_a_running_process_goes_back_and_saves_on_from_there(tmp_path: Path) -> None:
    with Training(tmp_path, keep=Keep(last=5)) as training:
        for step in (1, 2, 3):
            training.save(step)
        restored = training.engine.resume(1)
        assert restored is not None
        assert restored.step == 1
        assert training.is_at(1)
        saved = training.save(2)
        assert (saved.number, saved.parent, saved.rollback_to) == (4, 3, 1)
        assert sorted(read(training.store).live) == [1, 2, 3, 4]
        assert training.save(3).rollback_to is None
    with Training(tmp_path) as training:
        assert training.engine.resume().generation == 5  # type: ignore[union-attr]
        assert training.is_at(3)


def test_starting_anew_keeps_what_was_there_until_two_generations_exist(tmp_path: Path) -> None:
    train(tmp_path, 1, 2, keep=Keep(last=2))
    with Training(tmp_path, keep=Keep(last=1)) as training:
        assert training.engine.resume("never") is None
        assert training.is_at(0)
        first = training.save(1)
        assert (first.number, first.parent, first.rollback_to) == (3, 2, 0)
        assert sorted(read(training.store).live) == [1, 2, 3]
        training.save(2)
        assert sorted(read(training.store).live) == [4]


def test_the_best_generation_is_taken_when_asked_for(tmp_path: Path) -> None:
    keep = Keep(last=3, best=1, by="return")
    with Training(tmp_path, keep=keep) as training:
        for step, score in ((1, 5.0), (2, 9.0), (3, float("nan")), (4, 7.0)):
            training.train_to(step)
            training.engine.report(step, {"return": score})
            training.save(step)
    with Training(tmp_path, keep=keep) as training:
        restored = training.engine.resume("best")
        assert restored is not None
        assert restored.step == 2
        assert training.is_at(2)


def test_generators_are_restored_last_whatever_restoring_the_others_draws(tmp_path: Path) -> None:
    class Draws(Net):
        def load_state_dict(self, state: Any) -> None:
            super().load_state_dict(state)
            np.random.rand(3)
            random.random()

    own = np.random.default_rng(5)
    state = {"rng": Rng(own=own), "policy": Draws(1)}
    with CheckpointEngine(tmp_path, state=state, writer="inline") as engine:
        engine.save(1)
        expected = (np.random.rand(), random.random(), own.random())
        np.random.rand(50)
        own.random(9)
        engine.resume()
        assert (np.random.rand(), random.random(), own.random()) == expected


def test_a_warm_up_evaluation_draws_no_number_of_the_run(tmp_path: Path) -> None:
    state: dict[str, Any] = {"policy": Net(1), "rng": Rng()}
    with CheckpointEngine(tmp_path, state=state, writer="inline") as engine:
        engine.save(1)
        expected = (np.random.rand(), random.random())

    def evaluate() -> bool:
        return np.random.rand() + random.random() < 2

    with CheckpointEngine(tmp_path, state=state, writer="inline", health_eval=evaluate) as engine:
        engine.resume()
        assert (np.random.rand(), random.random()) == expected


def test_a_failed_warm_up_evaluation_walks_back_to_the_newest_that_passes(tmp_path: Path) -> None:
    train(tmp_path, 1, 2, 3, keep=Keep(last=3))
    seen: list[int] = []

    def evaluate() -> bool:
        seen.append(training.state["counters"]["step"])
        return seen[-1] < 2

    training = Training(tmp_path, health_eval=evaluate)
    with training:
        restored = training.engine.resume()
        assert restored is not None
        assert restored.generation == 1
        assert training.is_at(1)
        assert [text.split(":")[0] for text in restored.skipped] == ["generation 3 unhealthy", "generation 2 unhealthy"]
        assert seen == [3, 2, 1]
        assert read(training.store).marks == {}, "an evaluation is no damage"
        assert training.save(2).rollback_to == 1


def test_where_every_evaluation_fails_the_engine_refuses_to_save_what_is_left(tmp_path: Path) -> None:
    train(tmp_path, 1, 2)
    with Training(tmp_path, health_eval=lambda: False) as training:
        with pytest.raises(CorruptError) as caught:
            training.engine.resume()
        assert caught.value.kind == "nothing-valid"
        with pytest.raises(CorruptError):
            training.engine.save(3)
    assert sorted(read(local(tmp_path)).live) == [1, 2]


def test_an_interrupted_evaluation_leaves_an_engine_that_saves_only_after_another_resume(tmp_path: Path) -> None:
    train(tmp_path, 1)
    answers: list[Any] = [KeyboardInterrupt(), True]

    def evaluate() -> bool:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return bool(answer)

    with Training(tmp_path, health_eval=evaluate) as training:
        with pytest.raises(KeyboardInterrupt):
            training.engine.resume()
        with pytest.raises(UsageError) as caught:
            training.engine.save(2)
        assert caught.value.kind == "half-loaded"
        training.engine.resume()
        assert training.save(2).number == 2


def test_nan_in_weights_is_noted_and_such_a_generation_is_not_resumed_unless_asked_for(tmp_path: Path) -> None:
    with Training(tmp_path, keep=Keep(last=3)) as training:
        training.save(1)
        training.train_to(2)
        training.state["optimizer"]["moments"][0][3] = np.inf
        training.engine.save(2)
        saved = training.engine.wait()
        assert saved is not None
        assert (saved.healthy, saved.nonfinite) == (False, ("optimizer/moments[0]",))
    with Training(tmp_path) as training:
        restored = training.engine.resume()
        assert restored is not None
        assert restored.generation == 1
        assert restored.skipped == ("generation 2 unhealthy: not finite: optimizer/moments[0]",)
        assert training.engine.resume(2).generation == 2  # type: ignore[union-attr]


def test_a_generation_saved_in_a_hurry_is_taken_only_when_there_is_no_complete_one(tmp_path: Path) -> None:
    with Training(tmp_path, keep=Keep(last=3)) as training:
        training.save(1, complete=False)
        training.save(2)
        training.save(3, complete=False)
    with Training(tmp_path) as training:
        assert training.engine.resume().generation == 2  # type: ignore[union-attr]
        assert training.engine.resume(3).generation == 3  # type: ignore[union-attr]


def test_a_component_that_is_not_exact_is_told_at_each_resume(tmp_path: Path) -> None:
    exactness: Any = {"replay": ("approximate", "the ring is not saved"), "policy": ("exact", "")}
    train(tmp_path, 1, exactness=exactness)
    with Training(tmp_path) as training:
        restored = training.engine.resume()
        assert restored is not None
        assert restored.inexact == ("replay: approximate (the ring is not saved)",)
        assert not restored.exact


def test_a_fingerprint_that_differs_warns_by_its_kind_and_says_that_bits_may_differ(tmp_path: Path) -> None:
    train(tmp_path, 1, fingerprint={"env/id": "CartPole-v1", "threads/mine": "1", "version/sim": "2.0"})
    with Training(tmp_path, fingerprint={"env/id": "CartPole-v1", "threads/mine": "4", "version/sim": "2.0"}) as training:
        restored = training.engine.resume()
        assert restored is not None
        assert restored.warnings == ("threads/mine: saved 1, here 4",)
        assert restored.inexact == restored.warnings
    with Training(tmp_path, fingerprint={"env/id": "Pong-v5", "threads/mine": "1", "version/sim": "2.0"}) as training:
        with pytest.raises(MismatchError) as caught:
            training.engine.resume()
        assert caught.value.kind == "env"
        assert training.is_at(0)


@pytest.mark.parametrize(("policy", "error"), [("warn", None), ("error", "version")])
def test_what_a_difference_means_is_the_users_to_say(tmp_path: Path, policy: Any, error: str | None) -> None:
    train(tmp_path, 1, fingerprint={"version/sim": "1"})
    with Training(tmp_path, fingerprint={"version/sim": "2"}, on_mismatch={"version": policy}) as training:
        if error is None:
            assert training.engine.resume() is not None
        else:
            with pytest.raises(MismatchError) as caught:
                training.engine.resume()
            assert caught.value.kind == error


@pytest.mark.parametrize(("answer", "goes_on"), [("y", True), (" YES\n", True), ("n", False), ("", False)])
def test_asking_shows_every_difference_and_goes_on_only_with_a_yes(answer: str, goes_on: bool) -> None:
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return answer

    mismatches = Mismatches({"version": "ask", "env": "ask"}, ask=ask)
    found = [
        Difference("version/a", "1", "2", "version"),
        Difference("env/n", "4", "8", "env"),
        Difference("x", "1", "2", "machine"),
    ]
    if goes_on:
        assert mismatches.judge(found, root="r", generation=1) == list(map(str, found))
    else:
        with pytest.raises(MismatchError) as caught:
            mismatches.judge(found, root="r", generation=1)
        assert len(caught.value.differences) == 2
    assert len(asked) == 1
    assert "version/a: saved 1, here 2" in asked[0]
    assert "env/n: saved 4, here 8" in asked[0]


def test_nobody_is_asked_what_would_be_refused_anyway_nor_where_nobody_can_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(question: str) -> str:
        pytest.fail("asked in vain")

    found = [Difference("version/a", "1", "2", "version"), Difference("w", "f", "g", "shape")]
    with pytest.raises(MismatchError):
        Mismatches({"version": "ask"}, ask=ask).judge(found, root="r", generation=1)
    monkeypatch.setattr("sys.stdin", io.StringIO("y"))
    with pytest.raises(MismatchError):
        Mismatches({"version": "ask"}).judge(found[:1], root="r", generation=1)


def test_a_missing_replay_warns_and_a_missing_policy_is_an_error_and_strict_takes_no_warning(tmp_path: Path) -> None:
    train(tmp_path, 1)

    def resume(without: str, **settings: Any) -> Any:
        state = {name: value for name, value in state_at(0).items() if name != without}
        with CheckpointEngine(tmp_path, state=state, writer="inline", **settings) as engine:
            return engine.resume()

    restored = resume("replay")
    assert restored.warnings == ("replay: saved a component, here nothing",)
    assert restored.inexact == restored.warnings
    assert not restored.exact
    for without, settings in (("policy", {}), ("optimizer", {}), ("counters", {}), ("replay", {"strict": True})):
        with pytest.raises(MismatchError) as caught:
            resume(without, **settings)
        assert [difference.path for difference in caught.value.differences] == [without]


def test_a_component_that_is_new_in_the_script_warns_or_is_an_error_by_what_it_is(tmp_path: Path) -> None:
    train(tmp_path, 1)
    state = state_at(0) | {"normalizer": {"mean": 0.0}}
    with CheckpointEngine(tmp_path, state=state, writer="inline") as engine:
        restored = engine.resume()
        assert restored is not None
        assert restored.warnings == ("normalizer: saved nothing, here a component",)
        assert not restored.exact
    state = state_at(0) | {"value": np.zeros(1)}
    with CheckpointEngine(tmp_path, state=state, writer="inline") as engine, pytest.raises(MismatchError):
        engine.resume()


def test_a_full_disk_that_cannot_take_a_mark_keeps_nobody_from_a_sound_generation(tmp_path: Path) -> None:
    train(tmp_path, 1, 2)
    blob = read(local(tmp_path)).live[2].blobs[0].name
    data = bytearray((tmp_path / blob).read_bytes())
    data[-1] ^= 1
    (tmp_path / blob).write_bytes(data)
    store = FaultStore(local(tmp_path))
    store.fail("replace", "quarantine/*", times=None)
    with Training(store) as training:
        assert training.engine.resume().generation == 1  # type: ignore[union-attr]
        assert training.is_at(1)


def test_bytes_that_turn_bad_while_they_are_loaded_are_overwritten_whole_from_the_generation_before(tmp_path: Path) -> None:
    train(tmp_path, 1, 2)
    newest = read(local(tmp_path)).live[2].blobs[0].name

    class Rots(FaultStore):
        """Lie about the newest blob once it has been verified."""

        verified = False

        def read_into(self, name: str, start: int, into: memoryview) -> int:
            got = super().read_into(name, start, into)
            if name == newest and self.verified and start > 500:
                into[:1] = bytes([into[0] ^ 1])
            return got

    store = Rots(local(tmp_path))
    with Training(store) as training:
        training.engine.peek()
        store.verified = True
        restored = training.engine.resume()
        assert restored is not None
        assert restored.generation == 1
        assert training.is_at(1), "no leaf of the damaged generation stays"
        assert restored.skipped[0].startswith("generation 2 damaged")
        assert 2 in read(training.store).marks


def test_with_nothing_left_to_fall_back_to_the_half_loaded_state_is_never_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "HELD_BYTES", 0)  # all of it goes straight into place, as what is large does
    train(tmp_path, 1)
    only = read(local(tmp_path)).live[1].blobs[0].name

    class Rots(FaultStore):
        verified = False

        def read_into(self, name: str, start: int, into: memoryview) -> int:
            got = super().read_into(name, start, into)
            if name == only and self.verified and start > 500:
                into[:1] = bytes([into[0] ^ 1])
            return got

    store = Rots(local(tmp_path))
    with Training(store) as training:
        training.engine.peek()
        store.verified = True
        with pytest.raises(CorruptError) as caught:
            training.engine.resume()
        assert caught.value.kind == "nothing-valid"
        assert not training.is_at(0), "this test wants a state that was touched"
        for action in (lambda: training.engine.save(2), lambda: training.engine.save(3)):
            with pytest.raises(MilepostError):
                action()
        assert training.engine.resume("never") is None
        with pytest.raises(MilepostError):
            training.engine.save(4)
        store.verified = False
        assert training.engine.resume().generation == 1  # type: ignore[union-attr]
        assert training.is_at(1)
        assert training.save(2).number == 2
    assert bits(state_at(2)) == bits(training.state)


def test_a_store_that_fails_is_not_damage_and_the_next_try_succeeds(tmp_path: Path) -> None:
    train(tmp_path, 1, 2)
    store = FaultStore(local(tmp_path))
    with Training(store) as training:
        store.fail("read_into", "blobs/*")
        with pytest.raises(MilepostError) as caught:
            training.engine.resume()
        assert caught.value.kind == "network"
        assert training.is_at(0)
        assert training.engine.resume().skipped == ()  # type: ignore[union-attr]
        assert training.is_at(2)
        assert read(store).marks == {}


def test_set_to_is_what_state_at_says() -> None:
    state = state_at(0)
    set_to(state, 5)
    assert bits(state) == bits(state_at(5))
