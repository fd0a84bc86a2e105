"""An env that lies is caught before training goes on, and what does not fit is refused before anything is changed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from milepost import envs
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.envs.compare import first_difference
from milepost.envs.plain import same
from milepost.errors import MilepostError, MismatchError

WIND = {"now": 0.0}


class Honest(gym.Env[Any, Any]):
    """An env that shows what it is."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2, 2), np.float64)
        self.action_space = spaces.Discrete(2)
        self.place = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = 0.0
        WIND["now"] = float(self.np_random.random())
        return self.milepost_observe(), {}

    def step(self, action: Any) -> Any:
        WIND["now"] += 0.5
        self.place += 1.0
        return self.milepost_observe(), 0.0, False, False, {}

    def milepost_observe(self) -> Any:
        return np.array([[self.place, 0.0], [0.0, WIND["now"]]])

    def milepost_get_state(self) -> Any:
        return {"place": self.place, "wind": WIND["now"]}

    def milepost_set_state(self, state: Any) -> None:
        self.place, WIND["now"] = state["place"], state["wind"]


class Liar(Honest):
    """An env that forgets what lies outside of it."""

    def milepost_set_state(self, state: Any) -> None:
        self.place = state["place"]


@envs.register_plain
class PlainLiar(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that was declared to be plain, and is not."""

    def milepost_observe(self) -> Any:
        return WIND["now"]


class Silent(gym.Env[Any, Any]):
    """An env that shows nothing and does not take back what it gave."""

    observation_space = action_space = spaces.Discrete(2)
    place = 3

    def milepost_get_state(self) -> Any:
        return {"place": self.place, "rng": np.random.default_rng(1)}

    def milepost_set_state(self, state: Any) -> None:
        pass


def walked(env: Any, seed: int, steps: int) -> Any:
    env.reset(seed=seed)
    for _ in range(steps):
        env.step(0)
    return env


def test_an_env_that_shows_what_it_showed_is_believed() -> None:
    saved = copy.deepcopy(envs.capture(walked(TimeLimit(Honest(), 99), 1, 5)).tree)
    fresh = walked(TimeLimit(Honest(), 99), 2, 9)
    envs.restore(fresh, saved)
    assert fresh.unwrapped.place == 5


def test_an_env_that_lies_is_named_with_the_first_element_and_both_values() -> None:
    env = gym.vector.SyncVectorEnv([Honest, lambda: TimeLimit(Liar(), 99)])
    env.reset(seed=1)
    saved = copy.deepcopy(envs.capture(env).tree)
    told = saved["inner"][1]["inner"][0]["observed"][1, 1]
    saved["inner"][0]["observed"][1, 1] = saved["inner"][0]["state"]["wind"] = 7.5
    WIND["now"] = 0.25
    with pytest.raises(MismatchError) as caught:
        envs.restore(env, saved)
    (found,) = caught.value.differences
    assert caught.value.kind == "env-lies"
    assert found.path == "SyncVectorEnv[1]/TimeLimit/Liar observation[1, 1]"
    assert (found.saved, found.live) == (f"{told!r}", "np.float64(7.5)")


def test_what_was_declared_plain_can_show_that_it_is_not() -> None:
    env = walked(PlainLiar(Honest()), 1, 5)
    saved = copy.deepcopy(envs.capture(env).tree)
    saved["inner"][0] = copy.deepcopy(envs.capture(walked(Honest(), 2, 3)).tree)
    with pytest.raises(MismatchError, match="PlainLiar observation: saved"):
        envs.restore(env, saved)


def test_an_env_that_does_not_take_back_what_it_gave_is_caught_without_showing_anything() -> None:
    saved = copy.deepcopy(envs.capture(Silent()).tree)
    envs.restore(Silent(), saved)
    other = Silent()
    other.place = 4
    with pytest.raises(MismatchError, match=r"Silent state\['place'\]: saved 3, here 4"):
        envs.restore(other, saved)


def test_an_engine_neither_goes_on_nor_saves_with_an_env_that_lies(tmp_path: Path) -> None:
    with CheckpointEngine(tmp_path / "run", state={"envs": walked(Liar(), 1, 5)}) as engine:
        engine.save(5)
        engine.wait()
    with CheckpointEngine(tmp_path / "run", state={"envs": walked(Liar(), 2, 3)}) as engine:
        with pytest.raises(MismatchError, match="observation"):
            engine.resume()
        with pytest.raises(MilepostError):
            engine.save(6)


SIMPLE = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5))
ARRAYS = nps.arrays(st.sampled_from(["f8", "f4", "u1", "bool", "i8"]), nps.array_shapes(min_dims=0, max_dims=3, max_side=3))
TREES = st.recursive(
    SIMPLE | ARRAYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(TREES, TREES)
def test_the_first_difference_is_there_if_and_only_if_two_trees_are_not_the_same_bits(one: Any, other: Any) -> None:
    assert first_difference(one, copy.deepcopy(one), "it") is None
    found = first_difference(one, other, "it")
    assert (found is None) == same(one, other)
    if found is not None:
        assert found.path.startswith("it")
        assert found.saved != found.live


@given(ARRAYS.filter(lambda array: array.size > 0), st.data())
def test_one_changed_byte_is_named_by_its_place(array: np.ndarray, data: st.DataObject) -> None:
    other = array.copy()
    at = data.draw(st.integers(0, array.size - 1))
    other.reshape(-1).view(np.uint8)[at * array.itemsize] ^= 1
    found = first_difference(array, other, "it")
    assert found is not None
    assert found.path == ("it" + str(list(map(int, np.unravel_index(at, array.shape)))) if array.ndim else "it")
    assert found.saved != found.live
