"""A layer is pickled only where that is allowed, and only where the copy proves to be one."""

from __future__ import annotations

import copy
import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils import EzPickle

from milepost import envs
from milepost.envs.likeness import unlike
from milepost.envs.pickles import Pickled
from milepost.envs.plain import Recorder


class Rabbit:
    """A thing in a field, which is not plain data."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.place = 0.0
        self.friend: Rabbit | None = None

    def hop(self) -> None:
        self.place += self.rng.normal()


class Field(gym.Env[Any, Any]):
    """An env that somebody else wrote: objects that know each other and share a generator."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Discrete(3)
        self.rabbits: list[Rabbit] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.rabbits = [Rabbit(self.np_random), Rabbit(self.np_random)]
        self.rabbits[0].friend, self.rabbits[1].friend = self.rabbits[1], self.rabbits[0]
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        for rabbit in self.rabbits:
            rabbit.hop()
        self.rabbits[0].friend.place += action + self.np_random.random()  # type: ignore[union-attr]
        return self._seen(), 0.0, False, False, {}

    def _seen(self) -> Any:
        return np.array([rabbit.place for rabbit in self.rabbits])


@envs.allow_pickle
class OpenField(Field):
    """The same, allowed to be pickled."""


class Watched(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper with its own object, which holds the env within as well."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.rabbit = Rabbit(np.random.default_rng(5))
        self.field = env.unwrapped

    def step(self, action: Any) -> Any:
        self.rabbit.hop()
        observation, *rest = self.env.step(action)
        return observation + self.rabbit.place + self.field.rabbits[0].place, *rest  # type: ignore[attr-defined]


envs.allow_pickle(Watched)


def play(env: gym.Env[Any, Any], steps: int) -> list[Any]:
    return [env.step(env.action_space.sample())[0].tobytes() for _ in range(steps)]


def started(env: gym.Env[Any, Any], seed: int) -> gym.Env[Any, Any]:
    env.action_space.seed(seed)
    env.reset(seed=seed)
    play(env, 20)
    return env


def captured(env: Any) -> tuple[Any, str]:
    recorder = Recorder()
    state = Pickled().capture(env, recorder, "it")
    return state, "; ".join(map(str, recorder.left_out))


def test_what_was_allowed_and_is_a_copy_comes_back_in_place() -> None:
    env = started(Watched(OpenField()), 1)
    state = envs.capture(env)
    assert (state.left_out, state.tree["way"], state.tree["inner"][0]["way"]) == ((), "pickle", "pickle")
    saved = copy.deepcopy(state.tree)
    expected = play(env, 50)
    fresh: Any = started(Watched(OpenField()), 2)
    base, space = fresh.unwrapped, fresh.action_space
    envs.restore(fresh, saved)
    assert fresh.unwrapped is fresh.field is base
    assert fresh.action_space is base.action_space is space
    assert fresh.unwrapped.rabbits[1].rng is base.np_random
    assert play(fresh, 50) == expected


def test_nobody_pickles_what_was_not_allowed() -> None:
    state = envs.capture(started(Field(), 1))
    assert state.tree["way"] == "none"
    assert state.left_out[0].path == "Field"


class Remade(OpenField, EzPickle):
    def __init__(self) -> None:
        EzPickle.__init__(self)
        super().__init__()


class Forgetful(OpenField):
    def __getstate__(self) -> Any:
        return {**vars(self), "rabbits": self.rabbits[::-1]}


class Drawing(OpenField):
    def __setstate__(self, state: Any) -> None:
        np.random.random()
        vars(self).update(state)


class Locked(OpenField):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Hidden(OpenField):
    """What it holds says nothing of itself, and is pickled by name."""

    def __init__(self) -> None:
        super().__init__()
        self.table = TABLE


class Named:
    def __reduce__(self) -> str:
        return "TABLE"


TABLE = Named()


class Split(OpenField):
    """Two arrays over one memory: pickles take them apart."""

    def __init__(self) -> None:
        super().__init__()
        self.all = np.zeros(10)
        self.part = self.all[2:4]


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (Remade, "EzPickle"),
        (Forgetful, "it.rabbits[0].place"),
        (Locked, "cannot pickle '_thread.lock' object"),
        (Hidden, "the pickle names this `Named`"),
        (Split, "it.part: it shares its memory"),
    ],
)
def test_a_copy_that_is_not_like_the_original_is_refused_and_named(cls: type[Field], reason: str) -> None:
    state, left_out = captured(started(cls(), 1))
    assert state is None
    assert reason in left_out


def test_proving_a_pickle_draws_nothing() -> None:
    env = started(Drawing(), 1)
    np.random.seed(3)
    before = np.random.get_state()[2]
    state, _ = captured(env)
    assert state is not None
    assert np.random.get_state()[2] == before


def test_a_layer_that_could_not_be_pickled_is_not_whole() -> None:
    envs.allow_pickle(Locked)
    tree = envs.capture(started(Locked(), 1)).tree
    assert (tree["way"], tree["state"], envs.is_whole(tree)) == ("pickle", None, False)


class Bare:
    __slots__ = ("__secret", "value")

    def __init__(self, value: int) -> None:
        self.value, self.__secret = value, value


@pytest.mark.parametrize(
    ("live", "other"),
    [
        (Bare(1), Bare(2)),
        ([1.0], [-1.0]),
        ([0.0], [-0.0]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1, 2}, {1, 3}),
        ([[1], [1]], [[1]] * 2),
        (np.random.default_rng(1), np.random.default_rng(2)),
        (np.array([Bare(1)], object), np.array([Bare(2)], object)),
        (iter([1, 2]), iter([1, 2])),
        ([1, 2], (1, 2)),
        (np.zeros(2), np.zeros(3)),
    ],
)
def test_what_differs_is_found(live: Any, other: Any) -> None:
    assert unlike(live, other, (), "it") is not None
    assert unlike([live], [other], (), "it") is not None


def test_what_was_copied_is_like_it_however_it_hangs_together() -> None:
    loop: list[Any] = [Bare(3), {"rng": np.random.default_rng(1), (1, 2): {3.5}}, np.arange(4), 1 + 2j, b"x"]
    loop.append(loop)
    loop.append(loop[0])
    assert unlike(loop, copy.deepcopy(loop), (), "it") is None
