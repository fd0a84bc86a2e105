"""An env whose state nobody can read comes back by being told the same again, and where it would not, that is found out."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import NormalizeObservation, RecordEpisodeStatistics

from milepost import Keep, envs
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.envs import box2d, recording
from milepost.envs.actionlog import PIECE_BYTES
from milepost.envs.plain import Refiller
from milepost.errors import MismatchError
from milepost.publish import layout
from milepost.publish.manifest import decode_manifest
from milepost.publish.view import read
from milepost.store.memory import MemoryStore
from tests.envs.told import LANDERS, Walk, bits, captured, goes_on_alike, lander, play, reason, walked


@pytest.mark.parametrize("warm_up", [0, 1, 57, 333])
@pytest.mark.parametrize("name", LANDERS)
def test_a_lander_goes_on_in_another_env_as_it_would_have(name: str, warm_up: int) -> None:
    env = lander(**LANDERS[name])
    env.action_space.seed(1)
    env.reset(seed=7)
    envs.attach(env)
    play(env, warm_up)
    assert goes_on_alike(lambda: lander(**LANDERS[name]), env, 150)


@pytest.mark.parametrize("options", [{}, {"continuous": False, "domain_randomize": True}])
def test_a_car_goes_on_in_another_env_as_it_would_have(options: dict[str, Any]) -> None:
    # 5 ms a step: few.
    def make() -> gym.Env[Any, Any]:
        return gym.make("CarRacing-v3", max_episode_steps=12, **options)

    env = make()
    env.action_space.seed(1)
    env.reset(seed=7)
    envs.attach(env)
    play(env, 40)
    assert goes_on_alike(make, env, 30)


def test_a_car_keeps_nothing_of_the_world_it_has_driven_in() -> None:
    # What `milepost.envs.box2d` claims: episodes in a used world have the bits of those in a new one.
    def drive(env: Any, seed: int) -> list[Any]:
        given, rng = [bits(env.reset(seed=seed))], np.random.default_rng(seed)
        for _ in range(60):
            action = np.array([rng.uniform(-1, 1), rng.uniform(), rng.choice([0, 0, 0.5, 1])], np.float32)
            given.append([bits(env.step(action)[1:]), bits(box2d._car(env))])
        return given

    def car() -> Any:
        env = gym.make("CarRacing-v3").unwrapped
        env._render = lambda _: None
        return env

    used = car()
    for seed in range(5):
        assert drive(used, seed) == drive(car(), seed)


# What outlives a reset


class Lesson(Walk):
    """An env whose lessons get harder, and last from episode to episode."""

    level = 0

    def __init__(self) -> None:
        super().__init__()
        self.levels = np.zeros(1)

    def reset(self, **kwargs: Any) -> Any:
        self.level += 1
        self.levels[:] = self.level
        super().reset(**kwargs)
        self._hidden.place += self.level  # type: ignore[attr-defined]
        return self._hidden.place, {}  # type: ignore[attr-defined]


def lesson(**options: Any) -> Any:
    cls = type("Lesson", (Lesson,), {"__module__": __name__})
    envs.register_replayed(cls, **options)

    def make() -> Any:
        return cls()

    env = make()
    envs.attach(env)
    for _ in range(3):
        env.reset(seed=3)
        play(env, 4)
    return make, env


def test_an_env_of_which_something_outlives_a_reset_is_found_out_before_training_goes_on() -> None:
    make, env = lesson()
    saved, other = captured(env), make()
    with pytest.raises(MismatchError) as caught:
        envs.restore(other, saved)
    assert caught.value.kind == "env-lies"
    (found,) = caught.value.differences
    assert "observation[0]" in found.path
    assert float(found.saved.rpartition("(")[2].strip(")")) == pytest.approx(float(found.live.rpartition("(")[2].strip(")")) + 2)


def test_what_outlives_a_reset_can_be_named() -> None:
    make, env = lesson(carries=("level", "levels"))
    assert goes_on_alike(make, env, 9)
    assert captured(env)["state"]["start"]["carried"]["levels"].tolist() == [2]


def test_an_env_that_draws_elsewhere_is_found_out() -> None:
    class Elsewhere(Walk):
        def step(self, action: Any) -> Any:
            self.np_random.normal(size=int(np.random.default_rng().integers(2, 9)))
            return super().step(0 * action - 1e9)

    envs.register_replayed(Elsewhere)
    env = Elsewhere()
    envs.attach(env)
    env.reset(seed=1)
    play(env, 6)
    with pytest.raises(MismatchError) as caught:
        envs.restore(Elsewhere(), captured(env))
    assert caught.value.kind == "env-lies"


def test_an_env_that_cannot_be_told_again_is_found_out() -> None:
    env = walked()
    saved, other = captured(env), Walk()
    other.fails = True
    with pytest.raises(MismatchError) as caught:
        envs.restore(other, saved)
    assert caught.value.kind == "env-lies"
    assert "RuntimeError: half done" in str(caught.value)
    assert "could not be told again" in reason(other)


def test_a_layer_around_another_env_is_not_told_again() -> None:
    class Around(gym.Wrapper[Any, Any, Any, Any]):
        pass

    envs.register_replayed(Around)
    env = Around(lander())
    env.reset(seed=1)
    assert "only the innermost" in reason(env)


def test_an_env_that_shows_the_same_and_is_another_is_found_out() -> None:
    env = lander()
    env.reset(seed=1)
    saved = captured(env)
    for spoil, what in ((lambda proof: proof["live"]["bodies"].__setitem__((0, 2), 0.5), "['live']['bodies'][0, 2]"),
                        (lambda proof: proof.update(np_random=bytes(48)), "['np_random']")):  # fmt: skip
        other = copy.deepcopy(saved)
        spoil(_innermost(other)["state"]["proof"])
        with pytest.raises(MismatchError) as caught:
            envs.restore(env, other)
        assert caught.value.kind == "env-lies"
        assert caught.value.differences[0].path.endswith(what)


def test_a_replay_through_running_normalizers_is_wrong_and_that_of_the_innermost_layer_is_right() -> None:
    def make() -> Any:
        return NormalizeObservation(RecordEpisodeStatistics(lander(max_episode_steps=60)))

    env = make()
    envs.attach(env)
    env.action_space.seed(2)
    env.reset(seed=1)
    play(env, 130)
    saved = captured(env)
    # The naive way: a new stack of wrappers, the same start, the same actions, all the way from the outside.
    naive, told = make(), recording.recording_of(env.unwrapped)
    naive.unwrapped._np_random = Refiller().value(told.start["np_random"], None, "")  # type: ignore[union-attr]
    naive.reset()
    for action in told.actions:  # type: ignore[union-attr]
        naive.step(action)
    expected = play(env, 60)
    envs.restore(naive.unwrapped, _innermost(saved))
    assert play(naive, 60) != expected
    other = make()
    other.reset(seed=5)
    envs.restore(other, saved)
    assert play(other, 60) == expected


def _innermost(tree: Any) -> Any:
    while tree["inner"]:
        (tree,) = tree["inner"]
    return tree


# Settings


def test_a_setting_that_the_script_makes_otherwise_is_refused_before_anything_changes() -> None:
    env = lander(gravity=-9.0)
    env.reset(seed=1)
    saved = captured(env)
    other = lander(gravity=-5.0)
    other.reset(seed=2)
    before = bits(captured(other))
    with pytest.raises(MismatchError) as caught:
        envs.restore(other, saved)
    (found,) = caught.value.differences
    assert (found.saved, found.live) == ("-9.0", "-5.0")
    assert found.path.endswith("LunarLander.gravity")
    assert bits(captured(other)) == before


def test_a_setting_that_training_has_changed_comes_back_with_the_episode() -> None:
    env = lander()
    envs.attach(env)
    env.action_space.seed(1)
    env.unwrapped.gravity = -3.0
    env.reset(seed=1)
    play(env, 20)
    assert goes_on_alike(lander, env, 200)


def test_a_setting_changed_in_the_middle_of_an_episode_is_told() -> None:
    env = lander(enable_wind=True)
    env.reset(seed=1)
    captured(env)
    env.unwrapped.wind_power = 3.0
    assert "`wind_power` was changed" in reason(env)


# Costs


def test_the_cost_of_a_replay_is_told() -> None:
    venv = gym.vector.SyncVectorEnv([lambda: lander(continuous=True), lambda: lander(continuous=True)])
    venv.reset(seed=1)
    envs.attach(venv)
    for _ in range(9):
        venv.step(venv.action_space.sample())
    costs = list(envs.replay_costs(envs.capture(venv).tree))
    assert [(cost.steps, cost.size_bytes) for cost in costs] == [(9, 72), (9, 72)]
    assert costs[1].path.startswith("SyncVectorEnv[1]/TimeLimit/")
    assert str(costs[0]).endswith("LunarLander: 9 actions, 72 bytes")


def test_a_save_writes_the_actions_that_are_new_and_the_last_piece() -> None:
    # 8 bytes an action; what is full equals the parent generation's, and is not written again.
    env, store = walked(6000), MemoryStore()
    sizes: list[dict[Any, int]] = []
    with CheckpointEngine(store, state={"envs": env}, writer="inline", keep=Keep(last=3)) as engine:
        for step in range(3):
            engine.save(step)
            play(env, 100)
    for number in sorted(read(store).live):
        record = decode_manifest(store.read(layout.manifest(number)), layout.manifest(number)).component("envs")
        assert record is not None
        sizes.append({(leaf.path, leaf.digest): leaf.size_bytes for leaf in record.leaves})
    assert [sum(leaves.values()) > 8 * 6000 for leaves in sizes] == [True, True, True]
    for before, after in pairwise(sizes):
        assert sum(size for leaf, size in after.items() if leaf not in before) <= PIECE_BYTES + 8 * 100 + 1024
