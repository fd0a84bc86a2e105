"""An env whose state nobody can read comes back by being told the same again, and where it would not, that is found out."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import random
import weakref
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import NormalizeObservation, RecordEpisodeStatistics, StickyAction, TimeLimit

from milepost import envs
from milepost.envs import box2d, recording
from milepost.errors import MismatchError
from tests.envs.told import LANDERS, Walk, bits, captured, goes_on_alike, lander, play, reason


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


def test_attaching_changes_no_bit_and_draws_no_number() -> None:
    given = []
    for attached in (False, True):
        env = lander(continuous=True)
        env.action_space.seed(3)
        random.seed(1)
        np.random.seed(1)
        if attached:
            envs.attach(env)
        given.append([bits(env.reset(seed=5))])
        if attached:
            envs.attach(env)
        for _ in range(5):
            given[-1] += play(env, 40)
            if attached:
                envs.capture(env)
        generators = [env.unwrapped.np_random.bit_generator.state, random.getstate(), bits(np.random.get_state()[1])]
        given[-1].append(generators)
    assert given[0] == given[1]


@pytest.mark.parametrize("make", [lander, Walk, lambda: lander(render_mode="rgb_array")])
def test_an_attached_env_looks_like_itself_and_detached_it_is_as_before(make: Callable[[], Any]) -> None:
    env = make().unwrapped
    before, signatures = dict(vars(env)), [inspect.signature(env.reset), inspect.signature(env.step)]
    envs.attach(env)
    envs.attach(env)
    assert [inspect.signature(env.reset), inspect.signature(env.step)] == signatures
    recording.detach(env)
    assert vars(env) == before


def test_a_pickle_or_a_copy_of_an_attached_env_is_the_env_it_was() -> None:
    env = gym.make("CartPole-v1").unwrapped
    recording.attach(env, recording.Replayed())
    env.reset(seed=1)
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert b"milepost" not in pickle.dumps(other)
        assert bits(other.step(1)) == bits(copy.deepcopy(env).step(1))
        assert other.step.__func__ is type(env).step
        fresh = recording.attach(other, recording.Replayed())
        assert recording.recording_of(other) is fresh


def test_an_attached_env_goes_when_nobody_holds_it() -> None:
    env = Walk()
    envs.attach(env)
    env.reset(seed=1)
    env.step(np.zeros(1))
    gone = weakref.ref(env)
    gc.disable()
    try:
        del env
        assert gone() is None
    finally:
        gc.enable()


# What is told


def walked(steps: int = 5, size: int = 1, **reset: Any) -> Walk:
    env = Walk(size)
    envs.attach(env)
    env.action_space.seed(1)
    env.reset(**{"seed": 3, **reset})
    play(env, steps)
    return env


def test_draws_of_others_between_steps_are_followed() -> None:
    # A wrapper that repeats actions draws from the generator of the env within: replayed without, the steps would draw other
    # numbers.
    def make() -> gym.Env[Any, Any]:
        return StickyAction(TimeLimit(Walk(2), 40), 0.4, (2, 4))

    env = make()
    envs.attach(env)
    env.action_space.seed(1)
    env.reset(seed=3)
    play(env, 70)
    env.unwrapped.np_random.normal(size=3)
    assert goes_on_alike(make, env, 60)


def test_a_sticky_lander_goes_on_as_it_would_have() -> None:
    def make() -> gym.Env[Any, Any]:
        return StickyAction(lander(), 0.3)

    env = make()
    envs.attach(env)
    env.reset(seed=3)
    play(env, 90)
    assert goes_on_alike(make, env, 90)


@pytest.mark.parametrize("options", [None, {"from": 5}, {"from": np.float32(2.5)}])
def test_the_arguments_of_a_reset_are_a_part_of_the_episode(options: Any) -> None:
    env = walked(0, options=options)
    if options:
        options["from"] = 1000
    play(env, 4)
    assert goes_on_alike(Walk, env, 9)


@pytest.mark.parametrize("resets", [1, 2, 3])
def test_an_episode_that_began_without_a_seed_comes_back(resets: int) -> None:
    env = Walk()
    envs.attach(env)
    for _ in range(resets):
        env.reset()
        play(env, 3)
    assert goes_on_alike(Walk, env, 9)


def test_what_is_saved_does_not_change_when_the_env_goes_on() -> None:
    # Observations and actions may be one array, changed at every step.
    env = walked()
    tree = envs.capture(env).tree
    before = bits(tree)
    play(env, 3)
    assert bits(tree) == before


def test_a_restored_episode_is_known_so_that_it_can_be_saved_again() -> None:
    env = walked(5)
    first = captured(env)
    other = Walk()
    envs.restore(other, first)
    assert bits(captured(other)) == bits(first)
    for each in (env, other):
        play(each, 7)
    assert bits(captured(other)) == bits(captured(env))


def test_rendering_moves_what_a_lander_shows_and_is_told_again() -> None:
    env = lander(render_mode="rgb_array")
    envs.attach(env)
    env.reset(seed=3)
    for step in range(40):
        env.step(2)
        if step % 3 == 0:
            env.render()
    saved, shown = captured(env), bits(env.render())
    other = lander(render_mode="rgb_array")
    envs.restore(other, saved)
    assert bits(other.render()) == shown
    assert len(other.unwrapped.particles) == len(env.unwrapped.particles) > 0


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda env: _fail(env), "a call of `step` was broken off"),
        (lambda env: _odd(env), "not made of numbers"),
        (lambda env: env.step(action=np.zeros(1)), "otherwise than by"),
        (lambda env: setattr(env, "np_random", np.random.Generator(np.random.MT19937(1))), "generator was replaced"),
        (lambda env: env.reset(options={"from": 0, "by": object()}), "not plain data"),
    ],
)
def test_what_cannot_be_followed_is_told_and_captured_again_from_the_next_reset(spoil: Callable[[Any], Any], why: str) -> None:
    env = walked()
    spoil(env)
    assert why in reason(env)
    env.reset(seed=4)
    play(env, 4)
    assert goes_on_alike(Walk, env, 9)


def _fail(env: Walk) -> None:
    env.fails = True
    with pytest.raises(RuntimeError):
        env.step(np.zeros(1))
    env.fails = False


def _odd(env: Walk) -> None:
    class Odd(np.ndarray[Any, Any]):
        pass

    env.step(np.zeros(1).view(Odd))


def test_another_generator_than_gymnasiums_is_told() -> None:
    env = walked()
    env.np_random = np.random.Generator(np.random.MT19937(1))
    env.reset()
    assert "PCG64" in reason(env)


def test_an_episode_longer_than_was_allowed_is_told_and_kept_no_longer() -> None:
    class Long(Walk):
        pass

    envs.register_replayed(Long, longest=10)
    env = Long()
    envs.attach(env)
    env.reset(seed=1)
    play(env, 10)
    captured(env)
    play(env, 1)
    assert "longer than 10" in reason(env)
    assert recording.recording_of(env).actions.steps == 0  # type: ignore[union-attr]


# What outlives a reset


class Lesson(Walk):
    """An env whose lessons get harder, and last from episode to episode."""

    level = 0

    def reset(self, **kwargs: Any) -> Any:
        self.level += 1
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
    make, env = lesson(carries=("level",))
    assert goes_on_alike(make, env, 9)


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
    naive.unwrapped._np_random = recording.rng.make_generator(told.start["np_random"])  # type: ignore[union-attr]
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


def test_a_save_costs_what_was_added_and_shares_the_rest_with_the_one_before() -> None:
    env = walked(6000)
    first = envs.capture(env).tree["state"]["actions"][0]["data"]
    play(env, 100)
    second = envs.capture(env).tree["state"]["actions"][0]["data"]
    assert len(first) == 3
    assert all(one is other for one, other in zip(first[:2], second[:2], strict=True))
