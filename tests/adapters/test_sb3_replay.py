"""A replay buffer comes back as it was: into any process, from any generation, of any form, into its own arrays. B9, B12"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3 import SAC, HerReplayBuffer
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv

from milepost import CheckpointEngine, Keep, MismatchError, every
from milepost.adapters.sb3 import Checkpointing, replay
from milepost.adapters.sb3.counting import counting
from milepost.adapters.sb3.fields import fields
from milepost.adapters.sb3.part import ArrayPart
from milepost.state import rows as rows_module
from milepost.store.memory import MemoryStore
from tests.adapters.sb3_runs import Reach, her, off_policy
from tests.adapters.test_sb3_counting import ACTION, BOX, DICT, KINDS, add


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at nothing that was not said to have changed."""
    monkeypatch.setattr(rows_module, "_unchanged", lambda *_: True)


def engine_of(store: MemoryStore, buffer: Any, **options: Any) -> CheckpointEngine:
    """Return an engine whose state is the buffer, as the adapter saves it."""
    subject: Any = SimpleNamespace(model=SimpleNamespace(replay_buffer=buffer), left_out={})
    replay.begin(subject)
    log = counting(buffer).rows.log
    log.gap_bytes, log.piece_bytes = 0, 3 * counting(buffer).rows.row_bytes  # not a row too many
    part = ArrayPart("replay", subject, replay.capture, replay.restore, replay.differences)
    return CheckpointEngine(store, state={"replay": part}, writer="inline", **{"keep": Keep(last=4), **options})


def all_of(buffer: Any) -> dict[str, Any]:
    """Return a copy of every value that a draw could depend on, and of the memory beyond."""
    return {
        "cursor": (int(buffer.pos), bool(buffer.full), repr(getattr(buffer, "_current_ep_start", ""))),
        "infos": repr(getattr(buffer, "infos", np.zeros(0)).tolist()),
        **{name: array.tobytes() for name, array in fields(buffer).items()},
    }


def infos_kept(size: int, n_envs: int) -> Any:
    return HerReplayBuffer(size * n_envs, DICT, ACTION, None, "cpu", n_envs, copy_info_dict=True)  # type: ignore[arg-type]


BUFFERS = {**{name: KINDS[name] for name in ("plain", "dict", "lean", "her")}, "infos": infos_kept}
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 7), st.integers(0, 7)),
        st.tuples(st.just("save"), st.none()),
        st.tuples(st.just("load"), st.integers(0, 3)),
        st.tuples(st.just("fresh"), st.none()),
    ),
    min_size=4,
    max_size=16,
)


@pytest.mark.parametrize("kind", BUFFERS)
def test_every_generation_comes_back_in_this_process_and_in_another(kind: str) -> None:
    @settings(max_examples=25, deadline=None)
    @given(size=st.integers(1, 8), n_envs=st.integers(1, 2), operations=OPERATIONS)
    def check(size: int, n_envs: int, operations: list[Any]) -> None:
        store, numbers, held = MemoryStore(), itertools.count(1), {}
        buffer = BUFFERS[kind](size, n_envs)
        engine = engine_of(store, buffer)
        engine.claim()
        for what, *how in [*operations, ("save", None), ("fresh", None)]:
            if what == "add":
                for index in range(how[0]):
                    add(buffer, next(numbers), how[1] if index == how[0] - 1 else 0)
            elif what == "save":
                engine.save(next(numbers))
                saved = engine.wait()
                assert saved is not None
                held[saved.number] = all_of(buffer)
                held = {number: held[number] for number in sorted(held)[-4:]}
            elif held:
                number = max(held) if what == "fresh" else sorted(held)[how[0] % len(held)]
                arrays = fields(buffer)
                if what == "fresh":
                    engine.close()
                    buffer = BUFFERS[kind](size, n_envs)
                    engine = engine_of(store, buffer)
                    arrays = fields(buffer)
                engine.resume(number)
                assert all_of(buffer) == held[number]
                assert all(array is arrays[name] for name, array in fields(buffer).items())
        engine.close()

    check()


