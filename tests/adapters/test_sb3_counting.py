"""Whatever is added, ended, truncated, reset or broken off: what a save keeps of older ones is what the buffer holds. B9"""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer

from milepost.adapters.sb3.counting import Counted, counted
from milepost.adapters.sb3.fields import fields, is_row_wise
from milepost.errors import UsageError
from milepost.state import log as log_module
from milepost.state import rows as rows_module
from milepost.state.pieces import visible
from milepost.state.tree import LiveLeaf, flatten
from tests.state.saves import Generation, Saves

BOX = spaces.Box(-9, 9, (2,), np.float32)
DICT = spaces.Dict({"observation": BOX, "achieved_goal": BOX, "desired_goal": BOX})
ACTION = spaces.Box(-1, 1, (1,), np.float32)


class Twice(ReplayBuffer):
    """Store every transition twice, and the first one of all not at all."""

    def add(self, *args: Any) -> None:  # type: ignore[override]
        super().add(*args)
        super().add(*args)


class Anywhere(ReplayBuffer):
    """Once full, overwrite a row of any place: a reservoir."""

    def add(self, *args: Any) -> None:  # type: ignore[override]
        if not self.full:
            super().add(*args)
        else:
            self.rewards[int(args[3][0]) % self.buffer_size] = args[3]


class TwiceAnEpisode(HerReplayBuffer):
    """Store every transition twice."""

    def add(self, *args: Any) -> None:  # type: ignore[override]
        super().add(*args)
        super().add(*args)


def her(size: int, n_envs: int) -> HerReplayBuffer:
    return HerReplayBuffer(size * n_envs, DICT, ACTION, env=None, device="cpu", n_envs=n_envs)  # type: ignore[arg-type]


def lean(size: int, n_envs: int) -> ReplayBuffer:
    options = {"optimize_memory_usage": True, "handle_timeout_termination": False}
    return ReplayBuffer(size * n_envs, BOX, ACTION, "cpu", n_envs, **options)


KINDS: dict[str, Callable[[int, int], Any]] = {
    "plain": lambda size, n_envs: ReplayBuffer(size * n_envs, BOX, ACTION, "cpu", n_envs),
    "n-step": lambda size, n_envs: NStepReplayBuffer(size * n_envs, BOX, ACTION, "cpu", n_envs),
    "dict": lambda size, n_envs: DictReplayBuffer(size * n_envs, DICT, ACTION, "cpu", n_envs),
    "lean": lean,
    "her": her,
    "her, twice": lambda size, n_envs: TwiceAnEpisode(size * n_envs, DICT, ACTION, None, "cpu", n_envs),  # type: ignore[arg-type]
    "twice": lambda size, n_envs: Twice(size * n_envs, BOX, ACTION, "cpu", n_envs),
    "anywhere": lambda size, n_envs: Anywhere(size * n_envs, BOX, ACTION, "cpu", n_envs),
}


def add(buffer: Any, number: int, dones: int = 0) -> None:
    """Add a transition in which every value says which one it is."""

    def observed(value: float) -> Any:
        one = np.full((buffer.n_envs, 2), value, np.float32)
        return {name: one.copy() for name in DICT.spaces} if isinstance(buffer, DictReplayBuffer) else one

    done = np.array([bool(dones >> env & 1) for env in range(buffer.n_envs)])
    reward = np.full(buffer.n_envs, number, np.float32)
    buffer.add(observed(number), observed(number + 0.5), reward.reshape(-1, 1), reward, done, [{"number": number} for _ in done])


def content(generation: Generation) -> dict[str, dict[int, bytes]]:
    """Return the rows of a generation, read as FORMAT says: where pieces lie over each other the later one is right."""
    _, capacity, count, spans, stored = generation.tree
    found: dict[str, dict[int, bytes]] = {}
    for name, _, _, _, indices in stored:
        rows = found.setdefault(name, {})
        for run in visible([tuple(span) for span in spans], max(0, count - capacity), count):
            first, last = spans[run.piece]
            data = generation.data[indices[run.piece]]
            size = len(data) // (last - first)
            rows.update({row: data[(row - first) * size : (row - first + 1) * size] for row in range(run.start, run.stop)})
    return found


def check_saved(buffer: Any, generation: Generation) -> None:
    """Every row that may be drawn is as it is in the buffer."""
    saved, live = content(generation), fields(buffer)
    assert saved.keys() == live.keys()
    stale = buffer.ep_length.any(axis=1) if isinstance(buffer, HerReplayBuffer) else np.zeros(buffer.buffer_size, bool)
    drawn = [index for index in range(buffer.buffer_size) if buffer.full or index < buffer.pos or stale[index]]
    for name, array in live.items():
        by_index = {row % buffer.buffer_size: data for row, data in saved[name].items()}
        for index in {*drawn, *by_index}:
            assert by_index[index] == array[index].tobytes(), (name, index)
    if buffer.optimize_memory_usage and (buffer.full or buffer.pos):
        # The observation that follows the last action is there, too.
        by_index = {row % buffer.buffer_size: data for row, data in saved["observations"].items()}
        assert by_index[buffer.pos] == buffer.observations[buffer.pos].tobytes()


