"""An episode that began before milepost saw it is known where another env, made alike, has begun alike; else it is not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.box2d.lunar_lander import LunarLander
from gymnasium.wrappers import StickyAction

from milepost import envs
from milepost.envs import box2d, recording
from milepost.envs.box2d import FreshReset
from tests.envs.told import Walk, bits, captured, goes_on_alike, lander, play, reason, walker


def car(**options: Any) -> gym.Env[Any, Any]:
    return gym.make("CarRacing-v3", max_episode_steps=20, **options)


def fresh_walker(**options: Any) -> gym.Env[Any, Any]:
    return envs.FreshWorld(walker(**options))


def started(make: Callable[[], Any], *resets: dict[str, Any]) -> Any:
    env = make()
    env.action_space.seed(1)
    for arguments in resets:
        env.reset(**arguments)
    return env


def by_hand() -> Any:
    return gym.wrappers.TimeLimit(LunarLander(gravity=-4.0), 60)


@pytest.mark.parametrize("resets", [[{"seed": 7}], [{}], [{"seed": 7}, {}], [{"seed": 7}, {}, {"seed": 2**40}]])
@pytest.mark.parametrize("make", [lander, lambda: lander(continuous=True, enable_wind=True), by_hand, fresh_walker])
def test_an_episode_that_began_before_is_known(make: Callable[[], Any], resets: list[dict[str, Any]]) -> None:
    # So it is with Stable-Baselines3, which resets the env before it calls its callbacks.
    env = started(make, *resets)
    before = copy.deepcopy(env.unwrapped.np_random.bit_generator.state)
    envs.attach(env)
    assert env.unwrapped.np_random.bit_generator.state == before
    captured(env)
    play(env, 20)
    assert goes_on_alike(make, env, 60)


@pytest.mark.parametrize("options", [{}, {"domain_randomize": True}])
def test_a_car_that_stands_at_the_start_is_known(options: dict[str, Any]) -> None:
    env = started(lambda: car(**options), {"seed": 7})
    play(env, 3)
    assert "before milepost saw it" in reason(env)
    env = started(lambda: car(**options), {"seed": 7})
    captured(env)


def test_an_env_that_was_never_reset_is_whole() -> None:
    env = lander()
    saved = captured(env)
    other = lander()
    other.unwrapped.np_random_seed  # noqa: B018 - makes a generator
    envs.restore(other, saved)
    assert other.unwrapped._np_random is None
    assert captured(other) == saved
    env.reset(seed=1)
    play(env, 5)
    assert goes_on_alike(lander, env, 20)


def test_a_generator_that_was_drawn_from_before_the_first_reset_comes_back() -> None:
    env = lander()
    env.unwrapped.np_random.normal(size=3)
    saved = captured(env)
    other = lander()
    envs.restore(other, saved)
    assert bits(other.reset()) == bits(env.reset())


# What could pass for a beginning, and is none


def _stepped_without_a_draw(env: Any) -> None:
    state = env.unwrapped.np_random.bit_generator.state
    env.step(env.action_space.sample())
    env.unwrapped.np_random.bit_generator.state = state


def _pushed(env: Any) -> None:
    env.unwrapped.lander.ApplyLinearImpulse((1.0, 0.0), env.unwrapped.lander.position, True)


def _heavier(env: Any) -> None:
    env.unwrapped.lander.fixtures[0].density = 9.0
    env.unwrapped.lander.ResetMassData()


def _methods(env: Any) -> None:
    base = env.unwrapped
    base.step = lambda action: type(base).step(base, action)


FOOLS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "it was stepped": (lander, lambda env: env.step(0)),
    "it was stepped, and its generator put back": (lander, _stepped_without_a_draw),
    "it was stepped, and counts from there": (lambda: gym.wrappers.TimeLimit(lander(), 50), lambda env: env.unwrapped.step(0)),
    "its steps draw nothing": (fresh_walker, lambda env: env.step(np.zeros(4, np.float32))),
    "something drew from its generator": (lander, lambda env: env.unwrapped.np_random.normal()),
    "its generator was set by hand": (lander, lambda env: setattr(env.unwrapped, "np_random", np.random.default_rng(7))),
    "it was seeded again": (lander, lambda env: gym.Env.reset(env.unwrapped, seed=7)),
    "gravity was changed after the reset": (lander, lambda env: setattr(env.unwrapped, "gravity", -5.0)),
    "wind was changed after the reset": (lander, lambda env: setattr(env.unwrapped, "enable_wind", True)),
    "gravity was changed before the reset": (
        lander,
        lambda env: (setattr(env.unwrapped, "gravity", -5.0), env.reset(seed=7)),
    ),
    "somebody pushed it": (lander, _pushed),
    "somebody made it heavier": (lander, _heavier),
    "somebody turned its world around": (lander, lambda env: setattr(env.unwrapped.world, "gravity", (0, 9))),
    "its methods were replaced": (lander, _methods),
    "it was reset in an old world": (walker, lambda env: box2d.freshen(env.unwrapped)),
    "many resets without a seed": (lander, lambda env: [env.reset() for _ in range(3)]),
    "it was made before": (Walk, lambda _: None),
}


@pytest.mark.parametrize("name", FOOLS)
def test_what_only_looks_like_a_beginning_is_not_taken_for_one(name: str) -> None:
    make, change = FOOLS[name]
    env = started(make, {"seed": 7})
    change(env)
    assert "before milepost saw it" in reason(env)
    env.reset(seed=8)
    captured(env)


def test_no_other_env_is_made_where_it_would_open_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(LunarLander, "render", lambda env: drawn.append(env))
    env = started(lambda: lander(render_mode="human"), {"seed": 7})
    before = len(drawn)
    assert "before milepost saw it" in reason(env)
    assert len(drawn) == before > 0


def test_wrappers_that_draw_in_a_reset_are_no_beginning_but_those_that_draw_later_are() -> None:
    class Noop(gym.Wrapper[Any, Any, Any, Any]):
        def reset(self, **kwargs: Any) -> Any:
            found = super().reset(**kwargs)
            for _ in range(int(self.unwrapped.np_random.integers(1, 5))):
                found = self.env.step(0)[0], {}
            return found

    env = started(lambda: Noop(lander()), {"seed": 7})
    assert "before milepost saw it" in [left.reason for left in envs.capture(env).left_out][-1]
    env = started(lambda: StickyAction(lander(), 0.5), {"seed": 7})
    play(env.env, 0)
    envs.attach(env)
    play(env, 30)
    assert goes_on_alike(lambda: StickyAction(lander(), 0.5), env, 30)


def test_colours_that_a_reset_was_told_to_keep_are_no_beginning_but_come_back_once_they_were_seen() -> None:
    env = started(lambda: car(domain_randomize=True), {"seed": 7}, {"seed": 7, "options": {"randomize": False}})
    env.unwrapped.bg_color[:] = 7
    assert "before milepost saw it" in reason(env)
    env.reset(seed=9)
    colour = env.unwrapped.bg_color.copy()
    env.reset(seed=9, options={"randomize": False})
    assert np.array_equal(env.unwrapped.bg_color, colour)
    play(env, 2)
    assert goes_on_alike(lambda: car(domain_randomize=True), env, 3)


def test_looking_for_a_beginning_touches_neither_the_live_env_nor_the_generators_of_the_process() -> None:
    env = started(lander, {"seed": 7})
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    other = started(lander, {"seed": 7})
    envs.attach(env)
    assert np.array_equal(np.random.get_state()[1], before)
    for each in (env, other):
        each.action_space.seed(5)
    assert play(env, 120) == play(other, 120)


def test_a_step_past_the_tap_is_told_and_not_taken_for_a_draw() -> None:
    env = started(lander, {"seed": 7})
    past = env.unwrapped.step
    envs.attach(env)
    play(env, 3)
    past(0)
    assert "stepped past" in reason(env)
    env.reset(seed=1)
    play(env, 3)
    past(0)
    env.step(0)
    assert "stepped past" in reason(env)


def test_what_somebody_else_puts_on_the_instance_is_called_all_the_same() -> None:
    env, calls = lander(), []
    base = env.unwrapped
    inner = base.step
    base.step = lambda action: (calls.append(action), inner(action))[1]
    envs.attach(env)
    env.reset(seed=1)
    play(env, 4)
    assert len(calls) == 5
    assert goes_on_alike(lander, env, 9)
    recording.detach(env.unwrapped)
    assert not isinstance(base.step, FreshReset | recording.Tap)
