"""MuJoCo and Atari go on bit by bit in a fresh env, and the ways that are silently wrong are found to be."""

from __future__ import annotations

import copy

import pytest

from milepost import envs
from tests.envs.worlds import FACTORIES, play, started

WARM_UP, CHECK = 157, 300


@pytest.mark.parametrize("name", FACTORIES)
def test_a_simulator_goes_on_in_a_fresh_env_as_in_the_original(name: str) -> None:
    original = started(FACTORIES[name](), 7, WARM_UP)
    state = envs.capture(original)
    assert state.left_out == ()
    assert envs.is_whole(state.tree)
    saved = copy.deepcopy(state.tree)
    expected = play(original, CHECK)
    fresh = started(FACTORIES[name](), 1234, 31)
    envs.restore(fresh, saved)
    assert play(fresh, CHECK) == expected
    assert play(original, 10) == play(fresh, 10)
