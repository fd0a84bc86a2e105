"""Vector environments come back bit for bit, also those whose envs live in worker processes, whatever their loops remember."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecFrameStack, VecMonitor, VecNormalize

from milepost import CheckpointEngine, envs
from tests.adapters.sb3_runs import in_child
from tests.envs.test_capture import text
from tests.envs.worker_envs import (
    Counting,
    OtherCounting,
    PlainDice,
    ant,
    breakout,
    cartpole,
    count_of,
    hidden_worker,
    lander,
    reachable,
    set_count,
    wrapped_pendulum,
)

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
    seen[4].get("episode", {}).pop("t", None)
    if getattr(venv, "autoreset_mode", None) is AutoresetMode.DISABLED and (ended := seen[2] | seen[3]).any():
        seen.append(copy.deepcopy(venv.reset(options={"reset_mask": ended})))
    return seen


def sb3_step(venv: Any) -> list[Any]:
    observation, reward, done, infos = venv.step([venv.action_space.sample() for _ in range(venv.num_envs)])
    untimed = [{**info, "episode": info["episode"] | {"t": 0}} if "episode" in info else info for info in infos]
    return copy.deepcopy([observation, reward, done, untimed, venv.reset_infos])


def play(venv: Any, steps: int) -> str:
    one = sb3_step if isinstance(venv, VecEnv) else step
    return text([one(venv) for _ in range(steps)])


def unseeded(tree: Any) -> str:
    """Return a tree as text, without the seeds that generators grew from: they say nothing of what is drawn next."""
    return re.sub(r"'entropy': \d+", "", text(tree))


def begin(venv: Any, seed: int, *, until_ended: bool) -> None:
    """Play a while, and stop where an episode has just ended, or where none has."""
    venv.action_space.seed(seed)
    if isinstance(venv, VecEnv):
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


def check(
    build: Factory, *, steps: int = 200, saved_at_end: bool = True, live_at_end: bool = False, comparable: bool = True
) -> None:
    """Capture an env, go on, restore into another in another state, and see it go on like the first."""
    with closed(build()) as original:
        envs.attach(original)
        begin(original, 3, until_ended=saved_at_end)
        state = envs.capture(original)
        assert state.left_out == ()
        assert envs.is_whole(state.tree)
        saved = copy.deepcopy(state.tree)
        expected = play(original, steps)
    with closed(build()) as fresh:
        envs.attach(fresh)
        begin(fresh, 99, until_ended=live_at_end)
        assert play(fresh, 3)
        envs.restore(fresh, saved)
        if comparable:
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


@pytest.mark.parametrize("factory", [ant, breakout, lander, lambda: lander().unwrapped])
def test_simulators_in_workers_go_on_like_the_original(factory: Factory) -> None:
    # MuJoCo leaves memory behind that no step reads, and that is not the same twice.
    check(lambda: AsyncVectorEnv([factory] * 2), steps=60, live_at_end=True, comparable=False)


@pytest.mark.parametrize("shared", [True, False])
def test_a_reset_before_the_step_that_was_to_begin_an_episode_does_what_it_did(shared: bool) -> None:
    # With shared memory the loop forgets that it was to reset, and without it does not: it resets twice.
    def go_on(venv: Any) -> str:
        observation, _ = venv.reset(seed=5)
        return text(observation) + play(venv, 30)

    with closed(AsyncVectorEnv([cartpole] * 2, shared_memory=shared)) as original:
        begin(original, 3, until_ended=True)
        saved, expected = copy.deepcopy(envs.capture(original).tree), go_on(original)
    with closed(AsyncVectorEnv([cartpole] * 2, shared_memory=shared)) as fresh:
        begin(fresh, 99, until_ended=False)
        envs.restore(fresh, saved)
        assert go_on(fresh) == expected


@pytest.mark.parametrize("factory", [cartpole, reachable, lambda: Monitor(wrapped_pendulum()), lambda: Monitor(reachable())])
def test_workers_of_stable_baselines3_go_on_like_the_original(factory: Factory) -> None:
    check(lambda: SubprocVecEnv([factory] * 3, start_method="fork"))


@pytest.mark.parametrize(
    "build",
    [
        lambda: AsyncVectorEnv([cartpole] * 2, context="spawn"),
        lambda: SubprocVecEnv([wrapped_pendulum] * 2),  # by a fork server
    ],
)
def test_workers_that_share_nothing_with_their_parent_are_reached_too(build: Factory) -> None:
    # Each worker imports all that it needs itself, which takes seconds.
    check(build)


def test_an_env_that_was_never_reset_is_brought_back_too() -> None:
    for build in (lambda: AsyncVectorEnv([cartpole] * 2), lambda: SubprocVecEnv([cartpole] * 2, start_method="fork")):
        with closed(build()) as original:
            begin(original, 3, until_ended=True)
            saved = copy.deepcopy(envs.capture(original).tree)
            expected = play(original, 50)
        with closed(build()) as fresh:
            envs.restore(fresh, saved)
            assert play(fresh, 50) == expected


def test_vector_wrappers_come_back_with_the_workers_below_them() -> None:
    def gymnasium() -> Any:
        return vector.NormalizeObservation(vector.RecordEpisodeStatistics(AsyncVectorEnv([cartpole] * 2)))

    def stable_baselines3() -> Any:
        return VecNormalize(VecFrameStack(VecMonitor(SubprocVecEnv([cartpole] * 2, start_method="fork")), 2))

    check(gymnasium)
    check(stable_baselines3)


def test_generators_of_the_worker_processes_come_back_by_index() -> None:
    # B14: an env may draw from the generators of its process, and those of the workers are not the parent's.
    check(lambda: SubprocVecEnv([PlainDice] * 3, start_method="fork"))
    with closed(SubprocVecEnv([PlainDice] * 2, start_method="fork")) as venv:
        begin(venv, 1, until_ended=False)
        one, other = envs.capture(venv).tree["state"]["workers"]
        assert set(one["generators"]) >= {"python", "numpy", "torch"}
        assert text(one["env"]) != text(other["env"])


def test_the_progress_of_each_worker_is_in_what_is_saved() -> None:
    # B10: for people, by the index to which it goes back.
    with closed(SubprocVecEnv([wrapped_pendulum] * 2, start_method="fork")) as venv:
        begin(venv, 7, until_ended=False)
        tree = envs.capture(venv).tree
        assert [worker["status"] for worker in tree["state"]["workers"]] == [
            {"index": 0, "seed": 7, "episode_steps": 1, "episodes": 3},
            {"index": 1, "seed": 8, "episode_steps": 1, "episodes": 3},
        ]


def test_nothing_is_left_in_a_worker_that_was_asked() -> None:
    with closed(SubprocVecEnv([cartpole] * 2, start_method="fork")) as venv:
        venv.reset()
        before = venv.env_method("__dir__")
        saved = envs.capture(venv).tree
        envs.restore(venv, saved)
        assert venv.env_method("__dir__") == before
    with closed(AsyncVectorEnv([reachable] * 2)) as venv:
        envs.describe(venv)
        assert venv.get_attr("milepost_messenger") == (None, None)


def test_describe_asks_the_workers() -> None:
    with closed(AsyncVectorEnv([cartpole] * 2)) as venv:
        assert envs.describe(venv) == "AsyncVectorEnv<2 x TimeLimit<OrderEnforcing<PassiveEnvChecker<CartPoleEnv(CartPole-v1)>>>>"


def test_what_a_script_registered_is_known_in_workers_that_did_not_run_it() -> None:
    with closed(AsyncVectorEnv([Counting, OtherCounting], context="spawn")) as venv:
        venv.reset()
        names = [left.path for left in envs.capture(venv).left_out]
        assert names == ["AsyncVectorEnv[0]/Counting", "AsyncVectorEnv[1]/OtherCounting"]
        envs.register_snapshotter(Counting, count_of, set_count)
        envs.allow_pickle(OtherCounting)
        state = envs.capture(venv)
        assert state.left_out == ()
        assert [worker["env"]["way"] for worker in state.tree["state"]["workers"]] == ["snapshot", "pickle"]
        saved, expected = copy.deepcopy(state.tree), play(venv, 3)
        envs.restore(venv, saved)
        assert play(venv, 3) == expected


def test_a_worker_function_of_ones_own_is_reached_by_reachable() -> None:
    with closed(AsyncVectorEnv([cartpole] * 2, worker=hidden_worker, shared_memory=False)) as venv:
        venv.reset(seed=1)
        state = envs.capture(venv)
        assert [(left.path, "Reachable" in left.reason) for left in state.left_out] == [("AsyncVectorEnv", True)]
        assert not envs.is_whole(state.tree)

    def build() -> Any:
        return AsyncVectorEnv([reachable] * 2, worker=hidden_worker, shared_memory=False, autoreset_mode="Disabled")

    with closed(build()) as venv:
        venv.action_space.seed(1)
        venv.reset(seed=1)
        state = envs.capture(venv)
        # Its loop may remember something, and nobody knows what.
        assert [left.path for left in state.left_out] == ["AsyncVectorEnv[0]/worker", "AsyncVectorEnv[1]/worker"]
        saved = copy.deepcopy(state.tree)
        expected = play(venv, 5)
    with closed(build()) as venv:
        venv.reset(seed=2)
        envs.restore(venv, saved)
        assert play(venv, 5) == expected


def test_a_script_may_begin_and_cease_to_use_reachable() -> None:
    for one, other in ((cartpole, reachable), (reachable, cartpole)):
        with closed(AsyncVectorEnv([one] * 2)) as venv:
            begin(venv, 3, until_ended=True)
            saved = copy.deepcopy(envs.capture(venv).tree)
            expected = play(venv, 30)
        with closed(AsyncVectorEnv([other] * 2)) as venv:
            begin(venv, 4, until_ended=False)
            envs.restore(venv, saved)
            assert play(venv, 30) == expected


def test_observations_that_are_not_copied_are_those_in_the_shared_memory() -> None:
    with closed(AsyncVectorEnv([cartpole] * 2, copy=False)) as venv:
        seen, _ = venv.reset(seed=1)
        saved, expected = copy.deepcopy(envs.capture(venv).tree), seen.copy()
        venv.step([0, 1])
        assert not np.array_equal(seen, expected)
        envs.restore(venv, saved)
        assert np.array_equal(seen, expected)
        venv.step([0, 1])
        assert venv.observations is seen


def test_an_engine_saves_and_resumes_workers_in_another_process(tmp_path: Path) -> None:
    def work(steps: int) -> str:
        state = {"envs": AsyncVectorEnv([cartpole] * 2)}
        with closed(state["envs"]) as venv, CheckpointEngine(tmp_path, state=state, writer="inline") as engine:
            begin(venv, steps, until_ended=True)
            if engine.resume() is None:
                engine.save(1)
            return play(venv, steps)

    saved, resumed = (in_child(lambda: work(60)), in_child(lambda: work(60)))
    assert saved == resumed
