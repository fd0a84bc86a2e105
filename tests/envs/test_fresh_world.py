"""BipedalWalker's world outlives its resets: it is not replayed as it comes, and exactly in a new world each time."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from milepost import envs
from milepost.envs import box2d
from milepost.errors import MismatchError, UsageError
from tests.envs.told import bits, captured, goes_on_alike, lander, play, reason, walker

HARDCORE = [False, True]


def fresh(hardcore: bool, longest: int = 45) -> gym.Env[Any, Any]:
    return envs.FreshWorld(walker(hardcore=hardcore, max_episode_steps=longest))


@pytest.mark.parametrize("warm_up", [0, 1, 44, 57, 157, 260])
@pytest.mark.parametrize("hardcore", HARDCORE)
def test_a_walker_in_fresh_worlds_goes_on_in_another_env_as_it_would_have(hardcore: bool, warm_up: int) -> None:
    env = fresh(hardcore)
    env.action_space.seed(1)
    env.reset(seed=7)
    play(env, warm_up)
    envs.attach(env)
    if warm_up:
        # It is known from the next reset on: at the start alone it can be told how an episode began.
        play(env, 45)
    assert goes_on_alike(lambda: fresh(hardcore), env, 120)


def episode(env: Any, seed: int) -> list[Any]:
    env.reset(seed=seed)
    given, rng = [], np.random.default_rng(seed)
    while len(given) < 300 and (not given or given[-1][2] == "False"):
        given.append(bits(env.step(rng.uniform(-1, 1, 4).astype(np.float32))))
    return given


@pytest.mark.parametrize("hardcore", HARDCORE)
def test_an_episode_in_a_fresh_world_has_the_bits_of_one_in_a_new_env_and_else_it_has_not(hardcore: bool) -> None:
    as_it_comes, used = walker(hardcore=hardcore), envs.FreshWorld(walker(hardcore=hardcore))
    otherwise = 0
    for seed in range(12):
        expected = episode(walker(hardcore=hardcore), seed)
        assert episode(used, seed) == expected
        otherwise += episode(as_it_comes, seed) != expected
    assert otherwise > 0


def test_a_walker_as_it_comes_is_named_with_what_to_do() -> None:
    env = walker()
    env.reset(seed=1)
    assert "milepost.envs.FreshWorld" in reason(env)
    assert vars(env.unwrapped).keys().isdisjoint({"reset", "step"})


def test_were_it_replayed_as_it_comes_a_walker_would_go_on_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    # Why it is refused, and not left to the proof: most of these end their replay with the very same bits, and differ later.
    known = box2d._KINDS[box2d._WALKER]
    monkeypatch.setitem(box2d._KINDS, box2d._WALKER, dataclasses.replace(known, refused=lambda _: ""))
    otherwise = 0
    for seed in range(4):
        env = walker(max_episode_steps=150)
        envs.attach(env)
        env.action_space.seed(seed)
        env.reset(seed=seed)
        play(env, 320)
        with contextlib.suppress(MismatchError):
            otherwise += not goes_on_alike(lambda: walker(max_episode_steps=150), env, 120)
    assert otherwise > 0


def test_a_checkpoint_with_fresh_worlds_does_not_fit_an_env_without() -> None:
    env = fresh(False)
    env.reset(seed=1)
    saved = captured(env)
    assert "FreshWorld<" in envs.describe(env)
    with pytest.raises(MismatchError) as caught:
        envs.restore(walker(max_episode_steps=45), saved)
    assert caught.value.kind == "env"
    # Nor does one in which the wrapper was undone.
    other = fresh(False)
    del vars(other.unwrapped)["reset"]
    with pytest.raises(MismatchError) as caught:
        envs.restore(other, saved)
    assert "FreshWorld" in caught.value.differences[0].live


@pytest.mark.parametrize("attached_first", [False, True])
def test_whoever_resets_the_env_within_gets_a_fresh_world(attached_first: bool) -> None:
    base = walker().unwrapped
    if attached_first:
        box2d.freshen(base)
        envs.attach(base)
    env = envs.FreshWorld(base)
    envs.attach(env)
    worlds = []
    for reset in (env.reset, base.reset, env.reset):
        reset(seed=1)
        worlds.append(base.world)
    assert len({id(world) for world in worlds}) == 3
    captured(env)


def test_a_fresh_world_is_made_in_an_env_that_was_pickled_too() -> None:
    env = envs.FreshWorld(walker().unwrapped)
    env.reset(seed=1)
    other = pickle.loads(pickle.dumps(env))
    other.reset(seed=1)
    world = other.unwrapped.world
    other.reset(seed=1)
    assert other.unwrapped.world is not world
    assert bits(other.step(np.zeros(4, np.float32))) == bits(env.step(np.zeros(4, np.float32)))


@pytest.mark.parametrize("make", [lander, lambda: gym.make("CartPole-v1")])
def test_an_env_that_needs_no_fresh_world_is_refused(make: Any) -> None:
    with pytest.raises(UsageError, match="BipedalWalker"):
        envs.FreshWorld(make())
