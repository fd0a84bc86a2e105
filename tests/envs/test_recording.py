"""What an env is told is written down and changes nothing; what cannot be followed is never guessed."""

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
from gymnasium.wrappers import StickyAction, TimeLimit
from hypothesis import given
from hypothesis import strategies as st

from milepost import envs
from milepost.envs import recording
from milepost.errors import MismatchError
from tests.envs.told import Walk, bits, captured, goes_on_alike, lander, play, reason, walked


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


def louder(action: Any) -> Any:
    """Be what somebody else has put in the place of a step."""
    return action, 0.0, False, False, {}


def test_a_copy_keeps_what_somebody_else_had_put_in_the_place_of_a_method() -> None:
    env = gym.make("CartPole-v1").unwrapped
    env.step = louder  # type: ignore[assignment]
    recording.attach(env, recording.Replayed())
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert other.step(7)[0] == 7


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
    tree = copy.deepcopy(envs.capture(env).tree)
    assert goes_on_alike(make, env, 60)
    tree["inner"][0]["inner"][0]["state"]["events"] = []
    with pytest.raises(MismatchError) as caught:
        told_again(make, tree)
    assert caught.value.kind == "env-lies"


def told_again(make: Callable[[], Any], tree: dict[str, Any]) -> None:
    fresh = make()
    fresh.reset(seed=4)
    envs.restore(fresh, tree)


def test_a_sticky_lander_goes_on_as_it_would_have() -> None:
    def make() -> gym.Env[Any, Any]:
        return StickyAction(lander(), 0.3)

    env = make()
    envs.attach(env)
    env.reset(seed=3)
    play(env, 90)
    assert goes_on_alike(make, env, 90)


DEEDS = st.one_of(
    st.tuples(st.just("reset"), st.none() | st.integers(0, 2**70)),
    st.tuples(st.just("step"), st.floats(-1, 1)),
    st.tuples(st.just("draw"), st.integers(1, 3)),
    st.tuples(st.just("draw half a word"), st.none()),
    st.tuples(st.just("come back in another env"), st.none()),
)


@given(st.lists(DEEDS, max_size=12))
def test_whatever_was_done_to_an_env_another_goes_on_as_it_does(deeds: list[tuple[str, Any]]) -> None:
    env = walked(2)
    for deed, value in deeds:
        if deed == "reset":
            env.reset(seed=value)
        elif deed == "step":
            env.step(np.array([value]))
        elif deed == "draw":
            env.np_random.normal(size=value)
        elif deed == "draw half a word":
            env.np_random.integers(9, dtype=np.uint32)
        else:
            saved, env = captured(env), Walk()
            envs.restore(env, saved)
    assert goes_on_alike(Walk, env, 6)


@pytest.mark.parametrize("options", [None, {"from": 5}, {"from": np.float32(2.5)}, {"from": np.ones(1)}])
def test_the_arguments_of_a_reset_are_a_part_of_the_episode(options: Any) -> None:
    env = walked(0, options=options)
    if options:
        if isinstance(options["from"], np.ndarray):
            options["from"] += 9
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
    # An env may show the very same array at every step, by itself or in a dict.
    for env in (walked(), _in_a_dict()):
        tree = envs.capture(env).tree
        before = bits(tree)
        play(env, 3)
        assert bits(tree) == before


def _in_a_dict() -> Any:
    class Dict(Walk):
        def reset(self, **kwargs: Any) -> Any:
            place, info = super().reset(**kwargs)
            return {"place": place}, info

        def step(self, action: Any) -> Any:
            place, *rest = super().step(action)
            return {"place": place}, *rest

    envs.register_replayed(Dict)
    env = Dict()
    envs.attach(env)
    env.reset(seed=1)
    play(env, 3)
    assert goes_on_alike(Dict, env, 5)
    return env


def test_a_restored_episode_is_known_so_that_it_can_be_saved_again() -> None:
    env = walked(5)
    env.np_random.normal()
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
