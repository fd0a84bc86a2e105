"""Runs on envs that come back by being told the same again end with the bits of an undisturbed one. B10"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from milepost.adapters.sb3 import Checkpointing
from milepost.engine.checkpoint_engine import CheckpointEngine
from milepost.envs import FreshWorld, box2d
from milepost.lifecycle.triggers import every
from tests.adapters.sb3_runs import KILLED, NET, KillAt, in_child, off_policy, ppo_model

# Hardly an episode ends within a hundred steps: most of what is killed here is in the middle of one.
SCRIPTS: dict[str, tuple[Callable[[int], Any], int, int, tuple[int, ...]]] = {
    "ppo, LunarLander, 2 envs": (
        lambda seed: ppo_model(seed, Path(), env=VecNormalize(lander(2, max_episode_steps=150))),
        512,
        128,
        (200, 390),
    ),
    "dqn, LunarLander, wind": (
        lambda seed: off_policy(DQN, seed, lander(1, enable_wind=True), learning_starts=20, target_update_interval=50),
        260,
        33,
        (40, 150, 151),
    ),
    "sac, LunarLander, continuous": (
        lambda seed: off_policy(SAC, seed, lander(1, continuous=True), train_freq=8),
        144,
        24,
        (30, 130),
    ),
    "ppo, BipedalWalker in fresh worlds": (
        lambda seed: PPO(
            "MlpPolicy", walker(), n_steps=64, batch_size=32, n_epochs=1, policy_kwargs=NET, seed=seed, device="cpu"
        ),
        320,
        64,
        (100, 250),
    ),
}


def lander(count: int, **options: Any) -> Any:
    venv = DummyVecEnv([lambda: Monitor(gym.make("LunarLander-v3", **options))] * count)
    venv.seed(5)
    return venv


def walker() -> Any:
    venv = DummyVecEnv([lambda: Monitor(FreshWorld(gym.make("BipedalWalker-v3", max_episode_steps=90)))])
    venv.seed(5)
    return venv


def ends(model: Any) -> dict[str, str]:
    """Return a hash for each kind of state that a run ends with, knowing nothing of milepost's captures."""
    buffer = getattr(model, "replay_buffer", None) or model.rollout_buffer
    bases = [env.unwrapped for env in model.env.unwrapped.envs]
    found: dict[str, list[Any]] = {
        "policy": list(model.policy.state_dict().values()),
        "buffer": [value for _, value in sorted(vars(buffer).items()) if isinstance(value, (np.ndarray, int))],
        "observations": [model._last_obs, model.num_timesteps, model._n_updates],
        "generators": [np.random.get_state()[1], torch.get_rng_state(), *(base.np_random.bit_generator.state for base in bases)],
        "envs": [base.step(base.action_space.sample() * 0)[0] for base in bases],
        "bodies": [box2d._bodies(base, [getattr(base, "lander", None) or base.hull])["bodies"] for base in bases],
    }
    return {name: hashlib.sha256(b"".join(map(_bytes, values))).hexdigest()[:16] for name, values in found.items()}


def _bytes(value: Any) -> bytes:
    value = value.detach().numpy() if isinstance(value, torch.Tensor) else value
    return value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()


def run(name: str, folder: Path, *, seed: int = 1, kill_at: int | None = None, checkpoints: bool = True) -> Any:
    def script() -> Any:
        torch.set_num_threads(1)
        make, total, often, _ = SCRIPTS[name]
        model = make(seed)
        ours = [Checkpointing(folder, when=every(steps=often), writer="inline")] if checkpoints else []
        model.learn(total, callback=[*ours, KillAt(kill_at)])
        return ends(model)

    return in_child(script)


def exactness(folder: Path) -> dict[str, tuple[str, str]]:
    """Return what the newest manifest says of each component."""
    with CheckpointEngine(folder, state={"counters": {}}) as engine:
        found: Any = engine.peek()
    return {component.name: (component.exactness, component.reason) for component in found.components}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_run_killed_in_the_middle_of_an_episode_ends_with_the_bits_of_an_undisturbed_one(name: str, tmp_path: Path) -> None:
    alone = run(name, tmp_path, checkpoints=False)
    for number, kill_at in enumerate(SCRIPTS[name][3]):
        assert run(name, tmp_path / "run", kill_at=kill_at, seed=number + 1) == KILLED
        # From the first episode on, which began before anybody called us.
        assert {said for said, _ in exactness(tmp_path / "run").values()} == {"exact"}
    assert run(name, tmp_path / "run", seed=9) == alone


def test_a_walker_as_it_comes_is_not_called_exact(tmp_path: Path) -> None:
    def script() -> None:
        model = PPO("MlpPolicy", DummyVecEnv([lambda: gym.make("BipedalWalker-v3")]), n_steps=16, batch_size=16, device="cpu")
        model.learn(16, callback=Checkpointing(tmp_path / "run", writer="inline"))

    in_child(script)
    said, reason = exactness(tmp_path / "run")["envs"]
    assert said == "not captured"
    assert "FreshWorld" in reason


def test_an_evaluation_env_that_was_not_reset_yet_is_no_gap(tmp_path: Path) -> None:
    def script() -> None:
        evaluation = EvalCallback(lander(1, max_episode_steps=20), eval_freq=40, n_eval_episodes=1, verbose=0, warn=False)
        model = ppo_model(1, tmp_path, env=lander(1), n_steps=16, batch_size=16)
        model.learn(48, callback=[Checkpointing(tmp_path / "run", when=every(steps=16), writer="inline"), evaluation])

    in_child(script)
    assert {said for said, _ in exactness(tmp_path / "run").values()} == {"exact"}
