"""An env that nobody knows is named at the first save, with what to do; each of those ways makes it exact."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import NormalizeObservation, TimeLimit

from milepost import envs
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.store.memory import MemoryStore
from tests.adapters.sb3_runs import in_child
from tests.envs.told import bits


class Core(ctypes.Structure):
    """The memory of a simulator that is written in C. It can be compared and pickled, of which few can boast."""

    _fields_ = (("level", ctypes.c_double), ("flow", ctypes.c_double), ("age", ctypes.c_long))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Core) and bytes(self) == bytes(other)

    __hash__ = None  # type: ignore[assignment]


class Tank(gym.Env[Any, Any]):
    """Fill a leaking tank. Somebody else wrote it: its state lies in memory that python's walkers know nothing of."""

    def __init__(self) -> None:
        self.action_space = gym.spaces.Box(0, 1, (1,), np.float32)
        self.observation_space = gym.spaces.Box(-10, 10, (1,), np.float64)
        self.core: Any = Core()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.core.level, self.core.flow, self.core.age = self.np_random.uniform(), 0.0, 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.core.flow = 0.9 * self.core.flow + float(action[0]) - 0.3 * self.core.level + 0.1 * self.np_random.normal()
        self.core.level += 0.1 * self.core.flow
        self.core.age += 1
        return self.seen(), -abs(self.core.level - 1), bool(self.core.age > 50 + 10 * self.core.level), False, {}

    def seen(self) -> Any:
        # The flow is not shown: whoever restores what is seen has not restored the env.
        return np.array([self.core.level])


class Speaking(Tank):
    """It speaks for itself."""

    def milepost_get_state(self) -> Any:
        return {"core": bytes(self.core), "rng": self.np_random.bit_generator.state}

    def milepost_set_state(self, state: Any) -> None:
        ctypes.memmove(ctypes.addressof(self.core), state["core"], ctypes.sizeof(Core))
        self.np_random.bit_generator.state = state["rng"]


@envs.register_plain
class Rewritten(Tank):
    """Its state was moved to plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.level, self.flow, self.age = 0.0, 0.0, 0
        del self.core

    @property
    def core(self) -> Any:
        return self

    @core.setter
    def core(self, _: Any) -> None: ...

    @core.deleter
    def core(self) -> None: ...


class Spoken(Tank):
    """Functions speak for it."""


@envs.allow_pickle
class Pickled(Tank):
    """Its pickles are copies."""


@envs.register_replayed
class Told(Tank):
    """It is told the same again."""


envs.register_snapshotter(Spoken, Speaking.milepost_get_state, Speaking.milepost_set_state)
WAYS = {Speaking: "own", Rewritten: "plain", Spoken: "snapshot", Pickled: "pickle", Told: "replay"}


def wrapped(cls: type[Tank]) -> Any:
    return NormalizeObservation(TimeLimit(cls(), 40))


def drive(env: Any, steps: int, seed: int) -> list[Any]:
    """Return the bits of all that the env gives. The actions are not drawn from its space: a class speaks for its own state."""
    given, rng = [], np.random.default_rng(seed)
    for _ in range(steps):
        given.append(bits(env.step(rng.uniform(0, 1, 1).astype(np.float32))))
        if given[-1][2] == "True" or given[-1][3] == "True":
            given.append(bits(env.reset()))
    return given


@pytest.fixture
def told() -> Any:
    texts: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    handler = Collect(logging.WARNING)
    logging.getLogger("milepost").addHandler(handler)
    yield texts
    logging.getLogger("milepost").removeHandler(handler)


def test_an_unknown_env_is_named_at_the_first_save_and_in_the_manifest_with_what_to_do(told: list[str]) -> None:
    env = wrapped(Tank)
    env.reset(seed=1)
    store = MemoryStore()
    with CheckpointEngine(store, state={"envs": envs.Envs(env)}, writer="inline") as engine:
        for step in range(3):
            drive(env, 5, step)
            engine.save(step)
        summary = engine.peek()
    (text,) = [text for text in told if "Tank" in text]
    assert summary is not None
    (component,) = [component for component in summary.components if component.name == "envs"]
    assert component.exactness == "not captured"
    for said in (text, component.reason):
        assert "NormalizeObservation/TimeLimit/Tank (nobody knows its state" in said
        for way in ("milepost_get_state", "register_snapshotter", "register_plain", "register_replayed", "allow_pickle"):
            assert way in said


@pytest.mark.parametrize("cls", WAYS, ids=WAYS.values())
def test_the_same_env_is_exact_by_each_of_the_ways(cls: type[Tank], tmp_path: Path) -> None:
    # Saved in one process, brought back in another.
    def first() -> Any:
        env = wrapped(cls)
        part = envs.Envs(env)
        env.reset(seed=3)
        drive(env, 97, 1)
        with CheckpointEngine(tmp_path / "run", state={"envs": part}, writer="inline") as engine:
            engine.save(1)
        assert (part.left_out(), _innermost(part.state_dict())["way"]) == ((), WAYS[cls])
        return drive(env, 120, 3)

    def second() -> Any:
        env = wrapped(cls)
        env.reset(seed=77)
        drive(env, 13, 2)
        with CheckpointEngine(tmp_path / "run", state={"envs": envs.Envs(env)}, writer="inline") as engine:
            engine.resume()
        return drive(env, 120, 3)

    alone = in_child(first)
    assert in_child(second) == alone


@pytest.mark.parametrize("cls", WAYS, ids=WAYS.values())
def test_every_variant_is_the_same_env(cls: type[Tank]) -> None:
    given = []
    for each in (Tank, cls):
        env = wrapped(each)
        env.reset(seed=3)
        given.append(drive(env, 90, 4))
    assert given[0] == given[1]


def _innermost(tree: Any) -> Any:
    while tree["inner"]:
        (tree,) = tree["inner"]
    return tree
