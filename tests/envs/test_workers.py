"""Vector environments come back bit for bit, also those whose envs live in worker processes, whatever their loops remember."""

from __future__ import annotations

import copy
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from milepost import CheckpointEngine, envs
from milepost.errors import MismatchError, ServiceError, UsageError
from tests.adapters.sb3_runs import in_child
from tests.envs import worker_envs
from tests.envs.test_capture import text
from tests.envs.worker_envs import Broken, Dice, PlainDice, UnknownDice, cartpole, hidden_worker, reachable, wrapped_pendulum

Factory = Callable[[], Any]
MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    yield
    assert active_children() == []


@contextmanager
def closed(venv: Any) -> Iterator[Any]:
    with closing(venv):
        yield venv


def step(venv: Any) -> list[Any]:
    """Take one step with an action of the env's own space; episodes that ended are begun again where nobody else does it."""
    seen = list(copy.deepcopy(venv.step(venv.action_space.sample())))
    if getattr(venv, "autoreset_mode", None) is AutoresetMode.DISABLED and (ended := seen[2] | seen[3]).any():
        seen.append(copy.deepcopy(venv.reset(options={"reset_mask": ended})))
    return seen


def sb3_step(venv: Any) -> list[Any]:
    observation, reward, done, infos = venv.step([venv.action_space.sample() for _ in range(venv.num_envs)])
    untimed = [{**info, "episode": info["episode"] | {"t": 0}} if "episode" in info else info for info in infos]
    return copy.deepcopy([observation, reward, done, untimed, venv.reset_infos])


def play(venv: Any, steps: int) -> str:
    one = sb3_step if isinstance(venv, (SubprocVecEnv, DummyVecEnv)) else step
    return text([one(venv) for _ in range(steps)])


def unseeded(tree: Any) -> str:
    """Return a tree as text, without the seeds that generators grew from: they say nothing of what is drawn next."""
    return re.sub(r"'entropy': \d+", "", text(tree))


def begin(venv: Any, seed: int, *, until_ended: bool) -> None:
    """Play a while, and stop where an episode has just ended, or where none has."""
    venv.action_space.seed(seed)
    if isinstance(venv, (SubprocVecEnv, DummyVecEnv)):
        venv.seed(seed)
        venv.reset()
        play(venv, 40)
        return
    venv.reset(seed=seed)
    for count in range(1000):
        seen = step(venv)
        if count > 40 and (seen[2] | seen[3]).any() == until_ended:
            return
    raise AssertionError("no such moment")


def check(build: Callable[[], Any], *, steps: int = 200, saved_at_end: bool = True, live_at_end: bool = False) -> None:
    """Capture an env, go on, restore into another in another state, and see it go on like the first."""
    with closed(build()) as original:
        begin(original, 3, until_ended=saved_at_end)
        state = envs.capture(original)
        assert state.left_out == ()
        assert envs.is_whole(state.tree)
        saved = copy.deepcopy(state.tree)
        expected = play(original, steps)
    with closed(build()) as fresh:
        begin(fresh, 99, until_ended=live_at_end)
        assert play(fresh, 3)
        envs.restore(fresh, saved)
        # What was brought back is what is saved next, before any step has been taken.
        assert unseeded(envs.capture(fresh).tree) == unseeded(saved)
        assert play(fresh, steps) == expected


@pytest.mark.parametrize("saved_at_end", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_a_vector_env_in_this_process_goes_on_like_the_original(mode: AutoresetMode, saved_at_end: bool) -> None:
    check(lambda: SyncVectorEnv([cartpole] * 3, autoreset_mode=mode), saved_at_end=saved_at_end, live_at_end=not saved_at_end)


@pytest.mark.parametrize("factory", [cartpole, reachable])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_workers_of_gymnasium_go_on_like_the_original(mode: AutoresetMode, shared: bool, factory: Factory) -> None:
    # B14. With the next step's autoreset the loop of a worker remembers, in a variable of its own, that it has to reset.
    def build() -> Any:
        return AsyncVectorEnv([factory] * 3, shared_memory=shared, autoreset_mode=mode)

    check(build, saved_at_end=True, live_at_end=False)
    check(build, saved_at_end=False, live_at_end=True)


@pytest.mark.parametrize("factory", [cartpole, reachable, lambda: Monitor(wrapped_pendulum())])
def test_workers_of_stable_baselines3_go_on_like_the_original(factory: Factory) -> None:
    check(lambda: SubprocVecEnv([factory] * 3, start_method="fork"))
