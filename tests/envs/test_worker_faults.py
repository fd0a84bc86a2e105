"""What goes wrong with workers is told with the worker's index, and leaves the others as they were."""

from __future__ import annotations

import copy
import os
import signal
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import SubprocVecEnv

from milepost import envs
from milepost.envs import lines
from milepost.errors import MismatchError, ServiceError, UsageError
from tests.envs.test_capture import text
from tests.envs.test_workers import closed, no_worker_is_left
from tests.envs.worker_envs import Broken, Calm, Killed, Liar, cartpole

__all__ = ["no_worker_is_left"]


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


@pytest.mark.timeout(60)
def test_a_worker_whose_exit_code_comes_a_moment_after_its_end_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its siblings hold its pipe open: who then waits for that alone waits for ever.
    real, calls = lines.has_ended, iter(range(100))
    venv = SubprocVecEnv([Calm, Calm, Killed], start_method="fork")
    venv.reset()
    monkeypatch.setattr(lines, "has_ended", lambda process: process is venv.processes[2] and next(calls) > 4 and real(process))
    with pytest.raises(ServiceError) as caught:
        envs.capture(venv)
    assert caught.value.kind == "worker-gone"
    assert next(calls) > 5
    monkeypatch.undo()
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