def saved(buffer: Any, saves: Saves, *, commit: bool = True) -> Generation:
    tracker = counted(buffer)
    tracker.rows.log.piece_bytes = 3 * tracker.rows.row_bytes
    staged = saves.stage(tracker.rows)
    check_saved(buffer, staged[1])
    return saves.commit(staged) if commit else staged[1]


CALM = (st.tuples(st.just("add"), st.integers(1, 5), st.integers(0, 7)), st.tuples(st.just("save"), st.booleans()))
WILD = st.sampled_from([("truncate",), ("reset",), ("broken",), ("copied",)])
OPERATIONS = st.one_of(*(st.lists(st.one_of(*which), min_size=4, max_size=20) for which in (CALM, (*CALM, *CALM, WILD))))


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write not a row too many, and look at nothing that was not said to have changed."""
    monkeypatch.setattr(log_module, "GAP_BYTES", 0)
    monkeypatch.setattr(rows_module, "_unchanged", lambda *_: True)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_of_older_saves_is_what_the_buffer_holds(kind: str) -> None:
    @settings(max_examples=50, deadline=None)
    @given(size=st.integers(1, 9), n_envs=st.integers(1, 3), operations=OPERATIONS)
    # Eight rows, saved; a reset, one row, a reset: nine were counted, and the cursor of nine places is where it should be.
    @example(size=9, n_envs=1, operations=[("add", 8, 0), ("save", True), ("reset",), ("add", 1, 0), ("reset",)])
    def check(size: int, n_envs: int, operations: list[Any]) -> None:
        buffer, saves, number = KINDS[kind](size, n_envs), Saves(), 0
        counted(buffer)
        for what, *how in operations:
            if what == "add":
                for index in range(how[0]):
                    number += 1
                    add(buffer, number, how[1] if index == how[0] - 1 else 0)
            elif what == "save":
                saved(buffer, saves, commit=how[0])
            else:
                buffer = DISTURBANCES[what](buffer)
        saved(buffer, saves)

    check()


def _truncate(buffer: Any) -> Any:
    if isinstance(buffer, HerReplayBuffer) and (buffer._current_ep_start != buffer.pos).any():
        with pytest.warns(UserWarning, match="truncated"):
            buffer.truncate_last_trajectory()
    return buffer


def _reset(buffer: Any) -> Any:
    buffer.reset()
    if isinstance(buffer, HerReplayBuffer):
        buffer._current_ep_start[:] = 0
    return buffer


def _broken(buffer: Any) -> Any:
    observation = {name: np.ones(2, np.float32) for name in DICT.spaces} if isinstance(buffer, DictReplayBuffer) else np.ones(2)
    with pytest.raises(ValueError, match=r"reshape|broadcast"):
        buffer.add(observation, observation, np.zeros((buffer.n_envs, 1)), np.zeros(99), np.zeros(99), [{}] * 99)
    return buffer


DISTURBANCES = {"truncate": _truncate, "reset": _reset, "broken": _broken, "copied": copy.deepcopy}


@pytest.mark.parametrize("kind", ["plain", "n-step", "dict", "lean", "twice"])
def test_a_save_copies_what_was_added_since_the_last_one_and_nothing_else(kind: str) -> None:
    buffer, saves = KINDS[kind](200, 2), Saves()
    tracker = counted(buffer)
    for number in range(730):
        add(buffer, number, 3 if number % 10 == 9 else 0)
    saves.save(tracker.rows)
    for rows in (0, 1, 7, 450):
        before = saves.staged_bytes
        for number in range(rows):
            add(buffer, number)
        saves.save(counted(buffer).rows)
        each = 2 if kind == "twice" else 1
        half = 1 if kind == "lean" and rows else 0
        assert saves.staged_bytes - before == min(rows * each + half, 200) * tracker.rows.row_bytes


def test_of_her_the_episodes_that_ended_or_lost_their_first_row_are_copied_too() -> None:
    buffer, saves = her(200, 1), Saves()
    tracker = counted(buffer)
    for number in range(400):
        add(buffer, number, number % 10 == 9)
    saves.save(tracker.rows)
    for rows, copied in ((1, 10), (8, 8), (1, 10), (20, 20)):
        before = saves.staged_bytes
        for number in range(rows):
            add(buffer, number, int(buffer.pos % 10 == 9))
        saves.save(counted(buffer).rows)
        assert saves.staged_bytes - before == copied * tracker.rows.row_bytes


def test_a_buffer_goes_when_nobody_holds_it_any_more() -> None:
    # It may be as large as half the machine: a reference cycle would keep it until the garbage collector comes by.
    buffer = KINDS["plain"](8, 1)
    add(buffer, 1)
    counted(buffer)
    add(buffer, 2)
    gone = weakref.ref(buffer.observations)
    gc.disable()
    try:
        del buffer
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["plain", "her"])
def test_a_pickled_buffer_is_one_of_stable_baselines3_and_needs_no_milepost(kind: str, tmp_path: Any) -> None:
    buffer = KINDS[kind](8, 1)
    counted(buffer)
    add(buffer, 5, 1)
    data = pickle.dumps(buffer)
    assert b"milepost" not in data
    (tmp_path / "buffer.pkl").write_bytes(data)
    program = (
        "import pickle, sys; sys.modules['milepost'] = None; import numpy as np; "
        f"buffer = pickle.load(open({str(tmp_path / 'buffer.pkl')!r}, 'rb')); "
        "assert (buffer.pos, buffer.rewards[0, 0]) == (1, 5); buffer.add; "
        "assert type(buffer.add).__name__ == 'method' and buffer.add.__self__ is buffer"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    loaded = pickle.loads(data)
    assert isinstance(counted(loaded), Counted)
    add(loaded, 6)
    assert (buffer.pos, loaded.pos, loaded.rewards[1, 0]) == (1, 2, 6)
    gone = weakref.ref(loaded.actions)
    del loaded
    assert gone() is None


def test_a_copy_counts_its_own_rows() -> None:
    buffer = KINDS["plain"](8, 1)
    counted(buffer)
    add(buffer, 1)
    other = copy.deepcopy(buffer)
    add(other, 2)
    assert (buffer.pos, other.pos, counted(buffer).rows.count, counted(other).rows.count) == (1, 2, 1, 2)


def test_what_somebody_else_puts_in_the_place_of_add_is_called_once() -> None:
    buffer = KINDS["plain"](8, 1)
    called: list[float] = []
    first = buffer.add
    buffer.add = lambda *args: (called.append(float(args[3][0])), first(*args))
    counted(buffer)
    add(buffer, 1)
    ours = buffer.add
    buffer.add = lambda *args: (called.append(-float(args[3][0])), ours(*args))
    tracker = counted(buffer)
    add(buffer, 2)
    assert called == [1, -2, 2]
    assert (buffer.pos, tracker.rows.count) == (2, 2)


def test_arrays_that_were_replaced_are_other_content() -> None:
    buffer, saves = KINDS["plain"](8, 1), Saves()
    saved(buffer, saves)
    add(buffer, 1)
    saved(buffer, saves)
    buffer.rewards = buffer.rewards.copy()
    buffer.rewards[0] = 7
    before = counted(buffer).rows
    staged = saves.stage(before)
    check_saved(buffer, staged[1])
    assert before.arrays["rewards"] is buffer.rewards
    live = [
        leaf for leaf in staged[0].leaves if isinstance(leaf, LiveLeaf) and leaf.path.rpartition(".")[2].startswith("rewards")
    ]
    assert sum(leaf.spec.shape[0] for leaf in live) == buffer.pos, "nothing of what was saved is relied on"


def test_a_cursor_that_was_moved_is_told_once() -> None:
    buffer = KINDS["plain"](8, 1)
    tracker, saves = counted(buffer), Saves()
    add(buffer, 1)
    saved(buffer, saves)
    told = []
    for _ in range(3):
        buffer.pos = (buffer.pos + 3) % 8
        flatten(counted(buffer).rows, "looked at")
        flat, _ = saves.stage(counted(buffer).rows)
        told.append(flat.logs[0].doubt)
    assert told == ["the buffer's cursor was moved, and not by add()", "", ""]
    assert tracker is counted(buffer)


class Weighted(ReplayBuffer):
    """Keep a weight with each row."""

    milepost_rows: Any = ("weights",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.weights = np.zeros(self.buffer_size)

    def add(self, *args: Any) -> None:  # type: ignore[override]
        self.weights[self.pos] = args[3][0]
        super().add(*args)


def test_a_class_says_which_more_of_its_arrays_are_written_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, saves = Weighted(8, BOX, ACTION), Saves()
    add(buffer, 3)
    assert "weights" in fields(buffer)
    saved(buffer, saves)
    monkeypatch.setattr(Weighted, "milepost_rows", None)
    assert not is_row_wise(buffer)
    monkeypatch.setattr(Weighted, "milepost_rows", ("wieghts",))
    with pytest.raises(UsageError, match="wieghts"):
        fields(buffer)
