"""The prioritized buffer of the examples draws the same rows after a kill, and costs its new rows and its trees. B3, B13, B20"""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.buffers import ReplayBuffer

from examples.prioritized_replay import PrioritizedReplayBuffer, make_model
from milepost import CheckpointEngine, Keep, Rng
from milepost.adapters.sb3 import Checkpointing, replay
from milepost.adapters.sb3.fields import fields
from milepost.adapters.sb3.part import ArrayPart
from milepost.lifecycle.triggers import every
from milepost.store.memory import MemoryStore
from tests.adapters.sb3_runs import KILLED, KillAt, env_of, in_child, pieces

STEPS = 260


class Remembering(PrioritizedReplayBuffer):
    """Keep every index that was ever drawn, beside the state."""

    def sample(self, batch_size: int, env: Any = None) -> Any:
        found = super().sample(batch_size, env)
        DRAWN.append(self.drawn.tolist())
        return found


DRAWN: list[list[int]] = []


def run(root: Path | None, kill_at: int | None = None, seed: int = 1) -> Any:
    def script() -> Any:
        DRAWN.clear()
        model = make_model(
            seed,
            env_of("CartPole-v1", 2),
            buffer_size=100,
            learning_starts=40,
            batch_size=16,
            policy_kwargs={"net_arch": [16]},
            replay_buffer_class=Remembering,
        )
        ours = [] if root is None else [Checkpointing(root, when=every(steps=40), writer="inline")]
        model.learn(STEPS, callback=[*ours, KillAt(kill_at)])
        return pieces(model), list(DRAWN)

    return in_child(script)


def test_the_same_rows_are_drawn_as_if_it_had_not_been_killed(tmp_path: Path) -> None:
    alone, drawn = run(None)
    assert run(tmp_path / "run", 170) == KILLED
    ended, later = run(tmp_path / "run", seed=2)
    assert ended == alone
    assert 0 < len(later) < len(drawn)
    assert later == drawn[-len(later) :]


def test_the_trees_are_no_rows_and_the_transitions_are() -> None:
    buffer = make_model(1).replay_buffer
    assert fields(buffer).keys() == fields(ReplayBuffer(8, buffer.observation_space, buffer.action_space)).keys()
    assert np.shares_memory(fields(buffer)["rewards"], buffer.rewards)


class Annealed(PrioritizedReplayBuffer):
    """Correct more and more for what was drawn with preference, as the paper does."""

    def update(self, errors: np.ndarray[Any, Any]) -> None:
        super().update(errors)
        self.beta = min(1.0, self.beta + 0.05)


BOX, ACTION = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)
MADE = {"fixed": PrioritizedReplayBuffer, "annealed": Annealed}


def engine_of(store: MemoryStore, buffer: Any) -> CheckpointEngine:
    """Return an engine whose state is the buffer, as the adapter saves it, and the generators."""
    subject: Any = SimpleNamespace(model=SimpleNamespace(replay_buffer=buffer), left_out={}, settings=lambda *_: {})
    replay.begin(subject)
    part = ArrayPart("replay", subject, replay.capture, replay.restore, replay.differences)
    return CheckpointEngine(store, state={"replay": part, "rng": Rng()}, writer="inline", keep=Keep(last=3))


def act(buffer: Any, what: str, number: int) -> list[Any]:
    """Add, draw or learn; return what a learner would have seen of it."""
    if what == "add":
        seen = np.full((buffer.n_envs, 2), number, np.float32)
        buffer.add(
            seen,
            seen + 1,
            np.zeros((buffer.n_envs, 1)),
            np.full(buffer.n_envs, number),
            np.zeros(buffer.n_envs),
            [{}] * buffer.n_envs,
        )
        return []
    if not buffer.size():
        return []
    batch = buffer.sample(4)
    told = [buffer.drawn.tolist(), buffer.weights().numpy().tobytes(), batch.rewards.numpy().tobytes()]
    if what == "learn":
        buffer.update(np.sin(buffer.drawn + number))
    return told


ACTS = st.lists(st.sampled_from(["add", "add", "draw", "learn", "save"]), min_size=1, max_size=20)


@pytest.mark.parametrize("kind", MADE)
@settings(max_examples=25)
@given(size=st.integers(1, 9), n_envs=st.integers(1, 2), before=ACTS, after=ACTS)
def test_after_a_resume_every_index_and_weight_is_as_without_it(
    kind: str, size: int, n_envs: int, before: list[str], after: list[str]
) -> None:
    store, numbers = MemoryStore(), itertools.count(1)
    np.random.seed(size)
    straight = MADE[kind](size * n_envs, BOX, ACTION, "cpu", n_envs)
    with engine_of(store, straight) as engine:
        for what in [*before, "save"]:
            number = next(numbers)
            if what == "save":
                engine.save(number)
            else:
                act(straight, what, number)
        later = [(what, next(numbers)) for what in after if what != "save"]
        expected = [act(straight, what, number) for what, number in later]
    np.random.seed(99)
    fresh = MADE[kind](size * n_envs, BOX, ACTION, "cpu", n_envs)
    arrays = {name: vars(fresh)[name] for name in ("sums", "minima", "observations")}
    with engine_of(store, fresh) as engine:
        engine.resume()
        assert [act(fresh, what, number) for what, number in later] == expected
    assert (fresh.highest, fresh.beta) == (straight.highest, straight.beta)
    assert all(vars(fresh)[name] is array for name, array in arrays.items())
    for tree in ("sums", "minima"):
        assert vars(fresh)[tree].tobytes() == vars(straight)[tree].tobytes()
    check_trees(fresh)


def check_trees(buffer: PrioritizedReplayBuffer) -> None:
    """Check that every node says what its children do: sampling probabilities would be others."""
    node = np.arange(1, buffer.leaves)
    assert (buffer.sums[node] == buffer.sums[2 * node] + buffer.sums[2 * node + 1]).all()
    assert (buffer.minima[node] == np.minimum(buffer.minima[2 * node], buffer.minima[2 * node + 1])).all()


@pytest.mark.parametrize("lost", ["sums", "minima", "highest"])
def test_each_of_them_is_felt_when_it_is_lost(lost: str) -> None:
    np.random.seed(1)
    straight = PrioritizedReplayBuffer(8, BOX, ACTION, "cpu", 1)
    for number in range(11):
        act(straight, "add", number)
        straight.sample(4)
        straight.update(np.full(4, 1.5 + number))
    other = copy.deepcopy(straight)
    vars(other)[lost] = vars(PrioritizedReplayBuffer(8, BOX, ACTION, "cpu", 1))[lost]
    seen = []
    for buffer in (straight, other):
        np.random.seed(2)
        act(buffer, "add", 99)
        seen.append([act(buffer, "draw", number) for number in range(3)])
    assert seen[0] != seen[1]
