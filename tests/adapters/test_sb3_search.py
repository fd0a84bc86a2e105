"""Augmented random search is saved between its updates, leaves nothing in the model, and names what it cannot reach. B2"""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from sb3_contrib import ARS
from sb3_contrib.common.vec_env import AsyncEval
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from milepost import Keep, every
from milepost.adapters.sb3 import Checkpointing
from milepost.adapters.sb3.boundary import Between
from milepost.publish.view import read
from milepost.store.memory import MemoryStore
from tests.adapters.sb3_contrib_scenarios import short_pendulum, venv
from tests.adapters.sb3_runs import env_of


def search(seed: int = 1, env: Any = None) -> ARS:
    return ARS("LinearPolicy", env or venv(short_pendulum), n_delta=2, seed=seed, device="cpu")


def checkpointing(store: MemoryStore) -> Checkpointing:
    return Checkpointing(store, when=every(steps=1), writer="inline", keep=Keep(last=99))


class Doing(BaseCallback):
    """Do something once, at the first step after some."""

    def __init__(self, after: int, what: Any) -> None:
        super().__init__()
        self.after, self.what = after, what

    def _on_step(self) -> bool:
        if self.what is not None and self.num_timesteps > self.after:
            what, self.what = self.what, None
            what(self.model)
        return True


def saved_steps(store: MemoryStore) -> list[int]:
    return sorted({generation.step for generation in read(store).live.values()})


def test_it_is_saved_where_an_update_begins_and_counts_its_episodes() -> None:
    store, model = MemoryStore(), search()
    model.learn(400, callback=checkpointing(store))
    updates = {generation.counters["updates"]: generation for generation in read(store).live.values()}
    assert sorted(updates) == [1, 2, 3, 4, 5]
    assert [updates[number].counters["episodes"] for number in sorted(updates)] == [4 * number for number in sorted(updates)]


def test_a_model_saved_in_the_midst_of_it_has_its_own_schedule_and_loads_where_there_is_no_milepost(tmp_path: Path) -> None:
    model = search()
    own = model.delta_std_schedule
    model.learn(300, callback=[checkpointing(MemoryStore()), CheckpointCallback(50, str(tmp_path), "ars")])
    assert model.delta_std_schedule is own
    file = sorted(tmp_path.glob("*.zip"))[0]
    loaded = ARS.load(file, device="cpu")
    assert (type(loaded.delta_std_schedule), loaded.delta_std_schedule(0.3)) == (FloatSchedule, own(0.3))
    script = f"import sys; sys.modules['milepost'] = None; from sb3_contrib import ARS; ARS.load({str(file)!r}, device='cpu')"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_a_schedule_that_is_replaced_meanwhile_is_asked_from_then_on_and_saves_go_on() -> None:
    def replace(model: Any) -> None:
        model.delta_std_schedule = FloatSchedule(0.01)

    store, model = MemoryStore(), search()
    model.learn(400, callback=[checkpointing(store), Doing(100, replace)])
    assert saved_steps(store) == [80, 240, 320, 400]
    assert model.delta_std_schedule(1.0) == 0.01


def test_after_a_learn_that_was_broken_off_the_next_one_is_watched_once() -> None:
    def fail(_: Any) -> None:
        raise KeyboardInterrupt

    store, model = MemoryStore(), search()
    with pytest.raises(KeyboardInterrupt):
        model.learn(700, callback=[checkpointing(store), Doing(100, fail)])
    schedule = model.delta_std_schedule
    assert isinstance(schedule, Between)
    model.learn(700, callback=checkpointing(store))
    assert model.delta_std_schedule is schedule.inner


def test_workers_of_its_own_are_named_as_not_captured_and_get_the_normalizer_back(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()

    def run(steps: int) -> ARS:
        model = search(env=VecNormalize(env_of("CartPole-v1")))
        made = [lambda: VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")]))]
        workers = AsyncEval(made, model.policy, start_method="fork")
        return model.learn(steps, callback=checkpointing(store), async_eval=workers)

    with caplog.at_level(logging.INFO, "milepost"):
        trained = run(200)
        count = trained.get_vec_normalize_env().obs_rms.count  # type: ignore[union-attr]
        assert "`envs` is saved without async_eval (its workers tell nothing of the states of their envs)" in caplog.text
        longer = run(trained.num_timesteps + 100)
    assert "exact=no" in caplog.text
    # Fresh workers that begin with the statistics of the whole run add to them, and do not replace them.
    assert longer.num_timesteps > trained.num_timesteps
    assert longer.get_vec_normalize_env().obs_rms.count > count  # type: ignore[union-attr]
