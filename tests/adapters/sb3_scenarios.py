"""Small Stable-Baselines3 scripts, one for each algorithm and for what goes with it: a model, callbacks, steps, kills."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import A2C, DDPG, DQN, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback, StopTrainingOnNoModelImprovement
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecMonitor, VecNormalize

from tests.adapters.sb3_callbacks import CALLBACKS
from tests.adapters.sb3_contrib_scenarios import CONTRIB
from tests.adapters.sb3_features import FEATURES
from tests.adapters.sb3_runs import NET, env_of, her, in_child, off_policy, pieces, ppo_model

Scenario = tuple[Callable[[int, Path], tuple[Any, list[BaseCallback]]], int, int, tuple[int, ...]]
"""``build(seed, folder)``, total steps, steps between saves, and the steps at which it is killed."""


def build(name: str, seed: int, folder: Path) -> tuple[Any, list[BaseCallback]]:
    """Return a model and the user's callbacks of one of the scenarios."""
    torch.set_num_threads(1)
    return SCENARIOS[name][0](seed, folder)


def _evaluating(env: str, normalized: bool = False, **options: Any) -> EvalCallback:
    venv: Any = env_of(env, 1, seed=77)
    if normalized:
        venv = VecNormalize(venv, training=False)
    return EvalCallback(venv, eval_freq=70, n_eval_episodes=1, deterministic=False, verbose=0, warn=False, **options)


def _patience() -> StopTrainingOnNoModelImprovement:
    return StopTrainingOnNoModelImprovement(50)


def ppo_stacked(seed: int, folder: Path) -> Any:
    env = VecNormalize(VecFrameStack(VecMonitor(DummyVecEnv([lambda: gym.make("CartPole-v1")] * 3)), 2))
    env.seed(3)
    return ppo_model(seed, folder, env=env, n_steps=24, batch_size=24), []


def _ou(size: int = 1) -> OrnsteinUhlenbeckActionNoise:
    return OrnsteinUhlenbeckActionNoise(np.zeros(size), 0.3 * np.ones(size))


def _normal() -> NormalActionNoise:
    return NormalActionNoise(np.zeros(1), 0.2 * np.ones(1))


BASIC: dict[str, Scenario] = {
    "ppo": (lambda s, f: (ppo_model(s, f), []), 384, 64, (200,)),
    "ppo, schedules, evaluation": (
        lambda s, f: (
            ppo_model(s, f, learning_rate=lambda left: 1e-2 * left, clip_range=lambda left: 0.2 * left),
            [_evaluating("CartPole-v1", callback_after_eval=_patience(), callback_on_new_best=_patience())],
        ),
        384,
        64,
        (150, 300),
    ),
    "ppo, 3 envs, VecNormalize, VecFrameStack, VecMonitor": (ppo_stacked, 360, 72, (250,)),
    "ppo, 2 envs, VecNormalize, evaluation": (
        lambda s, f: (
            ppo_model(s, f, env=VecNormalize(env_of("MountainCarContinuous-v0", 2)), n_steps=32),
            [_evaluating("MountainCarContinuous-v0", normalized=True)],
        ),
        256,
        64,
        (200,),
    ),
    "ppo, gSDE": (
        lambda s, f: (ppo_model(s, f, env=env_of("Pendulum-v1"), use_sde=True), []),
        256,
        64,
        (140,),
    ),
    "a2c": (
        lambda s, f: (A2C("MlpPolicy", env_of("Acrobot-v1", 2), seed=s, policy_kwargs=dict(NET), device="cpu"), []),
        300,
        50,
        (170,),
    ),
    "dqn": (
        lambda s, f: (off_policy(DQN, s, env_of("CartPole-v1"), target_update_interval=30, exploration_fraction=0.8), []),
        240,
        40,
        (90, 170),
    ),
    "dqn, 2 envs, VecNormalize, evaluation": (
        lambda s, f: (
            off_policy(DQN, s, VecNormalize(env_of("MountainCar-v0", 2)), target_update_interval=30),
            [_evaluating("MountainCar-v0", normalized=True)],
        ),
        240,
        40,
        (190,),
    ),
    "dqn, memory optimized": (
        lambda s, f: (
            off_policy(
                DQN,
                s,
                env_of("CartPole-v1"),
                buffer_size=60,
                optimize_memory_usage=True,
                replay_buffer_kwargs={"handle_timeout_termination": False},
            ),
            [],
        ),
        200,
        40,
        (130,),
    ),
    "dqn, memory optimized, 2 envs, twice around between saves": (
        lambda s, f: (
            off_policy(
                DQN,
                s,
                env_of("CartPole-v1", 2),
                buffer_size=20,
                learning_starts=10,
                optimize_memory_usage=True,
                replay_buffer_kwargs={"handle_timeout_termination": False},
            ),
            [],
        ),
        200,
        42,
        (70, 150),
    ),
    "sac, dict observations, 2 envs": (
        lambda s, f: (off_policy(SAC, s, env_of("Reach", 2), buffer_size=50), []),
        200,
        40,
        (130,),
    ),
    "td3, HER, 3 envs, around between saves": (
        lambda s, f: (her(TD3, s, env_of("Reach", 3), buffer_size=90), []),
        420,
        105,
        (120, 350),
    ),
    "sac, HER, normalized": (
        lambda s, f: (her(SAC, s, VecNormalize(env_of("Reach")), buffer_size=60), []),
        240,
        40,
        (130,),
    ),
    "dqn, HER, infos": (
        lambda s, f: (her(DQN, s, env_of("Reach, discrete", 2), copy_info_dict=True, buffer_size=70), []),
        240,
        40,
        (130,),
    ),
    "dqn, n-step, by episode": (
        lambda s, f: (off_policy(DQN, s, env_of("CartPole-v1"), n_steps=3, train_freq=(1, "episode")), []),
        200,
        40,
        (130,),
    ),
    "sac": (lambda s, f: (off_policy(SAC, s, env_of("Pendulum-v1")), []), 160, 40, (130,)),
    "sac, gSDE": (
        lambda s, f: (off_policy(SAC, s, env_of("Pendulum-v1"), use_sde=True, sde_sample_freq=4, train_freq=8), []),
        160,
        40,
        (130,),
    ),
    "sac, fixed entropy": (lambda s, f: (off_policy(SAC, s, env_of("Pendulum-v1"), ent_coef=0.1), []), 120, 40, (90,)),
    "td3, OU noise": (lambda s, f: (off_policy(TD3, s, env_of("Pendulum-v1"), action_noise=_ou()), []), 161, 41, (130,)),
    "td3, 2 envs, vectorized noise": (
        lambda s, f: (off_policy(TD3, s, env_of("Pendulum-v1", 2), action_noise=_ou(), train_freq=2), []),
        160,
        40,
        (130,),
    ),
    "ddpg, normal noise": (
        lambda s, f: (off_policy(DDPG, s, env_of("Pendulum-v1"), action_noise=_normal()), []),
        130,
        40,
        (100,),
    ),
}
SCENARIOS: dict[str, Scenario] = {**BASIC, **FEATURES, **CALLBACKS, **CONTRIB}


def alone(name: str, folder: Path) -> Any:
    """Return what a scenario's script ends with, without milepost and undisturbed."""

    def script() -> Any:
        model, callbacks = build(name, 1, folder)
        model.learn(SCENARIOS[name][1], callback=callbacks)
        return pieces(model, callbacks)

    return in_child(script)