@pytest.mark.parametrize("kind", ["plain", "dict", "lean", "her"])
@pytest.mark.parametrize("rows", [5, 21])
def test_a_generation_from_before_there_were_rows_comes_back(kind: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Every array whole, under its attribute's name: what milepost wrote until then.
    store, buffer = MemoryStore(), KINDS[kind](8, 2)
    with monkeypatch.context() as then:
        then.setattr(replay, "is_row_wise", lambda _: False)
        with engine_of(store, buffer) as engine:
            for number in range(rows):
                add(buffer, number, 3 if number % 4 == 3 else 0)
            engine.save(1)
    other = KINDS[kind](8, 2)
    with engine_of(store, other) as engine:
        engine.resume()
        assert all_of(other) == all_of(buffer)
        add(buffer, 99, 1)
        add(other, 99, 1)
        engine.save(2)
    third = KINDS[kind](8, 2)
    with engine_of(store, third) as engine:
        engine.resume()
    assert all_of(third) == all_of(buffer)


def test_after_an_old_generation_nothing_is_kept_of_a_newer_one_though_its_cursor_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, buffer = MemoryStore(), KINDS["plain"](8, 1)
    with engine_of(store, buffer) as engine:
        for number in range(11):
            add(buffer, number)
        with monkeypatch.context() as then:
            then.setattr(replay, "is_row_wise", lambda _: False)
            engine.save(1)
        expected = all_of(buffer)
        for number in range(20, 28):
            add(buffer, number)
        engine.save(2)
        assert all_of(buffer)["cursor"] == expected["cursor"]
        engine.resume(1)
        engine.save(3)
    other = KINDS["plain"](8, 1)
    with engine_of(store, other) as engine:
        engine.resume()
    assert all_of(other) == all_of(buffer) == expected


def test_rows_come_back_into_a_buffer_whose_class_has_declared_that_any_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    store, buffer, other = MemoryStore(), KINDS["dict"](8, 2), KINDS["dict"](8, 2)
    with engine_of(store, buffer) as engine:
        for number in range(11):
            add(buffer, number)
        engine.save(1)
    expected = all_of(buffer)
    monkeypatch.setattr(ReplayBuffer, "milepost_rows", None, raising=False)
    with engine_of(store, other) as engine:
        engine.resume()
    assert all_of(other) == expected


@pytest.mark.parametrize("old", [False, True])
def test_a_buffer_of_another_shape_is_refused_with_every_difference(old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    store, buffer = MemoryStore(), KINDS["plain"](8, 2)
    with monkeypatch.context() as then:
        if old:
            then.setattr(replay, "is_row_wise", lambda _: False)
        with engine_of(store, buffer) as engine:
            add(buffer, 1)
            engine.save(1)
    other = ReplayBuffer(27, BOX, ACTION, "cpu", 3)
    engine = engine_of(store, other)
    with engine, pytest.raises(MismatchError) as caught:
        engine.resume()
    found = {(difference.path, difference.kind) for difference in caught.value.differences}
    assert found == {(f"replay/{name}", "shape") for name in fields(other)}
    lean = KINDS["lean"](8, 2)
    with engine_of(store, lean) as engine, pytest.raises(MismatchError) as caught:
        engine.resume()
    assert [(difference.path, difference.kind) for difference in caught.value.differences] == [
        ("replay/next_observations", "missing")
    ]


def test_what_a_class_of_ones_own_gathers_beside_its_rows_is_data() -> None:
    # Nothing yet, another length, another key than a fresh one has: but not another kind of array.
    store, buffer, other = MemoryStore(), KINDS["plain"](8, 1), KINDS["plain"](8, 1)
    for one in (buffer, other):
        vars(one).update(drawn=np.zeros(0, np.int64), seen={}, best=None, tree=np.zeros(16))
    buffer.drawn, buffer.seen, buffer.best = np.arange(3), {"wins": {"a": np.ones(2)}}, np.float32(3)
    with engine_of(store, buffer) as engine:
        engine.save(1)
    with engine_of(store, other) as engine:
        engine.resume()
    assert (other.drawn.tolist(), other.best, other.seen["wins"]["a"].tolist()) == ([0, 1, 2], 3, [1, 1])
    other.tree = np.zeros(16, np.float32)
    with engine_of(store, other) as engine, pytest.raises(MismatchError) as caught:
        engine.resume()
    assert [(difference.path, difference.kind) for difference in caught.value.differences] == [("replay/tree", "dtype")]


@pytest.mark.parametrize(
    ("disturb", "told"),
    [
        (lambda buffer: buffer.reset(), "the buffer's cursor was moved, and not by add()"),
        (lambda buffer: setattr(buffer, "rewards", buffer.rewards.copy()), "an array of the buffer was replaced"),
        (lambda buffer: buffer.rewards.fill(7), "were changed, and nobody said so"),
    ],
)
def test_why_a_buffer_is_saved_whole_is_told(
    disturb: Any, told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.undo()  # what was not said to have changed is looked at
    store, buffer = MemoryStore(), KINDS["plain"](8, 1)
    with engine_of(store, buffer) as engine:
        for number in range(11):
            add(buffer, number)
        engine.save(1)
        disturb(buffer)
        engine.save(2)
        engine.save(3)
    assert caplog.text.count(told) == 1
    assert any(told.encode() in store.read(entry.name) for entry in store.list("events/"))


def test_observations_may_have_any_names() -> None:
    # They stand in the paths of the pieces, between slashes, dots and brackets.
    space = spaces.Dict(dict.fromkeys(("cam.front", "a/b", "x[0:3]", "ü ", "observations"), BOX))

    def made() -> Any:
        return DictReplayBuffer(8, space, ACTION, "cpu")

    store, buffer, other = MemoryStore(), made(), made()
    with engine_of(store, buffer) as engine:
        for number in range(13):
            seen = {name: np.full((1, 2), number + place, np.float32) for place, name in enumerate(space.spaces)}
            buffer.add(seen, seen, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
            if number % 3 == 0:
                engine.save(number)
        engine.save(13)
    with engine_of(store, other) as engine:
        engine.resume()
    assert all_of(other) == all_of(buffer)


def test_the_count_goes_on_where_the_checkpoint_was() -> None:
    store, buffer = MemoryStore(), KINDS["plain"](8, 1)
    with engine_of(store, buffer) as engine:
        for number in range(21):
            add(buffer, number)
        engine.save(1)
    other = KINDS["plain"](8, 1)
    with engine_of(store, other) as engine:
        engine.resume()
        assert counting(other).rows.count == 21


def test_infos_that_are_no_plain_data_are_named_and_the_others_come_back(caplog: pytest.LogCaptureFixture) -> None:
    store, buffer, other = MemoryStore(), infos_kept(8, 1), infos_kept(8, 1)
    with engine_of(store, buffer) as engine:
        add(buffer, 1)
        add(buffer, 2)
        buffer.infos[1, 0]["file"] = object()
        counting(buffer).recount(buffer)
        engine.save(1)
    assert "`replay` is saved without replay_buffer.infos[0]['file'] (a `object` is not plain data)" in caplog.text
    with engine_of(store, other) as engine:
        engine.resume()
    assert [row[0] for row in other.infos[:2]] == [{"number": 1}, {}]


class Unknown(Reach):
    """A goal environment of which milepost knows nothing: it is reset at a resume."""


@pytest.mark.parametrize("with_her", [True, False])
def test_where_the_environment_is_reset_the_episode_in_the_buffer_ends(with_her: bool) -> None:
    # What is added after the reset is no successor of what was added before it, and HER must not draw goals across.
    def learnt(store: MemoryStore, steps: int) -> Any:
        made = her if with_her else off_policy
        model = made(SAC, 1, DummyVecEnv([Unknown]), learning_starts=10_000)
        return model.learn(steps, callback=Checkpointing(store, when=every(steps=10), writer="inline")).replay_buffer

    store, ends = MemoryStore(), 0
    for steps in range(10, 60, 7):
        before = learnt(store, steps)
        if before.dones[before.pos - 1]:
            continue
        ends += 1
        after = learnt(store, steps + 1)
        assert after.timeouts[before.pos - 1]
        assert not with_her or (after.ep_length[before.pos - 1] and after._current_ep_start == before.pos)
    assert ends
