"""Vector environments come back bit for bit, also those whose envs live in worker processes, whatever their loops remember."""

from __future__ import annotations

import copy
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
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
from milepost.envs import lines
from milepost.errors import MismatchError, ServiceError, UsageError
from tests.adapters.sb3_runs import in_child
from tests.envs.test_capture import text
from tests.envs.worker_envs import (
    Broken,
    Calm,
    Counting,
    Killed,
    Liar,
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


def refused(venv: Any, saved: Any) -> list[tuple[str, str, str]]:
    """Return what differs, and see that nothing was changed."""
    before = text(envs.capture(venv).tree)
    with pytest.raises(MismatchError) as caught:
        envs.restore(venv, saved)
    assert text(envs.capture(venv).tree) == before
    return [(found.path, found.saved, found.live) for found in caught.value.differences]


def test_a_changed_number_of_workers_is_refused_with_both_sides() -> None:
    with closed(AsyncVectorEnv([cartpole] * 2)) as venv:
        venv.reset(seed=1)
        saved = copy.deepcopy(envs.capture(venv).tree)
    with closed(AsyncVectorEnv([cartpole] * 3)) as venv:
        venv.reset(seed=2)
        assert refused(venv, saved) == [("AsyncVectorEnv/num_envs", "2", "3")]


@pytest.mark.parametrize("build", [SyncVectorEnv, AsyncVectorEnv])
def test_another_way_to_begin_episodes_is_refused_with_both_sides(build: Any) -> None:
    # Where the next step was to reset, nobody would.
    with closed(build([cartpole] * 2)) as venv:
        venv.reset(seed=1)
        saved = copy.deepcopy(envs.capture(venv).tree)
    with closed(build([cartpole] * 2, autoreset_mode="SameStep")) as venv:
        venv.reset(seed=2)
        assert refused(venv, saved) == [(f"{build.__name__}.autoreset_mode", "NextStep", "SameStep")]


def test_a_wrapper_that_one_worker_has_not_is_named_with_its_index() -> None:
    with closed(SubprocVecEnv([cartpole, lambda: Monitor(cartpole())], start_method="fork")) as venv:
        venv.reset()
        saved = copy.deepcopy(envs.capture(venv).tree)
    with closed(SubprocVecEnv([cartpole, cartpole], start_method="fork")) as venv:
        venv.reset()
        ((path, one, other),) = refused(venv, saved)
        assert path == "SubprocVecEnv[1]/TimeLimit"
        assert (one.rpartition(".")[2], other.rpartition(".")[2]) == ("Monitor", "TimeLimit")


def test_a_worker_that_was_killed_is_named_by_its_index_and_exit_code() -> None:
    for build in (lambda: AsyncVectorEnv([cartpole] * 3), lambda: SubprocVecEnv([cartpole] * 3, start_method="fork")):
        venv = build()
        venv.reset()
        saved = envs.capture(venv).tree
        os.kill(venv.processes[1].pid, signal.SIGKILL)
        for ask in (envs.capture, partial(envs.restore, tree=saved), envs.Envs):
            with pytest.raises(ServiceError) as caught:
                ask(venv)
            assert (caught.value.kind, caught.value.facts["index"], caught.value.facts["exit_code"]) == ("worker-gone", 1, -9)
        stop(venv)


@pytest.mark.parametrize("build", [AsyncVectorEnv, partial(SubprocVecEnv, start_method="fork")])
def test_a_worker_that_dies_while_it_is_asked_is_named_too(build: Any) -> None:
    # Forked workers of Stable-Baselines3 hold each other's pipes: who waits for the end of a dead one's waits for ever.
    venv = build([Calm, Calm, Killed])
    venv.reset()
    with pytest.raises(ServiceError) as caught:
        envs.capture(venv)
    assert (caught.value.facts["index"], caught.value.facts["exit_code"]) == (2, -9)
    stop(venv)


@pytest.mark.parametrize("heard", [0, 1, 2])
def test_a_ctrl_c_while_workers_answer_leaves_no_answer_for_the_next_step(heard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = lines.wait, iter(range(100))

    def interrupted(*arguments: Any) -> Any:
        if next(calls) == 3 + heard:  # after the three that say the attribute is set
            raise KeyboardInterrupt
        return real(*arguments)

    with closed(SubprocVecEnv([Calm] * 3, start_method="fork")) as venv:
        venv.reset()
        monkeypatch.setattr(lines, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            envs.capture(venv)
        observations, _, _, _ = venv.step([1, 0, 1])
        assert list(observations) == [1, 0, 1]
        assert envs.capture(venv).left_out == ()


def stop(venv: Any) -> None:
    """End what is left of a vector env that has lost a worker."""
    if isinstance(venv, AsyncVectorEnv):
        venv.close(terminate=True)
        return
    for process in venv.processes:
        process.terminate()
        process.join()


def test_while_a_step_is_in_flight_nothing_is_captured_and_the_step_is_not_lost() -> None:
    for build in (lambda: AsyncVectorEnv([cartpole] * 2), lambda: SubprocVecEnv([cartpole] * 2, start_method="fork")):
        with closed(build()) as venv:
            venv.reset()
            venv.step_async(np.zeros(2, int))
            with pytest.raises(UsageError) as caught:
                envs.capture(venv)
            assert caught.value.kind == "env-in-flight"
            venv.step_wait()
            assert envs.capture(venv).left_out == ()


def test_a_closed_vector_env_is_refused() -> None:
    venv = AsyncVectorEnv([cartpole] * 2)
    venv.close()
    with pytest.raises(UsageError) as caught:
        envs.capture(venv)
    assert caught.value.kind == "env-closed"


def test_an_env_that_fails_in_its_worker_is_named_and_its_worker_lives() -> None:
    with closed(SubprocVecEnv([Calm, Broken], start_method="fork")) as venv:
        venv.reset()
        with pytest.raises(UsageError) as caught:
            envs.capture(venv)
        assert caught.value.facts["index"] == 1
        assert caught.value.facts["error"] == "ZeroDivisionError: no state today"
        assert "milepost_get_state" in str(caught.value.__cause__)
        venv.step([0, 1])


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


def test_an_env_that_lies_is_caught_with_its_index() -> None:
    with closed(SubprocVecEnv([Calm, Calm, Liar], start_method="fork")) as venv:
        venv.reset()
        saved = envs.capture(venv).tree
        with pytest.raises(MismatchError) as caught:
            envs.restore(venv, saved)
        (found,) = caught.value.differences
        assert (caught.value.kind, caught.value.facts["index"]) == ("env-lies", 2)
        assert found.path.startswith("SubprocVecEnv[2]/Liar observation")
        # The others were not left with an answer that nobody had asked for.
        observations, _, _, _ = venv.step([1, 0, 1])
        assert list(observations) == [1, 0, 1]


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
